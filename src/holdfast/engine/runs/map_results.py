"""The results of a map: one blob for each chunk, below the prefix of the run that began the map.

A chunk that runs again, because its run or one item was retried, adds a blob of its own. Nothing is
replaced, so a process that stalled cannot put an old result in the place of a newer one. Readers
list the blobs of a chunk and combine them. A store without blobs has items instead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.engine.kernel.kernel import Kernel
from holdfast.model.event import Failure
from holdfast.model.map import MappedItem, MapSpec
from holdfast.records.blob_keys import blob_prefix
from holdfast.records.codec import compress, encode, unpack_value
from holdfast.records.keys import RunKey, map_part_key, map_parts_range
from holdfast.storage import BlobRef, Delete, Key, Put

__all__ = [
    "MapPlace",
    "StoredPart",
    "delete_results",
    "list_chunks",
    "load_chunk",
    "load_values",
    "read_chunk",
    "retry_version",
    "round_version",
    "write_results",
    "write_values",
]

_RESULTS, _VALUES = "r", "v"
_ROUND, _RETRY = "r", "x"
# Of an item that holds a part of a chunk, where the store has no blobs.
_PART_BYTES_MAX = 300 * 1024
_LIST_MAX = 1_000


class MapPlace(NamedTuple):
    """Where a map is: the run that began it, and the map."""

    run: RunKey
    generation: str
    spec: MapSpec

    def prefix(self, kind: str) -> str:
        """Return the prefix of its blobs of a kind."""
        run_prefix = blob_prefix(self.spec.kept, self.run, self.generation)
        return f"{run_prefix}maps/{self.spec.map}/{kind}/"


class StoredPart(NamedTuple):
    """Where one version of the results of a chunk is stored."""

    number: int
    version: str
    blob: BlobRef | None
    """None in a store without blobs."""


def round_version(round: int) -> str:
    """Return the version of the results of a chunk of a lane. Later rounds sort later."""
    return f"{_ROUND}{round:06d}"


def retry_version(index: int, attempt: int) -> str:
    """Return the version of the result of one item that was retried; it sorts after all rounds."""
    return f"{_RETRY}{index:08d}.{attempt:06d}"


async def write_results(
    kernel: Kernel, place: MapPlace, number: int, version: str, entries: Iterable[MappedItem]
) -> None:
    """Store the results of one chunk; repeated with the same results, it changes nothing."""
    rows = [_row(entry) for entry in sorted(entries, key=lambda entry: entry.index)]
    await _write(kernel, place, f"{_RESULTS}#{number:08d}#{version}", rows)


async def delete_results(kernel: Kernel, place: MapPlace, number: int, version: str) -> None:
    """Delete one version of the results of a chunk, whose run is freed; idempotent."""
    if kernel.blobs is not None:
        await kernel.blobs.delete_all(f"{place.prefix(_RESULTS)}{number:08d}/{version}/")
        return
    name = f"{_RESULTS}#{number:08d}#{version}#"
    where = map_parts_range(place.generation, place.spec.map, after=name, until=f"{name}~")
    async for item in kernel.maps.query_all(place.run.pk, where):
        await kernel.maps.write(Delete(Key(item["PK"], item["SK"])))


async def write_values(kernel: Kernel, place: MapPlace, number: int, values: Sequence[Any]) -> None:
    """Store the values of the items of one chunk."""
    await _write(kernel, place, f"{_VALUES}#{number:08d}#{place.spec.values}", list(values))


async def load_values(kernel: Kernel, place: MapPlace, number: int) -> list[Any]:
    """Return the values of the items of one chunk."""
    async for part in _list(kernel, place, _VALUES, number, number):
        if part.version == place.spec.values:
            return await _load(kernel, place, _VALUES, part)
    return []


async def list_chunks(
    kernel: Kernel, place: MapPlace, *, first: int = 0, last: int | None = None
) -> AsyncIterator[tuple[int, list[StoredPart]]]:
    """Yield the numbers of the chunks that have results, in order, with all their versions."""
    number, parts = -1, list[StoredPart]()
    last = place.spec.chunks if last is None else last
    async for part in _list(kernel, place, _RESULTS, first, last):
        if part.number != number:
            if parts:
                yield number, parts
            number, parts = part.number, []
        parts.append(part)
    if parts:
        yield number, parts


async def load_chunk(
    kernel: Kernel, place: MapPlace, parts: Sequence[StoredPart]
) -> dict[int, MappedItem]:
    """Return the newest results of one chunk by index.

    The last round counts. Of an item that was retried alone, a success counts, or its last failure.
    """
    entries: dict[int, MappedItem] = {}
    rounds = [part for part in parts if part.version.startswith(_ROUND)]
    retries = [part for part in parts if part.version.startswith(_RETRY)]
    # Two processes may have stored what they knew of the last round: a success counts.
    last = [part for part in rounds if part.version == rounds[-1].version]
    for part in (*last, *retries):
        for row in await _load(kernel, place, _RESULTS, part):
            entry = _entry(row)
            known = entries.get(entry.index)
            if known is None or not known.ok:
                entries[entry.index] = entry
    return entries


async def read_chunk(kernel: Kernel, place: MapPlace, number: int) -> dict[int, MappedItem]:
    """Return the newest results of one chunk by index; empty if it has none yet."""
    async for _, parts in list_chunks(kernel, place, first=number, last=number):
        return await load_chunk(kernel, place, parts)
    return {}


def _row(entry: MappedItem) -> list[Any]:
    if entry.failure is None:
        return [entry.index, entry.result]
    return [entry.index, None, list(msgspec.structs.astuple(entry.failure))]


def _entry(row: list[Any]) -> MappedItem:
    failure = Failure(*row[2]) if len(row) > 2 else None
    return MappedItem(row[0], row[1], failure)


# --- blobs, or items ------------------------------------------------------------------------------


async def _write(kernel: Kernel, place: MapPlace, name: str, rows: list[Any]) -> None:
    plain = encode(rows)
    data = await kernel.offload.run(len(plain), compress, plain)
    blobs = kernel.blobs
    if blobs is not None:
        kind, number, version = name.split("#")
        await blobs.put(data, prefix=f"{place.prefix(kind)}{number}/{version}/")
        return
    pieces = [data[at : at + _PART_BYTES_MAX] for at in range(0, len(data), _PART_BYTES_MAX)]
    for n, piece in enumerate(pieces):
        key = map_part_key(
            place.run, place.generation, place.spec.map, f"{name}#{len(pieces):04d}.{n:04d}"
        )
        item = {"PK": key.pk, "SK": key.sk, "ttl": place.spec.ttl, "data": piece}
        await kernel.resolve_write(kernel.journals, Put(item, None, kernel.ids.new()))


async def _list(
    kernel: Kernel, place: MapPlace, kind: str, first: int, last: int
) -> AsyncIterator[StoredPart]:
    """Yield all stored versions of the chunks of a range of numbers, in order."""
    if kernel.blobs is None:
        async for part in _list_items(kernel, place, kind, first, last):
            yield part
        return
    prefix = place.prefix(kind)
    # "." sorts before "/", so this is before the first version of the first chunk.
    after: str | None = f"{prefix}{first:08d}."
    wanted = f"{prefix}{first:08d}/" if first == last else prefix
    if first == last:
        after = None
    while True:
        page = await kernel.blobs.list(wanted, after=after, limit=_LIST_MAX)
        for entry in page.entries:
            number, version, digest = entry.key.removeprefix(prefix).split("/")
            if int(number) > last:
                return
            yield StoredPart(int(number), version, BlobRef(entry.key, digest, entry.size))
        after = page.cursor
        if after is None:
            return


async def _list_items(
    kernel: Kernel, place: MapPlace, kind: str, first: int, last: int
) -> AsyncIterator[StoredPart]:
    where = map_parts_range(
        place.generation, place.spec.map, after=f"{kind}#{first:08d}", until=f"{kind}#{last:08d}~"
    )
    async for item in kernel.journals.query_all(place.run.pk, where):
        number, version, piece = item["SK"].split("#")[-3:]
        count, _, n = piece.partition(".")
        if int(n) == int(count) - 1:  # the last one is written last
            yield StoredPart(int(number), version, None)


async def _load(kernel: Kernel, place: MapPlace, kind: str, part: StoredPart) -> list[Any]:
    if part.blob is not None:
        assert kernel.blobs is not None
        data = await kernel.blobs.get(part.blob)
    else:
        name = f"{kind}#{part.number:08d}#{part.version}#"
        where = map_parts_range(place.generation, place.spec.map, after=name, until=f"{name}~")
        items = kernel.journals.query_all(place.run.pk, where)
        data = b"".join([item["data"] async for item in items])
    limit = kernel.limits.record_bytes_max
    return await kernel.offload.run(len(data), unpack_value, data, limit)
