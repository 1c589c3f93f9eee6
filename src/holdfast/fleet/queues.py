"""The queues of the due index that known graphs use, and the runs in them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import NamedTuple

import msgspec

from holdfast.errors import InvalidQuery
from holdfast.fleet.coverage import Coverage
from holdfast.fleet.reader import FleetReader, PublishedGraph
from holdfast.records.index_keys import DueQueue, IndexKey, due_by, owned_partition
from holdfast.records.keys import SORTS_LAST, RunKey
from holdfast.storage import Between, From
from holdfast.storage.ranges import ALL, Range

__all__ = ["Position", "known_queues", "parsed_position", "walk_due", "walk_owned"]

_PAGE = 200


class Position(NamedTuple):
    """How far a walk through partitions of the due index has come."""

    partition: str
    sk: str
    """The sort key of the last entry; empty before the first one."""

    @property
    def cursor(self) -> str:
        """The position as text."""
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")


def parsed_position(cursor: str | None) -> Position:
    """Return the position that a cursor names; the beginning for None.

    Raises:
        InvalidQuery: it is not a cursor of such a list.
    """
    if cursor is None:
        return Position("", "")
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        return msgspec.json.decode(base64.b64decode(padded, b"-_", validate=True), type=Position)
    except (binascii.Error, ValueError, TypeError, AttributeError, msgspec.MsgspecError):
        raise InvalidQuery(
            f"cursor must be one that this list returned, got {cursor!r:.80}", field="cursor"
        ) from None


def known_queues(
    graphs: Iterable[PublishedGraph], coverage: Coverage, *, shards: int
) -> list[DueQueue]:
    """Return the queues of all graphs and pools that were published or that a worker serves."""
    pools: dict[str, set[str | None]] = {}
    for graph in graphs:
        pools.setdefault(graph.name, {None}).update(graph.facts.pools)
    for row in coverage.workers.values():
        for name in row.offer.graphs:
            pools.setdefault(name, {None}).update(row.offer.pools)
    return sorted(
        (
            DueQueue(name, pool, shard)
            for name, named in pools.items()
            for pool in named
            for shard in range(shards)
        ),
        key=lambda queue: queue.partition,
    )


async def walk_due(
    reader: FleetReader, queues: Sequence[DueQueue], *, until_ms: int, after: Position
) -> AsyncGenerator[list[tuple[Position, RunKey, int]], None]:
    """Yield pages of the runs in these queues that are due by a time, with their due times."""
    for queue in queues:
        if queue.partition < after.partition:
            continue
        begin = after.sk if queue.partition == after.partition else ""
        async for page in _pages(reader, queue.partition, _due_range(until_ms, begin)):
            entries: list[tuple[Position, RunKey, int]] = []
            for place in page:
                try:
                    due_ms, run, _ = place.due_parts()
                except ValueError as error:
                    reader.kernel.note_damage({"PK": place.pk, "SK": place.sk}, error)
                else:
                    entries.append((Position(*place), run, due_ms))
            yield entries


async def walk_owned(
    reader: FleetReader, workers: Iterable[str], *, after: Position
) -> AsyncGenerator[list[tuple[Position, RunKey]], None]:
    """Yield pages of the runs that these workers own."""
    for partition in sorted(map(owned_partition, workers)):
        if partition < after.partition:
            continue
        begin = after.sk if partition == after.partition else ""
        where = From(f"{begin}{SORTS_LAST}") if begin else ALL
        async for page in _pages(reader, partition, where):
            entries: list[tuple[Position, RunKey]] = []
            for place in page:
                try:
                    entries.append((Position(*place), place.owned_parts()[1]))
                except ValueError as error:
                    reader.kernel.note_damage({"PK": place.pk, "SK": place.sk}, error)
            yield entries


def _due_range(until_ms: int, begin: str) -> Range | None:
    until = due_by(until_ms)
    if not begin:
        return until
    first = f"{begin}{SORTS_LAST}"
    return Between(first, until.sk) if first <= until.sk else None


async def _pages(
    reader: FleetReader, partition: str, where: Range | None
) -> AsyncGenerator[list[IndexKey], None]:
    cursor: str | None = None
    while where is not None:
        page = await reader.table.query(partition, where, index="GSI1", limit=_PAGE, cursor=cursor)
        if page.items:
            yield [IndexKey(entry["GSI1PK"], entry["GSI1SK"]) for entry in page.items]
        cursor = page.cursor
        if cursor is None:
            return
