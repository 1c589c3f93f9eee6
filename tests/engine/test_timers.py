"""What a timer leaves behind disturbs nobody."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import Graph
from tests.engine.support import House


async def test_a_sleep_that_outlives_its_node_answers_no_other(house: House) -> None:
    graph = Graph("g", dict)
    leaked: list[asyncio.Task[None]] = []

    @graph.node
    async def first(state: Any, ctx: Any) -> Any:
        leaked.append(asyncio.create_task(ctx.sleep(1)))
        await house.clock.sleep(0)

    @graph.node
    async def second(state: Any, ctx: Any) -> Any:
        await ctx.sleep(3600)

    graph.route(first, second)
    hf = house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph)
        await house.quiet(worker)
        await house.move(2, worker)
        assert (await run.get()).status == "waiting"
        await asyncio.wait(leaked)
        assert leaked[0].exception() is not None
        await house.move(3600, worker)
        await run.result()
