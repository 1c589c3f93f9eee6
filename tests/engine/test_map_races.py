"""A worker stalls or dies at any point of a map: each item counts once, and nothing stays open."""

from __future__ import annotations

import asyncio
import functools
import itertools
from typing import Any, Literal, TypeAlias

import pytest

from holdfast import Graph, Holdfast, MappedItem
from holdfast.engine.runs.map_chunks import chunk_id
from holdfast.errors import RunCancelled
from holdfast.model.map import MapChunk, MapLane
from holdfast.records.head import Head, head_of
from holdfast.records.keys import RunKey, map_lanes_range
from holdfast.records.map import lane_of_item
from holdfast.storage import Put
from holdfast.storage.operations import Operation, TransactItems, WriteItem
from tests.engine.families import freeze
from tests.engine.staging import Side, Which, played, staged
from tests.engine.support import Gate, House, kill, store_of, tenant_key

LEASE_SECONDS = 1_000
WRITES_MIN = 20
PARENT = "parent"
COUNT, CHUNK = 9, 2
FAILS = 4
Point: TypeAlias = Literal["map", "lane", "chunk"]


def added(total: int, entry: MappedItem) -> int:
    return total + (entry.result or 0)


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
        total = await ctx.mapped(cursor).fold(added, 0)
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


def at(point: Point) -> Which:
    """Return which operation is the one: the item of the map, of a lane, or the row of a chunk."""

    def which(operation: Operation) -> bool:
        if not isinstance(operation, WriteItem) or not isinstance(operation.write, Put):
            return False
        key = operation.write.key
        if point == "chunk":
            return "chunk" in operation.write.item
        return key.sk.startswith("FAN#" if point == "map" else "FANLANE#")

    return which


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("point", ["map", "lane", "chunk"])
async def test_an_owner_that_stalls_while_its_run_is_cancelled(
    house: House, point: Point, side: Side
) -> None:
    """It wakes up late: nothing more of the map runs then, and nothing stays open."""
    ran: list[int] = []
    graph, client = mapping(ran), house.open()
    first, stage = staged(house)
    stalled = house.worker(first, graph, lease=LEASE_SECONDS)
    hold = stage.hold(at(point), side=side)
    await stalled.start()
    await first.start(graph, id=PARENT)
    await hold.reached()
    freeze(stalled)
    async with house.worker(client, graph) as worker:
        await client.run(PARENT).cancel("enough")
        house.clock.advance(LEASE_SECONDS + 1)
        await house.patiently_quiet(worker)
        with pytest.raises(RunCancelled):
            await client.run(PARENT).result(timeout=60)
        ended = list(ran)
        hold.release()
        await asyncio.gather(*stalled.drivers.tasks, return_exceptions=True)
        house.clock.advance(1)
        await house.patiently_quiet(worker)
    assert ran == ended
    rows = await chunk_rows(client)
    assert all(head.status in ("cancelled", "finished") for head in rows)
    assert all(head.index_key is None for head in rows)
    assert all(lane.stopped or lane.at is None for lane in await lanes_of(client))
    kill(stalled)


async def test_a_run_that_is_cancelled_ends_its_chunks(house: House, hf: Holdfast) -> None:
    ran, gate = list[int](), Gate()
    graph = mapping(ran, gate)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id=PARENT)
        await gate.waited_at(4)
        await run.cancel("enough")
        await house.quiet(worker)
        assert (await run.map("0.1").progress()).status == "stopped"
    assert len(ran) == 4
    rows = await chunk_rows(hf)
    assert [head.status for head in rows] == ["cancelled", "cancelled"]
    assert all(head.index_key is None for head in rows)
    assert {lane.stopped for lane in await lanes_of(hf)} == {"ended"}


async def test_a_chunk_that_an_operator_cancels_counts_its_items_as_failed(
    house: House, hf: Holdfast
) -> None:
    gate, graph = Gate(), Graph("mapping", dict)

    @graph.item
    async def wait(index: int) -> int:
        if index == 0:
            await gate.pass_through()
        return index

    @graph.node
    async def begin(state: Any, ctx: Any) -> Any:
        cursor = await ctx.map(wait, 3, chunk=1, concurrency=4, tolerate=2)
        return {"failed": cursor.failed}

    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id=PARENT)
        await gate.waited_at()
        held = (await chunk_rows(hf))[0]
        await hf.run(held.key.id).cancel("stuck")
        assert await run.result(timeout=60) == {"failed": 1}
        await house.quiet(worker)
    (failed,) = [entry async for entry in run.map("0.1").failed()]
    assert failed.failure is not None
    assert (failed.index, failed.failure.type) == (0, "ChunkLost")
    assert "cancelled" in failed.failure.message


async def test_lanes_that_end_side_by_side_tell_the_parent(house: House) -> None:
    """Both have written their item before either reads all lanes."""
    graph = mapping()
    hf, stage = staged(house)

    def ends_a_lane(operation: Operation) -> bool:
        if not isinstance(operation, WriteItem):
            return False
        write = operation.write
        if isinstance(write, Put) or not write.key.sk.startswith("FANLANE#"):
            return False
        return lane_of_item({**write.set, "PK": "", "SK": ""}).at is None  # type: ignore[union-attr]

    holds = [stage.hold(ends_a_lane, side="after") for _ in range(2)]
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id=PARENT)
        await asyncio.gather(*(hold.reached() for hold in holds))
        assert (await run.get()).status == "waiting"
        for hold in holds:
            hold.release()
        assert (await run.result(timeout=60))["failed"] == 1
        await house.quiet(worker)
    await whole(hf)


async def test_a_lane_without_chunks_takes_one_of_another_lane(house: House) -> None:
    gate, graph = Gate(), Graph("mapping", dict)

    @graph.item
    async def slow(index: int) -> int:
        if index == 0:
            await gate.pass_through()
        return index * index if index != FAILS else 1 // 0

    @graph.node
    async def begin(state: Any, ctx: Any) -> Any:
        cursor = await ctx.map(slow, COUNT, chunk=CHUNK, concurrency=4, tolerate=1)
        total = await ctx.mapped(cursor).fold(added, 0)
        return {"total": total, "failed": cursor.failed, "succeeded": cursor.succeeded}

    hf, stage = staged(house)
    hold = stage.hold(lambda operation: isinstance(operation, TransactItems), side="after")
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id=PARENT)
        await hold.reached()
        hold.release()
        await gate.waited_at()
        # All chunks but the first one run in the other lane.
        while (await run.map("0.1").progress()).succeeded < COUNT - CHUNK - 1:
            await house.clock.sleep(0)
        (first, second) = await lanes_of(hf)
        assert (first.at, first.left, first.chunks) == (0, 0, 0)
        assert (second.at, second.left, second.chunks) == (None, 0, 4)
        gate.open()
        await run.result(timeout=60)
        await house.quiet(worker)
    await whole(hf)
