"""Deletes the data of the runs of a run's maps: chunks of all rounds, and retries of single items.

Their ids follow from the items of the maps, so no list of them is stored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice

import msgspec

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.map_chunks import chunk_id, list_maps
from holdfast.engine.runs.map_reading import read_retries
from holdfast.engine.runs.map_results import MapPlace
from holdfast.engine.runs.removal import empty_endings, free_run
from holdfast.engine.runs.rows import is_freed
from holdfast.engine.runs.waking import update_head
from holdfast.model.map import NO_LANE, MapChunk, MapSpec
from holdfast.records.head import ENDED, Head, RunRef, head_of, is_past_ttl
from holdfast.records.keys import RunKey
from holdfast.records.map import MapRetry
from holdfast.records.owner_writes import free_write

__all__ = [
    "free_settled_run",
    "list_chunk_rows",
    "list_item_retries",
]

_BATCH_KEYS = 100


async def free_settled_run(kernel: Kernel, head: Head, *, removes: tuple[str, ...] = ()) -> bool:
    """Delete the data of a run that no worker owns, and that owes nothing; return whether it is.

    ``removes`` are further attributes of its row that are removed. Of its end, only the end is
    left.
    """
    if is_freed(head):
        await empty_endings(kernel, head)
        return True
    if head.status not in ENDED or head.owner is not None or _is_due(head, kernel.clock.now_ms()):
        return False
    await free_run(kernel, head)
    write = free_write(head, now_ms=kernel.clock.now_ms(), token=kernel.ids.new())
    write = msgspec.structs.replace(write, remove=(*write.remove, *removes))
    if await update_head(kernel, head, write) is not None:
        return False
    await empty_endings(kernel, head)
    return True


def _is_due(head: Head, now_ms: int) -> bool:
    """Return whether a worker still has to settle what an ended run owes to other runs."""
    return head.index_key is not None and head.index_key.due_parts()[0] <= now_ms


async def list_chunk_rows(kernel: Kernel, head: Head) -> AsyncIterator[Head]:
    """Yield the rows of the chunks of a run's maps, without the retries of single items."""
    if not head.maps:
        return
    for spec in await list_maps(kernel, head.key, head.generation):
        place = MapPlace(head.key, head.generation, spec)
        chunks = _chunks_of_lanes(spec)
        while batch := list(islice(chunks, _BATCH_KEYS)):
            for row in await _read_rows(kernel, place, batch):
                yield row


async def list_item_retries(kernel: Kernel, head: Head) -> AsyncIterator[tuple[MapPlace, MapChunk]]:
    """Yield the retries of single items of a run's maps, also those that have not started."""
    if not head.maps:
        return
    for spec in await list_maps(kernel, head.key, head.generation):
        place = MapPlace(head.key, head.generation, spec)
        for retry in await read_retries(kernel, place):
            for attempt in range(1, retry.attempt + 1):
                yield place, _chunk_of_retry(spec, retry, attempt)


def _chunks_of_lanes(spec: MapSpec) -> Iterator[MapChunk]:
    for round in range(spec.round + 1):
        for number in range(spec.chunks):
            # The lane that ran it is not part of its id.
            yield spec.chunk_of(number, 0, round)


def _chunk_of_retry(spec: MapSpec, retry: MapRetry, attempt: int) -> MapChunk:
    number = retry.index // spec.chunk
    return MapChunk(
        map=spec.map, lane=NO_LANE, number=number, first=retry.index, count=1, attempt=attempt
    )


async def _read_rows(kernel: Kernel, place: MapPlace, chunks: Iterable[MapChunk]) -> list[Head]:
    """Return the rows of those chunks that have started, or were cancelled before that."""
    ids = [chunk_id(place.run, place.generation, chunk) for chunk in chunks]
    items = await kernel.heads.get_many([RunKey(place.run.tenant, id).head for id in ids])
    now_ms = kernel.clock.now_ms()
    rows = [head_of(item) for item in items if item is not None and not is_past_ttl(item, now_ms)]
    parent = RunRef(place.run.id, place.generation)
    return [row for row in rows if row.parent == parent]
