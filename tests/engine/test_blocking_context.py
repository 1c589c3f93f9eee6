"""The context of a plain function takes what the context of a coroutine function takes."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from holdfast import Context, Graph, Holdfast, signal
from holdfast.engine.execution.blocking_context import BlockingContext
from holdfast.errors import RunFailed
from tests.engine.support import House

METHODS = sorted(
    name
    for name, method in vars(BlockingContext).items()
    if inspect.isfunction(method) and not name.startswith("_") and name != "model"
)


@pytest.mark.parametrize("name", METHODS)
def test_its_methods_have_the_same_parameters(name: str) -> None:
    own, other = (inspect.signature(getattr(kind, name)) for kind in (BlockingContext, Context))
    assert own.parameters == other.parameters


async def echo(text: str) -> str:
    return text


async def test_a_plain_node_records_no_arguments_where_it_says_so(
    house: House, hf: Holdfast
) -> None:
    graph = Graph("g", dict)

    @graph.node
    def node(state: Any, ctx: Any) -> Any:
        return {"said": ctx.with_options(record="none").call(echo, "a secret")}

    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        assert await run.result(timeout=60) == {"said": "a secret"}
    (call,) = [entry for entry in (await run.history()).entries if entry.kind == "call"]
    assert "arguments" not in call.details


async def test_a_plain_node_that_waits_with_a_timeout_is_told_so(
    house: House, hf: Holdfast
) -> None:
    graph = Graph("g", dict)

    @graph.node
    def node(state: Any, ctx: Any) -> None:
        ctx.wait(signal("go"), timeout=5)

    async with house.worker(hf, graph):
        run = await hf.start(graph)
        with pytest.raises(RunFailed, match="wait takes max_wait=…, not timeout=…"):
            await run.result(timeout=60)
