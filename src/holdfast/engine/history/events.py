"""What happened to a run, read from its journal by position: a page of it, or live as it happens.

A record never changes once it stands, and none is ever written before another: so a cursor, which
names one event by its place, holds in whatever process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from typing import Any

from holdfast.engine.history.cursors import EventCursor
from holdfast.engine.history.views import history_of, is_shown
from holdfast.engine.journal.payloads import contents_of, unpacked
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.removal import check_kept, is_freed_by, not_kept
from holdfast.engine.runs.rows import read_row
from holdfast.errors import BlobNotFound, InvalidQuery, JournalDamaged, RunNotFound
from holdfast.model.run import HistoryEntry, HistoryPage
from holdfast.records.codec import plain_bytes, unpack_events
from holdfast.records.head import ENDED, Head
from holdfast.records.journal import content_of, is_emptied
from holdfast.records.keys import RunKey, position_in, records_range

__all__ = ["followed", "history", "kept", "same"]

# What is in memory at a time: a page of records, and of their blobs so many bytes, or one.
_RECORDS_A_PAGE = 200
_BYTES_AT_ONCE = 8 * 1024**2
# What the records of one page have once they are unpacked; a page that has more ends early.
_PAGE_BYTES_MAX = 16 * 1024**2
# Somebody who follows a run of another process asks at first often, then less so.
_ASK_FIRST_SECONDS = 0.05
_ASK_MOST_SECONDS = 1.0


async def history(
    kernel: Kernel, run: RunKey, *, after: EventCursor | None, limit: int
) -> HistoryPage:
    """Return a page of what happened to a run, the oldest first.

    Raises:
        RunNotFound: there is no such run, or its journal is no longer kept.
        InvalidQuery: the cursor is not one of this run.
        JournalDamaged: a record is missing or cannot be read.
    """
    head = await kept(kernel, run)
    reader = _Reader(kernel, head, after, field="cursor")
    entries: list[HistoryEntry] = []
    async with aclosing(reader.read(head, records=limit)) as read:
        async for entry in read:
            entries.append(entry)
            if len(entries) == limit or reader.unpacked_bytes > _PAGE_BYTES_MAX:
                return HistoryPage(entries, entry.cursor)
    return HistoryPage(entries, None)


async def followed(
    kernel: Kernel, run: RunKey, *, after: EventCursor | None, follow: bool
) -> AsyncGenerator[HistoryEntry, None]:
    """Yield what happened to a run, then what happens to it, until it has ended.

    Raises:
        RunNotFound: there is no such run, or its journal is no longer kept.
        InvalidQuery: the cursor is not one of this run.
        JournalDamaged: a record is missing or cannot be read.
    """
    pause = _ASK_FIRST_SECONDS
    with kernel.news.listening(run) as told:
        head = await kept(kernel, run)
        reader = _Reader(kernel, head, after, field="after")
        while True:
            before = reader.position
            async with aclosing(reader.read(head)) as read:
                async for entry in read:
                    yield entry
            # Its row was read before its journal: where it said the end, all records were there.
            if not follow or head.status in ENDED:
                return
            pause = _ASK_FIRST_SECONDS if reader.position > before else pause
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await told.wait()
            pause = min(pause * 2, _ASK_MOST_SECONDS)
            told.clear()
            head = await same(kernel, head)


async def kept(kernel: Kernel, run: RunKey) -> Head:
    """Return the row of a run whose journal is there.

    Raises:
        RunNotFound: there is no such run, or its journal is no longer kept.
    """
    head = await read_row(kernel, run)
    check_kept(head)
    return head


async def same(kernel: Kernel, head: Head) -> Head:
    """Return the row of a run as it is now.

    Raises:
        RunNotFound: it is gone, or another run has its id.
    """
    standing = await read_row(kernel, head.key)
    if standing.generation != head.generation:
        raise RunNotFound(f"the run {head.key.id!r} is gone, and another has its id")
    return standing


class _Reader:
    """Reads a run's records, each once; what is there by now, and later what came since."""

    def __init__(
        self, kernel: Kernel, head: Head, after: EventCursor | None, *, field: str
    ) -> None:
        self._kernel = kernel
        self._field = field
        if after is not None and (after.generation != head.generation or after.position == 0):
            raise self._foreign(head, after)
        # Its record is read again: only so can be told whether there is such an event.
        self._after = after
        self.position = 1 if after is None else after.position
        """The position of the next record."""
        self.unpacked_bytes = 0
        """What was unpacked so far."""

    async def read(
        self, head: Head, *, records: int = _RECORDS_A_PAGE
    ) -> AsyncGenerator[HistoryEntry, None]:
        """Yield the events that stand from here on, so many records at a time."""
        async for items in self._pages(head, min(records, _RECORDS_A_PAGE)):
            try:
                contents = await contents_of(self._kernel, [content_of(item) for item in items])
            except BlobNotFound:
                raise await self._missing(head) from None
            for item, data in zip(items, contents, strict=True):
                found = position_in(item["SK"])
                if found != self.position:
                    # What a snapshot covers may have left by its ttl, where the run was extended.
                    if not self.position < found <= head.snapshot:
                        raise await self._missing(head)
                    self.position, self._after = found, None
                for entry in await self._entries(head, data):
                    yield entry
                self.position += 1
        if self._after is not None or self.position < head.context.position:
            raise await self._missing(head)

    async def _pages(self, head: Head, limit: int) -> AsyncIterator[Sequence[dict[str, Any]]]:
        """Yield the items from here on that hold something, few enough to load all their blobs."""
        where = records_range(head.generation, self.position)
        cursor: str | None = None
        while True:
            page = await self._kernel.journals.query(head.key.pk, where, limit=limit, cursor=cursor)
            for some in _portions([item for item in page.items if not is_emptied(item)]):
                yield some
            cursor = page.cursor
            if cursor is None:
                return

    async def _entries(self, head: Head, data: bytes) -> list[HistoryEntry]:
        """Return what is to be shown of the record at the position."""
        events = await unpacked(self._kernel, data, unpack_events)
        self.unpacked_bytes += plain_bytes(data)
        first = 0
        if self._after is not None:
            if self._after.index >= len(events):
                raise self._foreign(head, self._after)
            first = self._after.index + 1
            self._after = None
        return [
            history_of(event, cursor=str(EventCursor(head.generation, self.position, index)))
            for index, event in enumerate(events)
            if index >= first and is_shown(event)
        ]

    async def _missing(self, head: Head) -> Exception:
        """Return why the record at the position is not there."""
        standing = await same(self._kernel, head)
        if standing.freed or is_freed_by(standing, self._kernel.clock.now_ms()):
            return not_kept(standing)
        if self._after is not None and self.position >= standing.context.position:
            return self._foreign(head, self._after)
        return JournalDamaged(f"record {self.position} of run {head.key.id!r} is missing")

    def _foreign(self, head: Head, cursor: EventCursor) -> InvalidQuery:
        return InvalidQuery(
            f"the run {head.key.id!r} has no event {str(cursor)!r}", field=self._field
        )


def _portions(items: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    portions: list[list[dict[str, Any]]] = []
    size = _BYTES_AT_ONCE + 1
    for item in items:
        more = content_of(item).size
        if size + more > _BYTES_AT_ONCE:
            portions.append([])
            size = 0
        size += more
        portions[-1].append(item)
    return portions
