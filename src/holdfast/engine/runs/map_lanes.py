"""The lanes of a map: what follows from the end of a chunk. Its first lines are the protocol.

1. A chunk that has ended stores its results, in a blob that nothing replaces.
2. It writes the item of its lane: what its items did, and which chunk of the lane comes next. The
   write names the step before it, so it counts once. A lane without chunks of its own takes the
   last one of another lane: one transaction changes both.
3. If the lane is stopped, nothing follows. Otherwise the process that settles the chunk starts the
   next one, whose id follows from the map, its number and the round.
4. A lane that ends writes its item first, and then reads all lanes. The one that finds that all
   have ended tells the parent. Two may find that: both send the same signal, which counts once.
5. A chunk whose items failed reads all lanes, too. If more failed than the map tolerates, it stops
   every lane, cancels the chunks that run, and tells the parent.

6. A run that was retried begins another round, lane by lane. First it ends the chunk at which the
   lane is, and stores what that has done: its journal takes no more results. Only an owner with a
   later epoch than that of the last round begins one.

All of this is an obligation of the chunk: a process that dies in between leaves the chunk due, and
the next one does it again. The process that ends the parent stops the lanes in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from holdfast.engine.journal.reader import load_journal
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.chunk_program import chunk_entries
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.engine.runs.map_chunks import (
    ChunkOrigin,
    lanes_here,
    origin_of,
    read_lane,
    read_lanes,
    read_map,
    start_chunk,
)
from holdfast.engine.runs.map_results import (
    MapPlace,
    delete_results,
    read_chunk,
    retry_version,
    round_version,
    write_results,
)
from holdfast.engine.runs.map_stopping import stop_map
from holdfast.engine.runs.rows import is_generation_freed, read_row
from holdfast.engine.runs.signalling import send_signal
from holdfast.errors import (
    ConditionFailed,
    JournalDamaged,
    RunClosing,
    RunEnded,
    RunNotFound,
    TransactionCancelled,
)
from holdfast.model.event import Failure
from holdfast.model.execution import Execution
from holdfast.model.map import (
    NO_LANE,
    MapLane,
    MappedItem,
    lane_after,
    lane_with_given_away,
    lane_with_taken,
)
from holdfast.model.wait import MapWait
from holdfast.records.head import OPEN, Head
from holdfast.records.keys import RunKey
from holdfast.records.map import MapRetry, lane_write, retry_result_write

__all__ = ["deliver_map_end", "settle_chunk"]

_LOST = "ChunkLost"


async def _origin_of_chunk(kernel: Kernel, place: MapPlace, head: Head) -> ChunkOrigin | None:
    """Return what the next chunk has from the run of the map; None if that run has ended."""
    with suppress(RunNotFound):
        parent = await read_row(kernel, place.run)
        if parent.generation == place.generation and parent.status in OPEN:
            return origin_of(parent, head.payer)
    return None


# --- the end of a chunk ---------------------------------------------------------------------------


async def settle_chunk(
    kernel: Kernel, workers: LocalWorkers, head: Head, execution: Execution | None
) -> None:
    """Settle what follows from the end of a chunk; idempotent.

    Raises:
        OutcomeUnknown, StoreUnavailable: the outcome of a write is unknown.
    """
    assert head.chunk is not None
    assert head.parent is not None
    run = RunKey(head.key.tenant, head.parent.id)
    spec = await read_map(kernel, run, head.parent.generation, head.chunk.map)
    if spec is None:  # deleted with its run
        return
    place = MapPlace(run, head.parent.generation, spec)
    if head.chunk.lane == NO_LANE:
        await _settle_retry(kernel, place, head, execution)
        return
    if spec.round != head.chunk.round:
        return  # the round that began since takes over what this chunk has done
    lane = await read_lane(kernel, place, head.chunk.lane)
    while lane is not None and lane.round == head.chunk.round and lane.at == head.chunk.number:
        execution = await _known_execution(kernel, head, execution)
        entries, complete = await _final_entries(kernel, place, head, execution, lane)
        await _store_results(
            kernel,
            place,
            head.chunk.number,
            round_version(head.chunk.round),
            entries.values(),
            lane,
        )
        succeeded = sum(entry.ok for entry in entries.values())
        ended = lane_after(
            spec,
            lane,
            succeeded=succeeded,
            failed=len(entries) - succeeded,
            complete=complete,
            tokens=head.tokens if execution is None else execution.spent.tokens,
            nanodollars=head.nanodollars if execution is None else execution.spent.nanodollars,
        )
        lane = await _write_lane(kernel, place, ended)
    if lane is None or lane.round != head.chunk.round or lane.last != head.chunk.number:
        return  # another process settled it, and the lane has gone on
    await _continue_lane(kernel, workers, place, head, lane)


async def _known_execution(
    kernel: Kernel, head: Head, execution: Execution | None
) -> Execution | None:
    """Return the fold of an ended chunk; None if it cannot be read."""
    if execution is not None or head.freed or head.status in ("expired", "quarantined"):
        return execution
    try:
        return (await load_journal(kernel, head)).execution
    except JournalDamaged:
        return None


async def _final_entries(
    kernel: Kernel, place: MapPlace, head: Head, execution: Execution | None, lane: MapLane
) -> tuple[dict[int, MappedItem], bool]:
    """Return the entries of an ended chunk by index, and whether it has one for each item.

    Items without an end failed with the chunk, unless the map was stopped: then they never ran.
    """
    chunk = head.chunk
    assert chunk is not None
    entries: dict[int, MappedItem] = {}
    if chunk.round:
        earlier = await read_chunk(kernel, place, chunk.number)
        entries = {index: entry for index, entry in earlier.items() if entry.ok}
    if execution is not None:
        entries |= {entry.index: entry for entry in chunk_entries(execution)}
    failed = sum(not entry.ok for entry in entries.values())
    if not lane.stopped and failed <= place.spec.tolerated:
        for index in range(chunk.first, chunk.first + chunk.count):
            if index not in entries:
                entries[index] = MappedItem(index, None, _lost_failure(head, execution))
    return entries, len(entries) == chunk.count


def _lost_failure(head: Head, execution: Execution | None) -> Failure:
    """Return why an item of a chunk has no end."""
    status = head.status if execution is None else execution.ending or head.status
    failure = head.failure if execution is None else execution.failure
    reason = f": {failure.type}: {failure.message}" if failure is not None else ""
    return Failure(_LOST, f"its chunk, run {head.key.id!r}, is {status}{reason}")


async def _store_results(
    kernel: Kernel,
    place: MapPlace,
    number: int,
    version: str,
    entries: Iterable[MappedItem],
    lane: MapLane | None = None,
) -> None:
    """Store the results of a chunk, unless the data of the run that began the map is deleted.

    The lanes of a map are stopped before the data of its run is deleted.
    """
    await write_results(kernel, place, number, version, entries)
    # Checked after that: otherwise the data could be deleted between the check and the write.
    if (lane is None or lane.stopped) and await _is_run_freed(kernel, place):
        await delete_results(kernel, place, number, version)


async def _is_run_freed(kernel: Kernel, place: MapPlace) -> bool:
    return await is_generation_freed(kernel, place.run, place.generation)


async def _write_lane(kernel: Kernel, place: MapPlace, ended: MapLane) -> MapLane | None:
    """Write a lane after the end of a chunk; return the lane as it is then, by whichever write."""
    if ended.at is None and not ended.stopped:
        helped = await _take_from_another_lane(kernel, place, ended)
        if helped is not None:
            return helped
    return await _try_lane_write(kernel, place, ended)


async def _try_lane_write(kernel: Kernel, place: MapPlace, lane: MapLane) -> MapLane | None:
    write = lane_write(place.run, place.generation, place.spec.map, lane, token=kernel.ids.new())
    with suppress(ConditionFailed):
        await kernel.resolve_write(kernel.maps, write)
        return lane
    return await read_lane(kernel, place, lane.lane)


async def _take_from_another_lane(
    kernel: Kernel, place: MapPlace, ended: MapLane
) -> MapLane | None:
    """Let a lane without chunks take one of the lane with the most; return it as it is then.

    None if no other lane has a chunk that has not started.
    """
    lanes = await read_lanes(kernel, place)
    others = [lane for lane in lanes if lane.lane != ended.lane and not lane.stopped]
    # Lanes that end together look at different lanes first.
    others.sort(key=lambda lane: (-lane.left, (lane.lane - ended.lane) % place.spec.lanes))
    if not others or not others[0].left or others[0].round != ended.round:
        return None
    giver, number = lane_with_given_away(place.spec, others[0])
    taker = lane_with_taken(ended, number)
    token, map = kernel.ids.new(), place.spec.map
    writes = [
        lane_write(place.run, place.generation, map, lane, token=f"{token}.{n}")
        for n, lane in enumerate((taker, giver))
    ]
    try:
        await kernel.resolve_transaction(kernel.maps, writes)
        return taker
    except TransactionCancelled:
        return await read_lane(kernel, place, ended.lane)


async def _continue_lane(
    kernel: Kernel, workers: LocalWorkers, place: MapPlace, head: Head, lane: MapLane
) -> None:
    """Do what follows from the item of a lane after the end of a chunk."""
    # Another process may have died after it stopped this lane, and before it stopped the others.
    if lane.stopped == "failed" or await _has_crossed(kernel, place, lane):
        await stop_map(kernel, workers, place, head, why="failed")
        await deliver_map_end(kernel, workers, place)
    elif lane.at is None:
        await deliver_map_end(kernel, workers, place)
    elif not lane.stopped and lane.round == place.spec.round:
        origin = await _origin_of_chunk(kernel, place, head)
        if origin is not None:
            chunk = place.spec.chunk_of(lane.at, lane.lane, lane.round)
            kept = await lanes_here(kernel, place.spec)
            kernel.chunk_shares.discard(place.generation, place.spec.map, head.key)
            here = kernel.chunk_shares.running(place.generation, place.spec.map) < kept
            await start_chunk(kernel, workers, place, origin, chunk, here=here)


async def _has_crossed(kernel: Kernel, place: MapPlace, lane: MapLane) -> bool:
    """Return whether more items failed than the map tolerates, if the last chunk had failures."""
    if lane.last not in lane.bad or lane.stopped:
        return False
    # Lanes that have not begun the round still count what failed before it.
    lanes = [each for each in await read_lanes(kernel, place) if each.round == lane.round]
    failed = sum(each.failed for each in lanes)
    return failed > place.spec.tolerated


async def deliver_map_end(kernel: Kernel, workers: LocalWorkers, place: MapPlace) -> bool:
    """Tell the run that a map of it has ended, if it has; return whether it has.

    The lanes are read after the item of the last one was written.
    """
    spec = place.spec
    lanes = await read_lanes(kernel, place)
    has_failed = any(lane.stopped == "failed" for lane in lanes)
    if any(lane.stopped == "ended" for lane in lanes):
        return False  # its run has ended before it
    if any(lane.round != spec.round for lane in lanes) or len(lanes) < spec.lanes:
        return False
    if not has_failed and any(lane.at is not None or lane.left for lane in lanes):
        return False
    failed = sum(lane.failed for lane in lanes)
    payload: dict[str, Any] = {
        "status": "failed" if has_failed or failed > spec.tolerated else "finished",
        "succeeded": sum(lane.succeeded for lane in lanes),
        "failed": failed,
        "total": spec.total,
        "tolerated": spec.tolerated,
        "chunk": spec.chunk,
    }
    # There is no run to tell, or it has expired and takes nothing any more.
    with suppress(RunEnded, RunNotFound, RunClosing):
        await send_signal(
            kernel,
            workers,
            place.run,
            name=MapWait.of(spec.map, spec.round).signal,
            id=f"end.{spec.round}",
            payload=payload,
            ends_child=True,
            generation=place.generation,
        )
    return True


# --- one item again -------------------------------------------------------------------------------


async def _settle_retry(
    kernel: Kernel, place: MapPlace, head: Head, execution: Execution | None
) -> None:
    """Store the result of an item that was retried alone, and note that it ended."""
    chunk = head.chunk
    assert chunk is not None
    execution = await _known_execution(kernel, head, execution)
    entries = [] if execution is None else list(chunk_entries(execution))
    if not entries:
        entries = [MappedItem(chunk.first, None, _lost_failure(head, execution))]
    version = retry_version(chunk.first, chunk.attempt)
    await _store_results(kernel, place, chunk.number, version, entries)
    ended = MapRetry(
        index=chunk.first,
        attempt=chunk.attempt,
        run=head.key.id,
        status="finished" if entries[0].ok else "failed",
    )
    write = retry_result_write(
        place.run, place.generation, place.spec.map, ended, token=kernel.ids.new()
    )
    with suppress(ConditionFailed):  # a later retry has begun
        await kernel.resolve_write(kernel.maps, write)
