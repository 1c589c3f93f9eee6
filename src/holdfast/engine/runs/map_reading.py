"""Reads maps: how far they are, and their results in order, one chunk in memory at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.map_chunks import list_maps, read_lanes, read_map
from holdfast.engine.runs.map_results import MapPlace, list_chunks, load_chunk, read_chunk
from holdfast.engine.runs.rows import read_row
from holdfast.errors import RunNotFound
from holdfast.model.map import MapLane, MappedItem, MapProgress, MapSpec, MapStatus
from holdfast.model.spending import NANODOLLARS_PER_DOLLAR
from holdfast.records.head import OPEN, Head
from holdfast.records.keys import RunKey, map_retries_range
from holdfast.records.map import MapRetry, retry_of_item

__all__ = [
    "find_place",
    "list_progress",
    "progress_of",
    "read_bad_items",
    "read_items",
    "read_retries",
]


async def find_place(kernel: Kernel, run: RunKey, map: str) -> tuple[MapPlace, Head]:
    """Return a map of a run, and the row of the run.

    Raises:
        RunNotFound: there is no such run, or no such map of it.
    """
    head = await read_row(kernel, run)
    spec = await read_map(kernel, run, head.generation, map) if head.maps else None
    if spec is None:
        raise RunNotFound(f"run {run.id!r} has no map {map!r}")
    return MapPlace(run, head.generation, spec), head


async def list_progress(kernel: Kernel, run: RunKey) -> list[MapProgress]:
    """Return how far the maps of a run are, in the order in which they began.

    Raises:
        RunNotFound: there is no such run.
    """
    head = await read_row(kernel, run)
    if not head.maps:
        return []
    specs = await list_maps(kernel, run, head.generation)
    specs.sort(key=lambda spec: (spec.started_ms, spec.map))
    places = [MapPlace(run, head.generation, spec) for spec in specs]
    return [await progress_of(kernel, place, head) for place in places]


async def progress_of(kernel: Kernel, place: MapPlace, head: Head) -> MapProgress:
    """Return how far a map is; ``head`` is the row of its run."""
    spec, lanes = place.spec, await read_lanes(kernel, place)
    retried = await _count_retried(kernel, place, lanes)
    return MapProgress(
        map=spec.map,
        node=spec.node,
        item=spec.item,
        status=_status(spec, lanes, head),
        total=spec.total,
        succeeded=sum(lane.succeeded for lane in lanes) + retried,
        failed=sum(lane.failed for lane in lanes) - retried,
        running=sum(
            spec.chunk_of(lane.at, lane.lane, 0).count
            for lane in lanes
            if lane.at is not None and not lane.stopped
        ),
        chunk=spec.chunk,
        concurrency=spec.concurrency,
        tolerated=spec.tolerated,
        retried=retried,
        tokens=sum(lane.tokens for lane in lanes),
        cost_usd=sum(lane.nanodollars for lane in lanes) / NANODOLLARS_PER_DOLLAR,
        started_ms=spec.started_ms,
    )


async def _count_retried(kernel: Kernel, place: MapPlace, lanes: list[MapLane]) -> int:
    """Return how many items have succeeded since their chunks were counted.

    A chunk that ran again counts what was retried before, so only the results tell.
    """
    retries = await read_retries(kernel, place)
    numbers = {each.index // place.spec.chunk for each in retries if each.status == "finished"}
    counted = {number: ended for lane in lanes for number, ended in lane.bad.items()}
    retried = 0
    for number in sorted(numbers & counted.keys()):
        entries = await read_chunk(kernel, place, number)
        retried += sum(entry.ok for entry in entries.values()) - counted[number][0]
    return retried


def _status(spec: MapSpec, lanes: list[MapLane], head: Head) -> MapStatus:
    if any(lane.stopped == "failed" for lane in lanes):
        return "failed"
    done = len(lanes) == spec.lanes and all(lane.at is None and not lane.left for lane in lanes)
    if done:
        return "failed" if sum(lane.failed for lane in lanes) > spec.tolerated else "finished"
    return "running" if head.status in OPEN else "stopped"


async def read_retries(kernel: Kernel, place: MapPlace) -> list[MapRetry]:
    """Return the items of a map that were retried alone."""
    where = map_retries_range(place.generation, place.spec.map)
    return [retry_of_item(item) async for item in kernel.maps.query_all(place.run.pk, where)]


async def read_items(
    kernel: Kernel, place: MapPlace, *, after: int = -1
) -> AsyncIterator[MappedItem]:
    """Yield the items of a map that have ended, by index."""
    first = (after + 1) // place.spec.chunk
    async for _, parts in list_chunks(kernel, place, first=first):
        entries = await load_chunk(kernel, place, parts)
        for index in sorted(entries):
            if index > after:
                yield entries[index]


async def read_bad_items(
    kernel: Kernel, place: MapPlace, *, after: int = -1
) -> AsyncIterator[MappedItem]:
    """Yield the items of a map that failed, by index. Only chunks with failures are read."""
    first = (after + 1) // place.spec.chunk
    lanes = await read_lanes(kernel, place)
    bad = {number for lane in lanes for number in lane.bad}
    # What failed before a round stays so until the round has run it again.
    later = [lane for lane in lanes if lane.round]
    bad |= {number for lane in later for number in (*lane.redo, lane.at) if number is not None}
    for number in sorted(bad):
        if number < first:
            continue
        async for _, parts in list_chunks(kernel, place, first=number, last=number):
            entries = await load_chunk(kernel, place, parts)
            for index in sorted(entries):
                if index > after and not entries[index].ok:
                    yield entries[index]
