"""Retries one item of a map: a chunk of one index, whose result supersedes the old one."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.engine.runs.map_chunks import chunk_id, origin_of, start_chunk
from holdfast.engine.runs.map_reading import find_place
from holdfast.engine.runs.map_results import MapPlace, read_chunk
from holdfast.engine.runs.removal import check_journal_kept
from holdfast.engine.runs.rows import read_row
from holdfast.errors import ConditionFailed, InvalidRequest, NotRetryable
from holdfast.model.map import NO_LANE, MapChunk
from holdfast.records.head import OPEN, Head, RunRef
from holdfast.records.keys import RunKey, map_retry_key
from holdfast.records.map import MapRetry, retry_of_item, retry_write

__all__ = ["retry_item"]

_EXPIRES_MS = 7 * 24 * 3600 * 1000
# The results of the map are deleted this long before its run's row.
_BEFORE_TTL_MS = 2 * 3600 * 1000


async def retry_item(
    kernel: Kernel, workers: LocalWorkers, run: RunKey, map: str, index: int
) -> str:
    """Start the retry of a failed item; return the id of its run.

    Raises:
        RunNotFound: there is no such run or map, or its results are no longer stored.
        NotRetryable: the item has not failed, or it is being retried.
        InvalidRequest: the map has no item of that index.
    """
    place, head = await find_place(kernel, run, map)
    check_journal_kept(head)
    spec = place.spec
    if type(index) is not int or not 0 <= index < spec.total:
        raise InvalidRequest(
            f"index must be an integer from 0 to {spec.total - 1:,}, got {index!r:.80}",
            field="index",
        )
    number = index // spec.chunk
    entry = (await read_chunk(kernel, place, number)).get(index)
    if entry is None or entry.ok:
        found = "has no end yet" if entry is None else "has a result"
        raise NotRetryable(f"item {index} of map {map!r} {found}; only a failed one can be retried")
    attempt = await _begun_attempt(kernel, place, number, index)
    # A process that deletes the data of the run finds the attempt, unless it deleted it before.
    check_journal_kept(await read_row(kernel, run))
    origin = origin_of(_with_time(kernel, head), _payer(head))
    await start_chunk(kernel, workers, place, origin, attempt, indices=[index])
    return chunk_id(place.run, place.generation, attempt)


async def _begun_attempt(kernel: Kernel, place: MapPlace, number: int, index: int) -> MapChunk:
    """Record that the retry of an item begins, and return its chunk."""
    spec, key = place.spec, map_retry_key(place.run, place.generation, place.spec.map, index)
    item = await kernel.maps.get(key)
    last = None if item is None else retry_of_item(item)
    attempt = 1 if last is None else last.attempt + (last.status != "running")
    chunk = MapChunk(
        map=spec.map, lane=NO_LANE, number=number, first=index, count=1, attempt=attempt
    )
    id = chunk_id(place.run, place.generation, chunk)
    if last is not None and last.status == "running":
        if await kernel.heads.get(RunKey(place.run.tenant, id).head) is not None:
            raise NotRetryable(f"item {index} of map {spec.map!r} is being retried: run {id!r}")
        return chunk  # the process that began it died before it started the run
    begun = MapRetry(index=index, attempt=attempt, run=id)
    write = retry_write(place.run, place.generation, spec, begun, token=kernel.ids.new())
    with suppress(ConditionFailed):
        await kernel.resolve_write(kernel.maps, write)
        return chunk
    raise NotRetryable(f"item {index} of map {spec.map!r} is being retried")


def _payer(head: Head) -> RunRef | None:
    """Return the run on whose account the run of an item draws; None after the end of its run."""
    if head.status not in OPEN:
        return None
    return head.payer if head.budget is None else RunRef(head.key.id, head.generation)


def _with_time(kernel: Kernel, head: Head) -> Head:
    """Return the row of a run that has ended with a later expiry, for the run of an item."""
    if head.status in OPEN:
        return head
    last_ms = head.ttl * 1000 - _BEFORE_TTL_MS
    expires_ms = min(kernel.clock.now_ms() + _EXPIRES_MS, last_ms)
    return msgspec.structs.replace(head, expires_ms=expires_ms)
