"""The end of life of a run with maps: its results and its chunks go with its own data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import Graph, Holdfast, signal
from holdfast.clock import SeededIds
from holdfast.errors import RunNotFound
from holdfast.storage import Meter, Store
from holdfast.storage.sqlite import SqliteEngine
from tests.engine.contents import blobs_in, stored
from tests.engine.support import Gate, House, StepClock, blob_keys, incompressible

SECRET = "Kaltwassersatz"
EXPIRES = 3600
LAST_HOUR_SECONDS = 3600
DAY_SECONDS = 24 * 3600
RETENTION_SECONDS = 2 * DAY_SECONDS


def mapping(gate: Gate | None = None, *, waits: bool = True, large: int = 100_000) -> Graph:
    """Return a graph that maps four items, and waits; the last item waits at the gate."""
    graph, scan = Graph("mapping", dict), incompressible(1, large).hex()

    @graph.item
    async def read(name: str, ctx: Any) -> str:
        if gate is not None and ctx.index == 3:
            await gate.pass_through()
        return f"{name} {ctx.given['title']} " + (scan if ctx.index == 1 else "")

    @graph.node
    async def begin(state: Any, ctx: Any) -> Any:
        names = [f"{SECRET} {number}" for number in range(4)]
        cursor = await ctx.map(read, names, chunk=1, concurrency=4, given={"title": SECRET})
        return {"read": cursor.succeeded}

    @graph.node
    async def end(state: Any, ctx: Any) -> Any:
        if waits:
            await ctx.wait(signal("never"))
        return {}

    graph.route(begin, end)
    return graph


def contents(folder: Path) -> str:
    (file,) = folder.glob("*.db")
    return stored(file, blobs_in(folder))


async def test_an_expired_run_leaves_nothing_of_its_map(house: House, tmp_path: Path) -> None:
    graph, hf = mapping(), house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {}, expires=EXPIRES)
        await house.patiently_quiet(worker)
        assert (await run.get()).status == "waiting"
        assert contents(tmp_path).count(SECRET) > 8
        await house.move(EXPIRES, worker)
        await house.patiently_quiet(worker)
        assert (await run.get()).status == "expired"
        assert SECRET not in contents(tmp_path)
        assert await blob_keys(hf) == []


async def test_without_blobs_an_expired_run_leaves_nothing_of_its_map(tmp_path: Path) -> None:
    clock = StepClock()
    engine = SqliteEngine(str(tmp_path / "bare.db"), clock=clock)
    store = Store(engine, None, url="sqlite://", meter=Meter())
    house, graph = House("", clock), mapping(large=1)
    hf = Holdfast("", store=store, clock=clock, ids=SeededIds(1, clock))
    async with hf, house.worker(hf, graph) as worker:
        run = await hf.start(graph, {}, expires=EXPIRES)
        await house.patiently_quiet(worker)
        assert contents(tmp_path).count(SECRET) > 8
        await house.move(EXPIRES, worker)
        await house.patiently_quiet(worker)
        assert (await run.get()).status == "expired"
        assert SECRET not in contents(tmp_path)
        assert [each.total for each in await run.maps()] == [4]


async def test_an_item_that_ends_after_the_expiry_leaves_nothing(
    house: House, tmp_path: Path
) -> None:
    """The run is closed by a process that has no item under way, while another one still has."""
    gate = Gate()
    graph, hf, other = mapping(gate), house.open(), house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {}, expires=EXPIRES)
        await gate.waited_at()
        async with house.worker(other, graph) as second:
            house.clock.advance(EXPIRES)
            await house.clock.asleep(6)
            gate.open()
            await house.patiently_quiet(worker, second)
        assert (await run.get()).status == "expired"
    assert SECRET not in contents(tmp_path)
    assert await blob_keys(hf) == []


async def test_the_results_and_the_chunks_of_a_finished_run_are_freed_before_its_rows(
    house: House, tmp_path: Path
) -> None:
    graph, hf = mapping(waits=False), house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {}, expires=EXPIRES)
        assert (await run.result(timeout=60)) is not None
        await house.patiently_quiet(worker)
        kept = await blob_keys(hf)
        # The results of four chunks, their values, and the journal of the chunk with the large one.
        assert len(kept) >= 9
        await house.move(EXPIRES + RETENTION_SECONDS - LAST_HOUR_SECONDS - 2, worker)
        assert await blob_keys(hf) == kept
        await house.move(4, worker)
        await house.patiently_quiet(worker)
        assert await blob_keys(hf) == []
        assert (await run.get()).status == "finished"
        with pytest.raises(RunNotFound):
            await run.map("0.1").retry(0)


async def test_a_sweep_keeps_the_blobs_of_a_map_as_long_as_its_run(house: House) -> None:
    graph, hf = mapping(), house.open()
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, {}, expires=3 * DAY_SECONDS)
        await house.patiently_quiet(worker)
    kept = await blob_keys(hf)
    house.clock.advance(2 * DAY_SECONDS)
    async for _ in hf.sweep_blobs(older_than=DAY_SECONDS):
        pass
    assert await blob_keys(hf) == kept
    # No worker runs any more: the rows are past their ttl, and the blobs are orphans.
    house.clock.advance(DAY_SECONDS + RETENTION_SECONDS + 60)
    async for _ in hf.sweep_blobs(older_than=DAY_SECONDS):
        pass
    assert await blob_keys(hf) == []
