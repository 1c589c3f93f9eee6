"""Chunks of maps: who they are, how they start, and the items of a map that say where it is."""

from __future__ import annotations

import hashlib

import msgspec

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.chunk_program import ChunkProgram, chunk_input
from holdfast.engine.runs.local_workers import LocalWorkers, reserve_slot
from holdfast.engine.runs.map_results import MapPlace, read_chunk
from holdfast.engine.runs.starting import (
    START_REFUSALS,
    StartRequest,
    prepare_input,
    start_prepared,
)
from holdfast.model.map import MapChunk, MapLane, MapSpec
from holdfast.records.head import Head, RunRef
from holdfast.records.index_keys import WORKERS, due_after
from holdfast.records.keys import RunKey, map_key, map_lane_key, map_lanes_range, maps_range
from holdfast.records.map import lane_of_item, map_of_item

__all__ = [
    "ChunkOrigin",
    "chunk_id",
    "lanes_here",
    "list_maps",
    "origin_of",
    "read_lane",
    "read_lanes",
    "read_map",
    "start_chunk",
]

_ID_PREFIX_BYTES = 60
_WORKERS_MAX = 100


class ChunkOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk has from the run that began its map."""

    run: RunRef
    graph: str
    version: int
    labels: dict[str, str]
    user: str | None
    payer: RunRef | None
    expires_ms: int
    ttl: int
    list_shards: int


def origin_of(head: Head, payer: RunRef | None) -> ChunkOrigin:
    """Return what the chunks of a run have from it."""
    return ChunkOrigin(
        run=RunRef(head.key.id, head.generation),
        graph=head.graph,
        version=head.version,
        labels=head.labels,
        user=head.user,
        payer=payer,
        expires_ms=head.expires_ms,
        ttl=head.ttl,
        list_shards=head.list_shards,
    )


def chunk_id(run: RunKey, generation: str, chunk: MapChunk) -> str:
    """Return the id of the run of a chunk."""
    part = f"{chunk.number}.{chunk.round}"
    if chunk.attempt:
        part = f"{chunk.first}x{chunk.attempt}"
    name = f"{generation}.{chunk.map}#{part}"
    digest = hashlib.blake2b(name.encode(), digest_size=10).hexdigest()
    shown = run.id.encode()[:_ID_PREFIX_BYTES].decode(errors="ignore").rstrip()
    return f"{shown}.{digest}"


# --- reading --------------------------------------------------------------------------------------


async def read_map(kernel: Kernel, run: RunKey, generation: str, map: str) -> MapSpec | None:
    """Return a map of a run; None if there is none."""
    item = await kernel.maps.get(map_key(run, generation, map))
    return None if item is None else map_of_item(item)


async def list_maps(kernel: Kernel, run: RunKey, generation: str) -> list[MapSpec]:
    """Return the maps of a run."""
    items = kernel.maps.query_all(run.pk, maps_range(generation))
    return [map_of_item(item) async for item in items]


async def read_lane(kernel: Kernel, place: MapPlace, lane: int) -> MapLane | None:
    """Return a lane of a map; None if it has not begun."""
    key = map_lane_key(place.run, place.generation, place.spec.map, lane)
    item = await kernel.maps.get(key)
    return None if item is None else lane_of_item(item)


async def read_lanes(kernel: Kernel, place: MapPlace) -> list[MapLane]:
    """Return all lanes of a map that have begun."""
    where = map_lanes_range(place.generation, place.spec.map)
    return [lane_of_item(item) async for item in kernel.maps.query_all(place.run.pk, where)]


# --- starting a chunk -----------------------------------------------------------------------------


async def start_chunk(
    kernel: Kernel,
    workers: LocalWorkers,
    place: MapPlace,
    origin: ChunkOrigin,
    chunk: MapChunk,
    *,
    here: bool = True,
    indices: list[int] | None = None,
) -> None:
    """Start the run of a chunk, unless it exists.

    ``here`` lets a worker of this process run it at once; otherwise it is due for all workers.
    ``indices`` are the items that it runs; by default those of its range that have no result.

    Raises:
        OutcomeUnknown, StoreUnavailable: the outcome of a write is unknown.
    """
    run = RunKey(place.run.tenant, chunk_id(place.run, place.generation, chunk))
    if chunk.round and indices is None:
        known = await read_chunk(kernel, place, chunk.number)
        wanted = range(chunk.first, chunk.first + chunk.count)
        indices = [index for index in wanted if index not in known or not known[index].ok]
    program = ChunkProgram(origin.graph, origin.version)
    input = chunk_input(place.spec, chunk, indices=indices)
    now_ms = kernel.clock.now_ms()
    request = StartRequest(
        run=run,
        user=None,
        user_hash=origin.user,
        labels=origin.labels,
        starts_ms=None,
        expires_in_ms=max(1, origin.expires_ms - now_ms),
        retention_ms=max(0, origin.ttl * 1000 - origin.expires_ms),
        parent=origin.run,
        payer=origin.payer,
        chunk=chunk,
    )
    prepared = await prepare_input(kernel, program, input, None)
    if not here:
        started = await start_prepared(kernel, workers, program, prepared, request, owner=None)
        return
    with reserve_slot(workers, run, origin.graph, request.pool, unwritten=START_REFUSALS) as slot:
        started = await start_prepared(
            kernel, workers, program, prepared, request, owner=slot.owner
        )
        if started.loaded is not None:
            slot.start_run(started.head, started.loaded)


async def lanes_here(kernel: Kernel, spec: MapSpec) -> int:
    """Return how many lanes of a map the workers of this process keep."""

    async def count_workers() -> int:
        live = due_after(kernel.clock.now_ms())
        page = await kernel.due.query(WORKERS, live, index="GSI1", limit=_WORKERS_MAX)
        return len(page.items)

    return await kernel.chunk_shares.share(
        spec.lanes, now=kernel.clock.monotonic(), count_workers=count_workers
    )
