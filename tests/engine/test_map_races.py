"""A worker stalls or dies at any point of a map: each item counts once, and nothing is left over."""

from __future__ import annotations

import asyncio
import functools
import itertools
from typing import Any, Literal, TypeAlias

import pytest

from holdfast import Graph, Holdfast
from holdfast.errors import RunCancelled
from holdfast.engine.runs.map_lanes import chunk_id
from holdfast.model.map import MapChunk, MapLane
from holdfast.records.head import Head, head_of
from holdfast.records.keys import RunKey, map_lanes_range
from holdfast.records.map import lane_of_item
from holdfast.storage import Put
from holdfast.storage.operations import Operation, TransactItems, WriteItem
from tests.engine.families import freeze
from tests.engine.staging import Side, Which, played, staged
from tests.engine.support import LOOPS_A_WORKER, Gate, House, kill, store_of, tenant_key

LEASE_SECONDS = 1_000
WRITES_MIN = 20
PARENT = "parent"
COUNT, CHUNK = 9, 2
FAILS = 4
Point: TypeAlias = Literal["map", "lane", "chunk"]


def mapping(ran: list[int] | None = None, gate: Gate | None = None) -> Graph:
    """Return a graph that maps 9 items in 2 lanes; one of them fails, and that is tolerated."""
    graph = Graph("mapping", dict)

    @graph.item
    async def square(index: int, ctx: Any) -> int:
        if ran is not None:
            ran.append(index)
        if gate is not None:
            await gate.pass_through()
        if index == FAILS:
            raise ValueError("unlucky")
        return index * index

    @graph.node
    async def begin(state: Any, ctx: Any) -> Any:
        cursor = await ctx.map(square, COUNT, chunk=CHUNK, concurrency=4, tolerate=1)
        total = await ctx.mapped(cursor).fold(lambda n, e: n + (e.result or 0), 0)
        return {"total": total, "failed": cursor.failed, "succeeded": cursor.succeeded}

    return graph


async def parent_of(hf: Holdfast) -> Head:
    item = await store_of(hf).table.get(tenant_key(PARENT, hf.run(PARENT).tenant).head)
    assert item is not None
    return head_of(item)


async def chunk_rows(hf: Holdfast, *, round: int = 0) -> list[Head]:
    """Return the rows of the chunks of the map, in the order of their numbers."""
    parent, found = await parent_of(hf), list[Head]()
    for number in range(-(-COUNT // CHUNK)):
        chunk = MapChunk(map="0.1", lane=0, number=number, first=0, count=0, round=round)
        key = RunKey(parent.key.tenant, chunk_id(parent.key, parent.generation, chunk))
        item = await store_of(hf).table.get(key.head)
        found += [] if item is None else [head_of(item)]
    return found


async def lanes_of(hf: Holdfast) -> list[MapLane]:
    """Return the lanes of the map of a run."""
    parent = await parent_of(hf)
    where = map_lanes_range(parent.generation, "0.1")
    return [lane_of_item(item) async for item in store_of(hf).table.query_all(parent.key.pk, where)]


@pytest.mark.parametrize("side", ["before", "after"])
async def test_a_worker_dies_at_every_write_of_a_map(house: House, side: Side) -> None:
    for number in itertools.count(1):
        graph, tenant = mapping(), f"{side}-{number}"
        client = house.open(tenant=tenant)
        await client.start(graph, id=PARENT)
        first, stage = staged(house)
        dying = first.worker([graph], poll=0.2, lease=LEASE_SECONDS)
        stage.die_at(number, side, functools.partial(kill, dying))
        lived = await played(house, dying, (0, 1, 1))
        async with house.worker(house.open(), graph) as worker:
            for seconds in (LEASE_SECONDS + 1, *[1] * 6):
                house.clock.advance(seconds)
                await house.patiently_quiet(worker)
        await whole(client)
        if lived:
            assert number > WRITES_MIN
            stage.live_on()
            await dying.stop()
            return


async def whole(hf: Holdfast) -> None:
    run = hf.run(PARENT)
    expected = sum(n * n for n in range(COUNT) if n != FAILS)
    assert await run.result(timeout=60) == {"total": expected, "failed": 1, "succeeded": COUNT - 1}
    progress = await run.map("0.1").progress()
    assert (progress.status, progress.succeeded, progress.failed) == ("finished", COUNT - 1, 1)
    assert [entry.index async for entry in run.map("0.1").items()] == list(range(COUNT))
    assert (await run.get()).epoch < 12  # the worker that died has claimed it, too
    rows = await chunk_rows(hf)
    assert [head.chunk.number for head in rows if head.chunk is not None] == list(range(5))
    assert all(head.status == "finished" and head.index_key is None for head in rows)
    for lane in await lanes_of(hf):
        assert (lane.at, lane.left, lane.stopped) == (None, 0, "")
    ends = [
        entry
        for entry in (await run.history()).entries
        if entry.kind == "signal" and entry.details["name"].startswith("%map.")
    ]
    assert len(ends) == 1
