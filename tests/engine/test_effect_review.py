"""What hostile nodes, tools and moments do to effects."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import CallFailed
from tests.engine.asking import graph_of
from tests.engine.support import (
    House,
    StepClock,
    incompressible,
    store_without_blobs,
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
