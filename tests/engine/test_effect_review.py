"""What hostile nodes, tools and moments do to effects."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import CallFailed
from tests.engine.asking import graph_of
from tests.engine.staging import staged, write_of
from tests.engine.support import (
    Gate,
    House,
    StepClock,
    incompressible,
    store_without_blobs,
    tenant_key,
)


def calls_in(entries: Any) -> list[str]:
    return [entry.details["call"] for entry in entries if entry.kind == "call"]


async def test_a_plain_node_calls_plain_functions_though_every_thread_is_taken(
    house: House, hf: Holdfast
) -> None:
    def double(n: int) -> int:
        return 2 * n

    def node(state: Any, ctx: Any) -> Any:
        return {"n": ctx.call(double, 2)}

    graph = graph_of(node)
    async with house.worker(hf, graph, concurrency=1):
        run = await hf.start(graph, id="doc-42")
        assert await run.result(timeout=5) == {"n": 4}


async def test_what_is_too_large_takes_nothing_else_with_it() -> None:
    clock, begun = StepClock(), asyncio.Event()

    async def large() -> bytes:
        return incompressible(1, 500_000)

    async def small(n: int) -> int:
        await begun.wait()
        return n

    async def node(state: Any, ctx: Any) -> Any:
        async def one() -> None:
            with pytest.raises(CallFailed, match="larger values need a bucket"):
                await ctx.call(large)

        async def other(n: int) -> None:
            await ctx.call(small, n)

        async with asyncio.TaskGroup() as group:
            group.create_task(one())
            for n in range(3):
                group.create_task(other(n))
            begun.set()
        return {}

    graph = graph_of(node)
    store = store_without_blobs(clock)
    async with Holdfast("", store=store, clock=clock) as hf, House.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        await run.result(timeout=60)
        assert len(calls_in((await run.history()).entries)) == 4


async def test_a_call_that_ends_while_others_are_being_written_is_written_soon(
    house: House,
) -> None:
    before, after, begun, second = Gate(), Gate(), asyncio.Event(), asyncio.Event()

    async def first() -> int:
        return 1

    async def later() -> int:
        begun.set()
        await second.wait()
        return 2

    async def node(state: Any, ctx: Any) -> Any:
        task = asyncio.create_task(ctx.call(later))
        await begun.wait()
        await ctx.call(first)
        await before.pass_through()
        await task
        await after.pass_through()

    graph = graph_of(node)
    hf, stage = staged(house)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        await before.waited_at()
        generation = (await run.get()).generation
        record = stage.hold(write_of(tenant_key("doc-42").pk, f"J#{generation}#00000001"))
        house.clock.advance(0.005)
        await record.reached()
        second.set()
        before.open()
        await after.waited_at()
        record.release()
        async with asyncio.timeout(10):
            while len(calls_in((await run.history()).entries)) < 2:
                house.clock.advance(0.005)
        after.open()
        await run.result(timeout=60)
