"""Waits, sleeps and children inside of calls: a call from its record does not count for others."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Graph, Holdfast, signal
from tests.engine.support import House, chain

GO = signal("go")


async def asks(name: str, ctx: Any) -> str:
    return f"{name}: {await ctx.wait(GO)}"


def asks_plainly(name: str, ctx: Any) -> str:
    return f"{name}: {ctx.wait(GO)}"


async def asks_for_the_first(name: str, ctx: Any) -> str:
    return f"{name}: {(await ctx.wait_any(GO)).payload}"


async def asks_inside(name: str, ctx: Any) -> str:
    return await ctx.call(asks, name)


@pytest.mark.parametrize("tool", [asks, asks_plainly, asks_for_the_first, asks_inside])
async def test_each_call_gets_an_answer_of_its_own(house: House, hf: Holdfast, tool: Any) -> None:
    graph = Graph("g", dict)

    @graph.node
    async def node(state: Any, ctx: Any) -> Any:
        said = [await ctx.call(tool, name) for name in ("a", "b")]
        said.append(f"node: {await ctx.wait(GO)}")
        return {"said": [*said, await ctx.call(tool, "c")]}

    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        for number in range(4):
            await house.quiet(worker)
            assert (await run.get()).status == "waiting"
            await run.signal("go", number)
            await house.move(1, worker)
        assert await run.result(timeout=60) == {"said": ["a: 0", "b: 1", "node: 2", "c: 3"]}


async def test_each_call_sleeps_its_own_time(house: House, hf: Holdfast) -> None:
    async def sleeps(ctx: Any) -> None:
        await ctx.sleep(3600)

    graph = Graph("g", dict)

    @graph.node
    async def node(state: Any, ctx: Any) -> Any:
        for _ in range(3):
            await ctx.call(sleeps)

    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        for _ in range(2):
            await house.move(3601, worker)
            assert (await run.get()).status == "waiting"
        await house.move(3601, worker)
        await run.result(timeout=60)


async def test_each_call_has_a_child_of_its_own(house: House, hf: Holdfast) -> None:
    child = chain("child", 1, lambda number: {}, node0=_echo)

    async def delegates(name: str, ctx: Any) -> Any:
        return (await ctx.run(child, {"name": name}))["echo"]

    graph = Graph("g", dict)

    @graph.node
    async def node(state: Any, ctx: Any) -> Any:
        first = await ctx.call(delegates, "a")
        await ctx.wait(GO)
        return {"names": [first, await ctx.call(delegates, "b")]}

    async with house.worker(hf, graph, child) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        await house.move(1, worker)
        await run.signal("go")
        await house.move(1, worker)
        await house.move(1, worker)
        assert await run.result(timeout=60) == {"names": ["a", "b"]}


async def _echo(state: Any) -> Any:
    return {"echo": state["name"]}
