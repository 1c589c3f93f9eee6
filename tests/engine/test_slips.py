"""Arguments of a wrong type: each is refused where it is given, with a word on what is wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import (
    Graph,
    Holdfast,
    Quota,
    Retry,
    WorkerOptions,
    agent,
    days,
    hours,
    signal,
    tool,
)
from holdfast.errors import HoldfastError, InvalidRequest, RunFailed
from holdfast.integrations.offline import Offline
from tests.engine.support import House, chain

DECLARED: dict[str, Callable[[], Any]] = {
    "retry must be a Retry": lambda: tool(retry=3)(list),  # type: ignore[call-overload]
    "quota must be a Quota": lambda: tool(quota=5)(list),  # type: ignore[call-overload]
    "must limit requests or concurrency": lambda: tool(quota=Quota("mail", tokens=5))(list),
    "idempotent must be True or False": lambda: tool(idempotent="no")(list),  # type: ignore[call-overload]
    "at_most_once must be True or False": lambda: tool(at_most_once="yes")(list),  # type: ignore[call-overload]
    "attempts of a Retry must be an integer from 1": lambda: Retry(attempts=0),
    "backoff must be a duration such as '500ms'": lambda: Retry(backoff="1"),
    "jitter of a Retry must be a number from 0 to 1": lambda: Retry(jitter=2),
    "on of a Retry must be a tuple of exception types": lambda: Retry(on=ValueError),  # type: ignore[arg-type]
    "hours must be a number": lambda: hours("48"),  # type: ignore[arg-type]
    "days must be a number": lambda: days(float("inf")),
    "reducers must be a dict": lambda: Graph("g", dict, reducers=["notes"]),  # type: ignore[arg-type]
    "tools must be a list of functions": lambda: agent("small", list),  # type: ignore[arg-type]
    "fallback must be the name": lambda: agent("small", fallback=5),  # type: ignore[arg-type]
    "an agent has no option 'key'": lambda: agent("small", key="k"),
    "it must be text": lambda: Holdfast(None),  # type: ignore[arg-type]
    "models must be a dict": lambda: Holdfast("sqlite://:memory:", models=[Offline()]),  # type: ignore[arg-type]
    "quotas must be a dict": lambda: Holdfast("sqlite://:memory:", quotas=5),  # type: ignore[arg-type]
    "the type of a signal must be a type such as bool, got the text 'bool'": lambda: signal(
        "go", "bool"
    ),
    r'the name of a signal must be a text, got <class .*: write signal\("appr': lambda: signal(
        Offline  # type: ignore[call-overload]
    ),
    "user_key must be bytes": lambda: Holdfast("sqlite://:memory:", user_key="k" * 16),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("told", DECLARED)
def test_a_declaration_of_a_wrong_type_is_refused(told: str) -> None:
    with pytest.raises(HoldfastError, match=told):
        DECLARED[told]()


async def test_a_worker_of_something_else_is_refused(hf: Holdfast) -> None:
    with pytest.raises(HoldfastError, match="graphs must contain graphs or workflows, got 'g'"):
        hf.worker("g")  # type: ignore[arg-type]
    with pytest.raises(HoldfastError, match=r"got 'g' alone: put it into a list, as in hf\.worker"):
        hf.worker(chain("g", 1, lambda number: {}))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="no such option: 'concurency'; did you mean 'concurr"):
        hf.worker([chain("g", 1, lambda number: {})], concurency=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidRequest, match=r"no such option: 'x'\. The options are: concur"):
        hf.worker([chain("g", 1, lambda number: {})], x=3)  # type: ignore[call-arg]
    with pytest.raises(HoldfastError, match="options must be WorkerOptions"):
        hf.worker([chain("g", 1, lambda number: {})], options={"concurrency": 3})  # type: ignore[arg-type]
    hf.worker([chain("g", 1, lambda number: {})], options=WorkerOptions(concurrency=3))


async def test_a_handle_with_the_name_of_a_graph_is_refused(hf: Holdfast) -> None:
    with pytest.raises(InvalidRequest, match="graph must be a Graph or a @workflow, got 'g'"):
        hf.run("q", graph="g")  # type: ignore[arg-type]


async def _boom() -> None:
    raise OSError("torn")


ASKED: dict[str, Callable[[Any], Any]] = {
    "retry must be a Retry": lambda ctx: ctx.with_options(retry=3).call(_boom),
    "quota must be a Quota": lambda ctx: ctx.with_options(quota=5).call(_boom),
    "retry must be a Retry,": lambda ctx: ctx.model("small", "Is it?", retry=3),
    "fallback must be the name": lambda ctx: ctx.model("small", "Is it?", fallback=[5]),
    "tools must be a list of ToolSpec": lambda ctx: ctx.model("small", "Is it?", tools=[_boom]),
    "wait takes max_wait=…, not timeout=…": lambda ctx: ctx.wait(signal("go"), timeout=5),
    "wait_any takes max_wait=…, not timeout=…": lambda ctx: ctx.wait_any(signal("go"), timeout=5),
    "output must be a type, got the text 'Risk': pass the class itself": lambda ctx: ctx.model(
        "small", "Is it?", output="Risk"
    ),
    "tools must be a list of ToolSpec,": lambda ctx: ctx.model("small", "Is it?", tools=5),
}


@pytest.mark.parametrize("told", ASKED)
async def test_a_node_that_asks_with_a_wrong_type_is_told_so(house: House, told: str) -> None:
    graph = Graph("g", dict)

    @graph.node
    async def node(state: Any, ctx: Any) -> None:
        await ASKED[told](ctx)

    hf = house.open(models={"small": Offline()})
    async with house.worker(hf, graph):
        run = await hf.start(graph)
        with pytest.raises(RunFailed, match=told) as failed:
            await run.result(timeout=60)
    assert failed.value.kind in ("InvalidRequest", "InvalidPrompt")
