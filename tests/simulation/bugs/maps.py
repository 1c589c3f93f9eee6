"""Bugs of maps: of their lanes, their chunks, their rounds and their results."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.engine.execution import visit_maps
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs import (
    children,
    map_chunks,
    map_lanes,
    map_reading,
    map_results,
    map_starting,
    map_stopping,
)
from holdfast.engine.runs.map_results import MapPlace
from holdfast.errors import RunNotFound
from holdfast.model.map import MapLane, MapSpec
from holdfast.model.wait import MapWait
from holdfast.records.head import Head
from tests.simulation.bugs.planting import bug


@bug("mapping")
def a_lane_without_its_step(patch: pytest.MonkeyPatch) -> None:
    """Of two processes that settle a chunk, the later one counts, too."""
    write = map_lanes.lane_write

    def bare(*args: Any, **values: Any) -> Any:
        return msgspec.structs.replace(write(*args, **values), condition=None)

    patch.setattr(map_lanes, "lane_write", bare)


@bug("mapping", crash=0.006)
def a_lane_that_only_its_first_settler_continues(patch: pytest.MonkeyPatch) -> None:
    """The first one may have died before it started the next chunk."""
    settle = map_lanes.settle_chunk

    async def first_only(kernel: Kernel, workers: Any, head: Head, execution: Any) -> None:
        assert head.chunk is not None
        assert head.parent is not None
        run = _run_of_map(head)
        spec = await map_lanes.read_map(kernel, run, head.parent.generation, head.chunk.map)
        if spec is not None and head.chunk.lane >= 0:
            place = MapPlace(run, head.parent.generation, spec)
            lane = await map_lanes.read_lane(kernel, place, head.chunk.lane)
            if lane is not None and lane.at != head.chunk.number:
                return
        await settle(kernel, workers, head, execution)

    patch.setattr(children, "settle_chunk", first_only)


def _run_of_map(head: Head) -> Any:
    assert head.parent is not None
    return type(head.key)(head.key.tenant, head.parent.id)


@bug("mapping", crash=0.006)
def results_that_are_stored_after_they_count(patch: pytest.MonkeyPatch) -> None:
    later: dict[Any, Any] = {}
    store, write = map_lanes.write_results, map_lanes._write_lane

    async def remember(
        kernel: Kernel, place: MapPlace, number: int, version: str, entries: Any
    ) -> None:
        later[place.run, place.spec.map, number] = (kernel, place, number, version, list(entries))

    async def counted(kernel: Kernel, place: MapPlace, ended: MapLane) -> Any:
        lane = await write(kernel, place, ended)
        known = later.pop((place.run, place.spec.map, ended.last), None)
        if known is not None:
            await store(*known)
        return lane

    patch.setattr(map_lanes, "write_results", remember)
    patch.setattr(map_lanes, "_write_lane", counted)


@bug("mapping")
def lanes_that_are_read_before_the_own_one_is_written(patch: pytest.MonkeyPatch) -> None:
    """Two lanes that end together both see the other one run, and none tells the run."""
    write, deliver, read = map_lanes._write_lane, map_lanes.deliver_map_end, map_lanes.read_lanes
    before: dict[Any, list[MapLane]] = {}

    async def noted(kernel: Kernel, place: MapPlace, ended: MapLane) -> Any:
        seen = await read(kernel, place)
        lane = await write(kernel, place, ended)
        before[id(kernel), place.run, place.spec.map] = [
            lane if lane is not None and each.lane == ended.lane else each for each in seen
        ]
        return lane

    async def hasty(kernel: Kernel, workers: Any, place: MapPlace) -> bool:
        seen = before.pop((id(kernel), place.run, place.spec.map), None)
        if seen is not None and any(lane.at is not None for lane in seen):
            return False
        return await deliver(kernel, workers, place)

    patch.setattr(map_lanes, "_write_lane", noted)
    patch.setattr(map_lanes, "deliver_map_end", hasty)


@bug("mapping")
def a_lane_that_ends_tells_the_run(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(map_lanes, "read_lanes", _only_ended(map_lanes.read_lanes))


def _only_ended(read: Any) -> Any:
    async def ended(kernel: Kernel, place: MapPlace) -> list[MapLane]:
        lanes = await read(kernel, place)
        return [
            msgspec.structs.replace(lane, at=None, front=lane.stop, redo=())
            if any(each.at is None for each in lanes)
            else lane
            for lane in lanes
        ]

    return ended


@bug("mapping")
def a_helper_that_takes_and_leaves(patch: pytest.MonkeyPatch) -> None:
    """It takes a chunk of another lane, which runs it, too."""
    resolve = Kernel.resolve_transaction

    async def first_write(self: Kernel, table: Any, writes: Any, *args: Any, **more: Any) -> Any:
        if table is self.maps:
            writes = writes[:1]
        return await resolve(self, table, writes, *args, **more)

    patch.setattr(Kernel, "resolve_transaction", first_write)


@bug("mapping")
def a_stopped_map_whose_chunks_go_on(patch: pytest.MonkeyPatch) -> None:
    async def nothing(*args: Any) -> None: ...

    patch.setattr(map_stopping, "cancel_chunk", nothing)


@bug("mapping", stall=0.006)
def a_chunk_that_starts_after_it_was_cancelled(patch: pytest.MonkeyPatch) -> None:
    """Nothing keeps the place of a chunk that a stalled process is about to start."""
    cancel = map_stopping.cancel_chunk

    async def only_what_is_there(
        kernel: Kernel, workers: Any, place: MapPlace, origin: Head, chunk: Any
    ) -> None:
        key = type(place.run)(
            place.run.tenant, map_chunks.chunk_id(place.run, place.generation, chunk)
        )
        try:
            await map_stopping.read_row(kernel, key)
        except RunNotFound:
            return
        await cancel(kernel, workers, place, origin, chunk)

    patch.setattr(map_stopping, "cancel_chunk", only_what_is_there)


@bug("mapping")
def a_map_that_tolerates_nothing(patch: pytest.MonkeyPatch) -> None:
    async def any_failure(kernel: Kernel, place: MapPlace, lane: MapLane) -> bool:
        return lane.last in lane.bad

    patch.setattr(map_lanes, "_has_crossed", any_failure)


@bug("mapping")
def a_round_that_runs_every_item_again(patch: pytest.MonkeyPatch) -> None:
    start = map_lanes.start_chunk

    async def whole(
        kernel: Kernel, workers: Any, place: MapPlace, origin: Any, chunk: Any, **options: Any
    ) -> None:
        if chunk.round:
            options["indices"] = list(range(chunk.first, chunk.first + chunk.count))
        await start(kernel, workers, place, origin, chunk, **options)

    patch.setattr(map_lanes, "start_chunk", whole)
    patch.setattr(map_starting, "start_chunk", whole)


@bug("mapping")
def a_round_that_forgets_what_failed(patch: pytest.MonkeyPatch) -> None:
    begin = map_starting.lane_of_new_round

    def without_the_bad(spec: MapSpec, lane: MapLane) -> MapLane:
        return begin(spec, msgspec.structs.replace(lane, bad={}))

    patch.setattr(map_starting, "lane_of_new_round", without_the_bad)


@bug("mapping", crash=0.004, stall=0.004)
def a_round_that_leaves_the_chunks_of_the_last_one_alone(patch: pytest.MonkeyPatch) -> None:
    async def nothing(*args: Any) -> None: ...

    patch.setattr(map_starting, "take_over_chunk", nothing)


@bug("mapping", crash=0.004, stall=0.004)
def an_end_of_the_last_round_that_ends_this_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MapWait, "of", classmethod(lambda cls, map, round: cls(map)))


@bug("mapping")
def every_lane_runs_as_many_as_the_map(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MapSpec, "branches", lambda self, lane: self.concurrency)


@bug("mapping")
def a_retried_item_that_keeps_its_failure(patch: pytest.MonkeyPatch) -> None:
    load = map_results.load_chunk

    async def rounds_only(kernel: Kernel, place: MapPlace, parts: Any) -> Any:
        kept = [part for part in parts if part.version.startswith("r")]
        return await load(kernel, place, kept or parts)

    patch.setattr(map_results, "load_chunk", rounds_only)
    patch.setattr(map_reading, "load_chunk", rounds_only)


@bug("mapping")
def a_retried_item_that_counts_twice(patch: pytest.MonkeyPatch) -> None:
    async def all_of_them(kernel: Kernel, place: MapPlace, lanes: Any) -> int:
        retries = await map_reading.read_retries(kernel, place)
        return sum(each.status == "finished" for each in retries)

    patch.setattr(map_reading, "_count_retried", all_of_them)


@bug("mapping", blob_unreachable=0.05)
def results_that_are_read_once(patch: pytest.MonkeyPatch) -> None:
    """A store that fails for a moment fails the node that reads."""

    def plain(self: Any, place: MapPlace) -> Any:
        return visit_maps.read_items(self._visit.claimed.kernel, place)

    patch.setattr(visit_maps.VisitMaps, "_items", plain)
