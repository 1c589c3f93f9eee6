"""A tenant is part of every key: no method shows or changes a run of another tenant."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from holdfast import Budget, Graph, Holdfast, days, signal
from holdfast.errors import RunNotFound
from holdfast.handle import RunHandle
from tests.engine.support import House, store_of

RUN, SESSION, USER = "doc-42", "chat", "ann"
GRAPH = Graph("asking", dict)


@GRAPH.node
async def ask(state: Any, ctx: Any) -> Any:
    return {"said": await ctx.wait(signal("answer"))}


async def all_of(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


async def seen(steps: AsyncIterator[Any]) -> list[int]:
    """Return how many runs a bulk operation met, where it met any."""
    return [step.seen for step in await all_of(steps) if step.seen]


async def listed(hf: Holdfast) -> list[Any]:
    return (await hf.list()).runs


Ask = Callable[[Holdfast], Awaitable[Any]]
OF_ONE_RUN: dict[str, Ask] = {
    "cancel": lambda hf: hf.run(RUN).cancel(),
    "children": lambda hf: hf.run(RUN).children(),
    "events": lambda hf: all_of(hf.run(RUN).events(follow=False, ephemeral=True)),
    "extend": lambda hf: hf.run(RUN).extend(days(30)),
    "get": lambda hf: hf.run(RUN).get(),
    "history": lambda hf: hf.run(RUN).history(),
    "input": lambda hf: hf.run(RUN).input(),
    "map": lambda hf: hf.run(RUN).map("0.1").progress(),
    "maps": lambda hf: hf.run(RUN).maps(),
    "resolve": lambda hf: hf.run(RUN).resolve("0" * 16, void=True),
    "retry": lambda hf: hf.run(RUN).retry(),
    "result": lambda hf: hf.run(RUN).result(timeout=60),
    "set_aside": lambda hf: hf.run(RUN).set_aside(),
    "set_budget": lambda hf: hf.run(RUN).set_budget(Budget(usd=100)),
    "signal": lambda hf: hf.run(RUN).signal("answer", "mine"),
    "spending": lambda hf: hf.run(RUN).spending(),
    "state": lambda hf: hf.run(RUN).state(),
    "tokens": lambda hf: all_of(hf.run(RUN).tokens(follow=False)),
    "until": lambda hf: hf.run(RUN).until("waiting", timeout=60),
    "waits": lambda hf: hf.run(RUN).waits(),
}
OF_MANY: dict[str, Ask] = {
    "ambiguous": lambda hf: all_of(hf.ambiguous()),
    "cancel_all": lambda hf: seen(hf.cancel_all(everything=True)),
    "session_queue": lambda hf: hf.session_queue(SESSION, user=USER),
    "list": listed,
    "retry_all": lambda hf: seen(hf.retry_all(everything=True)),
}


def methods_of(kind: type) -> dict[str, Any]:
    return {
        name: method
        for name, method in vars(kind).items()
        if not name.startswith("_") and inspect.isfunction(method)
    }


def test_every_method_that_reaches_a_tenants_runs_is_tried() -> None:
    named = {
        name
        for name, method in methods_of(Holdfast).items()
        if "tenant" in inspect.signature(method).parameters
    }
    assert named == {*OF_MANY, "run", "start"}
    assert set(methods_of(RunHandle)) == {*OF_ONE_RUN}


@pytest.mark.parametrize("name", [*OF_ONE_RUN, *OF_MANY])
async def test_no_method_shows_or_changes_a_run_of_another_tenant(house: House, name: str) -> None:
    hf, other = house.open(tenant="acme"), house.open(tenant="umbrella")
    async with house.worker(hf, GRAPH) as worker:
        await hf.start(GRAPH, id=RUN, session=SESSION, user=USER, budget=Budget(usd=1))
        await house.quiet(worker)
        before = [item async for item in store_of(hf).table.query_all(f"RUN#acme#{RUN}")]
        if name in OF_ONE_RUN:
            with pytest.raises(RunNotFound):
                await OF_ONE_RUN[name](other)
        else:
            assert await OF_MANY[name](other) == []
        await house.quiet(worker)
        assert [item async for item in store_of(hf).table.query_all(f"RUN#acme#{RUN}")] == before
        assert (await hf.run(RUN).get()).status == "waiting"
