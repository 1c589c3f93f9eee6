"""The end of life of a run with maps: its results and its chunks go with its own data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import Graph, signal
from holdfast.errors import RunNotFound
from tests.engine.contents import blobs_in, stored
from tests.engine.support import Gate, House, blob_keys, incompressible

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
