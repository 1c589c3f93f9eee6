"""Finds the record of one segment among many, without reading those of all.

A catalogue is a blob that lists blobs, each with the records of a group of consecutive segments.
A state holds only its address. Workers keep the lists that they used last.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from documents.segments import SegmentRecord
from documents.shelf import Shelf

__all__ = ["GROUP", "BlobMemory", "Catalogue", "group_range", "groups_of"]

GROUP = 20
"""How many segments a group has: what a child process reads in one go."""


def groups_of(segments: int) -> int:
    """Return how many groups there are."""
    return -(-segments // GROUP)


def group_range(group: int, segments: int) -> range:
    """Return the indices of the segments of a group, from 0."""
    return range(group * GROUP, min((group + 1) * GROUP, segments))


class BlobMemory:
    """Keeps the values that were read last. What a blob's address leads to never changes."""

    def __init__(self, values_max: int = 64) -> None:
        self._values_max = values_max
        self._values: OrderedDict[str, Any] = OrderedDict()

    async def load(self, uri: str, load: Callable[[str], Awaitable[Any]]) -> Any:
        """Return the value at an address."""
        if uri not in self._values:
            self._values[uri] = await load(uri)
        self._values.move_to_end(uri)
        value = self._values[uri]
        while len(self._values) > self._values_max:
            self._values.popitem(last=False)
        return value


class Catalogue:
    """The records of all segments of a document, or of one step for some of them."""

    def __init__(self, shelf: Shelf, uri: str, memory: BlobMemory) -> None:
        self._shelf, self._uri, self._memory = shelf, uri, memory

    @staticmethod
    async def put_group(
        shelf: Shelf, name: str, group: int, records: Mapping[int, SegmentRecord]
    ) -> str:
        """Store the records of a group, by the index of the segment, and return their address."""
        stored = {str(index): record.as_json() for index, record in sorted(records.items())}
        return await shelf.put(f"manifests/{name}-{group:05}", stored)

    @staticmethod
    async def put(shelf: Shelf, name: str, groups: Sequence[str]) -> str:
        """Store the addresses of all groups, "" for one without records; return the catalogue's."""
        return await shelf.put(f"manifests/{name}", list(groups))

    async def group(self, group: int) -> dict[int, SegmentRecord]:
        """Return the records of a group by index; those that the step did not write are missing."""
        groups: list[str] = await self._memory.load(self._uri, self._shelf.load)
        if group >= len(groups) or not groups[group]:
            return {}
        stored: dict[str, Any] = await self._memory.load(groups[group], self._shelf.load)
        return {int(index): SegmentRecord.of(record) for index, record in stored.items()}

    async def record(self, index: int) -> SegmentRecord | None:
        """Return the record of a segment, counted from 0."""
        return (await self.group(index // GROUP)).get(index)
