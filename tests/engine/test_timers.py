"""What a timer leaves behind disturbs nobody."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Graph
from holdfast.errors import RunFailed
from tests.engine.support import House


async def test_a_sleep_that_outlives_its_node_fails_it_and_ends(house: House) -> None:
    graph = Graph("g", dict)
    leaked: list[asyncio.Task[None]] = []

    @graph.node
    async def first(state: Any, ctx: Any) -> Any:
        leaked.append(asyncio.create_task(ctx.sleep(1)))
        await house.clock.sleep(0)

    hf = house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph)
        await house.quiet(worker)
        await house.move(2, worker)
        with pytest.raises(RunFailed, match=r"did not await ctx\.sleep"):
            await run.result()
        await asyncio.wait(leaked)
        assert leaked[0].cancelled()
