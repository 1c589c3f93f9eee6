"""Begins maps: their values, their item, their lanes and the first chunk of each lane.

The order is that of children. The run's row is marked first. Then the item of the map is written,
then the run's claim is checked, and then the lanes and the chunks. A process that ends the run
reads the items of its maps, and stops every lane, also those that are not written yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.display import get_logger
from holdfast.engine.journal.writer import PositionTaken
from holdfast.engine.kernel.kernel import ClaimLost, Kernel
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.engine.runs.map_chunks import (
    ChunkOrigin,
    lanes_here,
    origin_of,
    read_lane,
    read_map,
    start_chunk,
)
from holdfast.engine.runs.map_results import MapPlace, write_values
from holdfast.engine.runs.map_stopping import take_over_chunk
from holdfast.errors import (
    ConditionFailed,
    OutcomeUnknown,
    StoreUnavailable,
)
from holdfast.model.map import MapLane, MapSpec, lane_count, lane_of_new_round, new_lane
from holdfast.records.head import ENDED, Head, RunRef, head_of
from holdfast.records.map import (
    create_lane_write,
    create_map_write,
    lane_write,
    new_round_write,
)

__all__ = ["MapRequest", "start_map"]

_log = get_logger("holdfast.worker")

_CONCURRENT_STARTS_MAX = 16


class MapRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The checked request of a node for a map."""

    map: str
    item: str
    is_graph: bool
    values: list[Any] | None
    """The values of its items; None if it maps their number."""
    total: int
    chunk: int
    concurrency: int
    tolerated: int
    given: bytes
    node: str
    branch: str
    visit: int


async def start_map(
    kernel: Kernel,
    workers: LocalWorkers,
    request: MapRequest,
    *,
    retried: str,
    payer: RunRef | None,
    mark_has_maps: Callable[[], Awaitable[Head]],
) -> MapSpec:
    """Begin a map of a claimed run, or continue it; return it as it is recorded.

    A map that was begun before keeps what it was begun with. If the run was retried since, the
    chunks with items that have no result run again.

    Raises:
        ClaimLost: another process has claimed the run.
        PositionTaken: the run has ended, or is being cancelled.
        StoreUnavailable: the outcome is unknown; call it again.
    """
    try:
        head = await mark_has_maps()
        spec = await _recorded_map(kernel, head, request, retried)
        await _check_claim(kernel, head)
        place = MapPlace(head.key, head.generation, spec)
        origin = origin_of(head, payer)
        kept = await lanes_here(kernel, spec) if spec.lanes > 1 else 1
        for some in _batches(range(spec.lanes)):
            await asyncio.gather(
                *(
                    _begin_lane(kernel, workers, place, head, origin, lane, here=lane < kept)
                    for lane in some
                )
            )
        return spec
    except OutcomeUnknown as error:
        raise StoreUnavailable(str(error)) from error


async def _recorded_map(kernel: Kernel, head: Head, request: MapRequest, retried: str) -> MapSpec:
    """Return the item of a map; write it if there is none, or if a new round begins."""
    known = await read_map(kernel, head.key, head.generation, request.map)
    if known is None:
        spec = _spec(kernel, head, request, retried)
        place = MapPlace(head.key, head.generation, spec)
        if request.values is not None:
            for number in range(spec.chunks):
                values = request.values[number * spec.chunk : (number + 1) * spec.chunk]
                await write_values(kernel, place, number, values)
        with suppress(ConditionFailed):
            await kernel.resolve_write(
                kernel.maps, create_map_write(head, spec, token=kernel.ids.new())
            )
            return spec
        known = await read_map(kernel, head.key, head.generation, request.map)
        assert known is not None
    _warn_of_changes(head, request, known)
    if known.retried == retried:
        return known
    if known.epoch > head.epoch:
        raise ClaimLost  # the run was retried since this process owned it
    again = msgspec.structs.replace(known, round=known.round + 1, retried=retried, epoch=head.epoch)
    with suppress(ConditionFailed):
        await kernel.resolve_write(
            kernel.maps, new_round_write(head, again, token=kernel.ids.new())
        )
        return again
    raise ClaimLost  # only another owner of the run writes it


def _spec(kernel: Kernel, head: Head, request: MapRequest, retried: str) -> MapSpec:
    return MapSpec(
        map=request.map,
        item=request.item,
        is_graph=request.is_graph,
        is_list=request.values is not None,
        values="" if request.values is None else kernel.ids.new(),
        total=request.total,
        chunk=request.chunk,
        lanes=lane_count(request.total, chunk=request.chunk, concurrency=request.concurrency),
        concurrency=request.concurrency,
        tolerated=request.tolerated,
        given=request.given,
        node=request.node,
        branch=request.branch,
        visit=request.visit,
        kept=head.kept,
        started_ms=kernel.clock.now_ms(),
        retried=retried,
        epoch=head.epoch,
        ttl=head.ttl,
    )


def _warn_of_changes(head: Head, request: MapRequest, known: MapSpec) -> None:
    names = ("item", "total", "chunk", "concurrency", "tolerated")
    changed = [name for name in names if getattr(request, name) != getattr(known, name)]
    if changed:
        _log.warning(
            "%s: node %r asked again for map %r with another %s; the map goes on as it began",
            head.key.log_name,
            request.node,
            request.map,
            ", ".join(changed),
        )


async def _check_claim(kernel: Kernel, parent: Head) -> None:
    item = await kernel.heads.get(parent.key.head)
    current = None if item is None else head_of(item)
    if current is None or (current.generation, current.epoch) != (parent.generation, parent.epoch):
        raise ClaimLost
    if current.status in ENDED or current.cancel is not None:
        raise PositionTaken(f"run {parent.key.id!r} has ended, or is being cancelled")


async def _begin_lane(
    kernel: Kernel,
    workers: LocalWorkers,
    place: MapPlace,
    parent: Head,
    origin: ChunkOrigin,
    number: int,
    *,
    here: bool,
) -> None:
    """Write a lane, unless it has begun in this round, and start the chunk at which it is."""
    spec = place.spec
    lane = await _begun_lane(kernel, workers, place, parent, number)
    if lane.stopped == "ended":
        raise PositionTaken(f"run {place.run.id!r} has ended")
    if lane.at is not None and not lane.stopped:
        chunk = spec.chunk_of(lane.at, number, spec.round)
        await start_chunk(kernel, workers, place, origin, chunk, here=here)


async def _begun_lane(
    kernel: Kernel, workers: LocalWorkers, place: MapPlace, parent: Head, number: int
) -> MapLane:
    while True:
        lane = await read_lane(kernel, place, number)
        if lane is not None and lane.round == place.spec.round:
            return lane
        if lane is not None and lane.round > place.spec.round:
            raise ClaimLost  # the run was retried since this process owned it
        if lane is None:
            begun = new_lane(place.spec, number)
            write: Any = create_lane_write(
                place.run, place.generation, place.spec, begun, token=kernel.ids.new()
            )
        else:
            if lane.at is not None:
                await take_over_chunk(kernel, workers, place, parent, lane)
            begun = lane_of_new_round(place.spec, lane)
            write = lane_write(
                place.run, place.generation, place.spec.map, begun, token=kernel.ids.new()
            )
        with suppress(ConditionFailed):
            await kernel.resolve_write(kernel.maps, write)
            return begun


def _batches(numbers: range) -> Iterable[range]:
    for first in range(0, len(numbers), _CONCURRENT_STARTS_MAX):
        yield numbers[first : first + _CONCURRENT_STARTS_MAX]
