"""Stops maps: no chunk of a stopped map starts, not even by a process that wakes up late."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from holdfast.engine.journal.reader import load_journal
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.cancelling import cancel_run
from holdfast.engine.runs.chunk_program import chunk_entries
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.engine.runs.map_chunks import chunk_id, list_maps, read_lane, read_lanes
from holdfast.engine.runs.map_results import MapPlace, read_chunk, round_version, write_results
from holdfast.engine.runs.rows import read_row
from holdfast.errors import ConditionFailed, JournalDamaged, RunEnded, RunNotFound
from holdfast.model.map import MapChunk, MapLane, lane_of_new_round, new_lane
from holdfast.records import run_writes
from holdfast.records.head import ENDED, SCHEMA, Head, RunRef
from holdfast.records.keys import RunKey
from holdfast.records.map import create_lane_write, lane_write

__all__ = ["cancel_chunk", "stop_map", "stop_maps", "take_over_chunk"]

_CANCELLED = "its map has ended"


async def stop_map(
    kernel: Kernel, workers: LocalWorkers, place: MapPlace, origin: Head, *, why: str
) -> None:
    """Stop all lanes of a map, and cancel the chunks that run, also those not written yet."""
    lanes = {lane.lane: lane for lane in await read_lanes(kernel, place)}
    for number in range(place.spec.lanes):
        lane = lanes.get(number)
        if lane is not None and lane.round < place.spec.round and lane.at is not None:
            await take_over_chunk(kernel, workers, place, origin, lane)
        if lane is None or lane.round < place.spec.round or lane.at is not None or lane.left:
            lane = await _stop_lane(kernel, place, number, why)
        if lane is not None and lane.at is not None and lane.round == place.spec.round:
            chunk = place.spec.chunk_of(lane.at, lane.lane, lane.round)
            await cancel_chunk(kernel, workers, place, origin, chunk)


async def _stop_lane(kernel: Kernel, place: MapPlace, number: int, why: str) -> MapLane | None:
    """Stop a lane, so that no chunk of it starts any more; return it as it is then."""
    while True:
        lane = await read_lane(kernel, place, number)
        if lane is None:
            # A stalled owner of the run may be about to begin it.
            stopped = msgspec.structs.replace(new_lane(place.spec, number), stopped=why)
            create = create_lane_write(
                place.run, place.generation, place.spec, stopped, token=kernel.ids.new()
            )
            with suppress(ConditionFailed):
                await kernel.resolve_write(kernel.maps, create)
                return stopped
            continue
        if lane.round < place.spec.round:
            # The same: it would begin the lane again.
            begun = lane_of_new_round(place.spec, lane)
            stopped = msgspec.structs.replace(begun, stopped=why)
        elif lane.stopped or lane.round > place.spec.round:
            return lane
        else:
            stopped = msgspec.structs.replace(lane, step=lane.step + 1, stopped=why)
        write = lane_write(
            place.run, place.generation, place.spec.map, stopped, token=kernel.ids.new()
        )
        with suppress(ConditionFailed):
            await kernel.resolve_write(kernel.maps, write)
            return stopped


async def cancel_chunk(
    kernel: Kernel, workers: LocalWorkers, place: MapPlace, origin: Head, chunk: MapChunk
) -> None:
    """Cancel the run of a chunk; if it does not exist, write a row that keeps it from starting."""
    key = RunKey(place.run.tenant, chunk_id(place.run, place.generation, chunk))
    while True:
        with suppress(RunEnded):
            try:
                await read_row(kernel, key)
                row = await cancel_run(kernel, key, reason=_CANCELLED, workers=workers)
                workers.interrupt(key)
                if row.status not in ENDED and row.owner is None and row.index_key is not None:
                    workers.offer(row.index_key)
                return
            except RunNotFound:
                placeholder = _cancelled_chunk(kernel, place, origin, key, chunk)
                write = run_writes.create_write(
                    placeholder, now_ms=kernel.clock.now_ms(), token=kernel.ids.new()
                )
                try:
                    await kernel.resolve_write(kernel.heads, write)
                except ConditionFailed:
                    continue  # the chunk was written meanwhile
        return


async def take_over_chunk(
    kernel: Kernel, workers: LocalWorkers, place: MapPlace, parent: Head, lane: MapLane
) -> None:
    """End the chunk at which a lane of an earlier round is, and store the results that it has.

    Its run may go on, or it was cancelled and not settled: the retry of the parent came first.
    """
    assert lane.at is not None
    chunk = place.spec.chunk_of(lane.at, lane.lane, lane.round)
    await cancel_chunk(kernel, workers, place, parent, chunk)
    run = RunKey(place.run.tenant, chunk_id(place.run, place.generation, chunk))
    try:
        head = await read_row(kernel, run)
        if head.freed:
            return  # it never ran, or its journal is gone
        execution = (await load_journal(kernel, head)).execution
    except (JournalDamaged, RunNotFound):
        return
    entries = {entry.index: entry for entry in chunk_entries(execution)}
    for index, entry in (await read_chunk(kernel, place, chunk.number)).items():
        if entry.ok or index not in entries:
            entries[index] = entry
    version = round_version(chunk.round)
    await write_results(kernel, place, chunk.number, version, entries.values())


def _cancelled_chunk(
    kernel: Kernel, place: MapPlace, origin: Head, key: RunKey, chunk: MapChunk
) -> Head:
    now = kernel.clock.now_ms()
    return Head(
        key=key,
        graph=origin.graph,
        version=origin.version,
        schema=SCHEMA,
        list_shards=origin.list_shards,
        status="cancelled",
        generation=kernel.ids.new(),
        epoch=1,
        owner=None,
        input=None,
        created_ms=now,
        updated_ms=now,
        starts_ms=now,
        expires_ms=origin.expires_ms,
        ttl=origin.ttl,
        kept=origin.kept,
        parent=RunRef(place.run.id, place.generation),
        chunk=chunk,
        user=origin.user,
        freed=True,
    )


async def stop_maps(kernel: Kernel, workers: LocalWorkers, head: Head) -> None:
    """Stop all maps of a run that has ended, and cancel their chunks."""
    for spec in await list_maps(kernel, head.key, head.generation):
        place = MapPlace(head.key, head.generation, spec)
        await stop_map(kernel, workers, place, head, why="ended")
