"""Reads the events of a run from its journal: a page of them, or live as they are written.

Records never change, and are only appended. So a cursor, which names an event by its position, is
valid in every process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from contextlib import aclosing, contextmanager, suppress
from typing import Any

from holdfast.engine.history.cursors import EventCursor
from holdfast.engine.history.ephemeral import EphemeralEvents, LocalDrivers
from holdfast.engine.history.prompts import (
    CallPlace,
    Prompts,
    missing_base,
    place_of,
    visit_begins_after,
)
from holdfast.engine.history.views import history_entry_of, is_shown
from holdfast.engine.journal.payloads import load_payloads, unpack_payload
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.kernel.live_events import Feed
from holdfast.engine.runs.removal import check_journal_kept, is_freed_by, journal_not_kept
from holdfast.engine.runs.rows import read_row
from holdfast.errors import BlobNotFound, InvalidQuery, JournalDamaged, RunNotFound
from holdfast.model.event import Event, RecordedCall
from holdfast.model.run import HistoryEntry, HistoryPage
from holdfast.records.codec import plain_bytes, unpack_recorded_events
from holdfast.records.head import ENDED, Head
from holdfast.records.journal import content_of, is_emptied
from holdfast.records.keys import RunKey, journal_key, journal_position, records_range

__all__ = ["read_head_with_journal", "read_history", "reread_head", "stream_events"]

# A page of records is in memory at a time, and this many bytes of their blobs, or one blob.
_RECORDS_PER_PAGE = 200
_RECORDS_PER_STEP_BACK = 25
_BATCH_BYTES_MAX = 8 * 1024**2
# A page ends early when its unpacked records have more bytes than this.
_PAGE_BYTES_MAX = 16 * 1024**2
# A reader of a run in another process polls often at first, then less often.
_POLL_FIRST_SECONDS = 0.05
_POLL_SECONDS_MAX = 1.0


async def read_history(
    kernel: Kernel, run: RunKey, *, after: EventCursor | None, limit: int
) -> HistoryPage:
    """Return a page of a run's events, oldest first.

    Raises:
        RunNotFound: there is no such run, or its journal is no longer kept.
        InvalidQuery: the cursor is not one of this run.
        JournalDamaged: a record is missing or cannot be read.
    """
    head = await read_head_with_journal(kernel, run)
    reader = _EventReader(kernel, head, after, field="cursor")
    entries: list[HistoryEntry] = []
    async with aclosing(reader.read(head, records=limit)) as read:
        async for entry in read:
            entries.append(entry)
            if len(entries) == limit or reader.unpacked_bytes > _PAGE_BYTES_MAX:
                return HistoryPage(entries, entry.cursor)
    return HistoryPage(entries, None)


async def stream_events(
    kernel: Kernel,
    run: RunKey,
    *,
    after: EventCursor | None,
    follow: bool,
    drivers: LocalDrivers | None = None,
) -> AsyncGenerator[HistoryEntry | None, None]:
    """Yield the events of a run; with ``follow``, also new ones until the run has ended.

    It yields None when it has read the row and checked the cursor. With ``drivers`` it also yields
    events that are not recorded: see `EphemeralEvents`.

    Raises:
        RunNotFound: there is no such run, or its journal is no longer kept.
        InvalidQuery: the cursor is not one of this run.
        JournalDamaged: a record is missing or cannot be read.
    """
    feed = Feed()
    live = None if drivers is None else EphemeralEvents(kernel, feed, drivers)
    poll_seconds = _POLL_FIRST_SECONDS
    with kernel.notifier.subscribe(run, feed), _follow_live(kernel, run, feed, live):
        head = await read_head_with_journal(kernel, run)
        reader = _EventReader(kernel, head, after, field="after")
        is_open = False
        while True:
            before = reader.position
            async with aclosing(reader.read(head)) as read:
                entry = await anext(read, None)  # reads the record of the cursor, too
                if not is_open:
                    is_open = True
                    yield None
                    for each in () if live is None else live.open(head, from_start=after is None):
                        yield each
                while entry is not None:
                    if live is not None:
                        for each in live.take(reader.position):
                            yield each
                        live.note_recorded(entry)
                    yield entry
                    entry = await anext(read, None)
            if live is not None:
                for each in (*live.take(reader.position), *await live.observe(head)):
                    yield each
            # The row was read before the journal: if it had the end, all records were there.
            if not follow or head.status in ENDED:
                if live is not None and head.status in ENDED:
                    yield live.end(head)
                return
            poll_seconds = _POLL_FIRST_SECONDS if reader.position > before else poll_seconds
            while not await _wait_for_news(feed, poll_seconds) and live is not None:
                for each in live.take(reader.position):
                    yield each
            poll_seconds = min(poll_seconds * 2, _POLL_SECONDS_MAX)
            head = await reread_head(kernel, head)


@contextmanager
def _follow_live(
    kernel: Kernel, run: RunKey, feed: Feed, live: EphemeralEvents | None
) -> Generator[None]:
    if live is None:
        yield
        return
    with kernel.live.follow(run, feed):
        yield


async def _wait_for_news(feed: Feed, seconds: float) -> bool:
    """Wait until the feed is set or the time is up; return whether the store must be read."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await feed.wait()
    must_read = feed.run_changed or feed.dropped or not feed.is_set()
    feed.clear()
    feed.run_changed = False
    return must_read


async def read_head_with_journal(kernel: Kernel, run: RunKey) -> Head:
    """Return the row of a run, and check that its journal is still stored.

    Raises:
        RunNotFound: there is no such run, or its journal is no longer stored.
    """
    head = await read_row(kernel, run)
    check_journal_kept(head)
    return head


async def reread_head(kernel: Kernel, head: Head) -> Head:
    """Return the current row of a run.

    Raises:
        RunNotFound: the run is gone, or another run has its id.
    """
    current = await read_row(kernel, head.key)
    if current.generation != head.generation:
        raise RunNotFound(f"the run {head.key.id!r} is gone, and another has its id")
    return current


class _EventReader:
    """Reads each record of a run once: first the existing ones, later the new ones."""

    def __init__(
        self, kernel: Kernel, head: Head, after: EventCursor | None, *, field: str
    ) -> None:
        self._kernel = kernel
        self._field = field
        if after is not None and (after.generation != head.generation or after.position == 0):
            raise self._unknown_cursor(head, after)
        # The record of the cursor is read again, to check that the event exists.
        self._after = after
        self.position = 1 if after is None else after.position
        """The position of the next record."""
        self._prompts = Prompts()
        self.unpacked_bytes = 0
        """How many bytes were unpacked so far."""

    async def read(
        self, head: Head, *, records: int = _RECORDS_PER_PAGE
    ) -> AsyncGenerator[HistoryEntry, None]:
        """Yield the existing events from the position on, this many records at a time."""
        async for items in self._query_pages(head, min(records, _RECORDS_PER_PAGE)):
            try:
                contents = await load_payloads(self._kernel, [content_of(item) for item in items])
            except BlobNotFound:
                raise await self._explain_missing(head) from None
            for item, data in zip(items, contents, strict=True):
                found = journal_position(item["SK"])
                if found != self.position:
                    # Records before a snapshot may have expired, if the run was extended.
                    if not self.position < found <= head.snapshot:
                        raise await self._explain_missing(head)
                    self.position, self._after = found, None
                for entry in await self._unpack_entries(head, data):
                    yield entry
                self.position += 1
        if self._after is not None or self.position < head.extent.position:
            raise await self._explain_missing(head)

    async def _query_pages(self, head: Head, limit: int) -> AsyncIterator[Sequence[dict[str, Any]]]:
        """Yield non-empty items from the position on, in batches whose blobs fit into memory."""
        where = records_range(head.generation, self.position)
        cursor: str | None = None
        while True:
            page = await self._kernel.journals.query(head.key.pk, where, limit=limit, cursor=cursor)
            for batch in _batched_by_size([item for item in page.items if not is_emptied(item)]):
                yield batch
            cursor = page.cursor
            if cursor is None:
                return

    async def _unpack_entries(self, head: Head, data: bytes) -> list[HistoryEntry]:
        """Return the visible events of the record at the position."""
        events = await unpack_payload(self._kernel, data, unpack_recorded_events)
        self.unpacked_bytes += plain_bytes(data)
        first = 0
        if self._after is not None:
            if self._after.index >= len(events):
                raise self._unknown_cursor(head, self._after)
            first = self._after.index + 1
            self._after = None
        entries: list[HistoryEntry] = []
        for index, event in enumerate(events):
            if index >= first and is_shown(event):
                base = missing_base(event)
                if base is not None and not self._prompts.knows(base):
                    await self._read_base(head, base)
                cursor = str(EventCursor(head.generation, self.position, index))
                entries.append(
                    history_entry_of(event, run=head.key.id, cursor=cursor, prompts=self._prompts)
                )
            self._prompts.add([event])
        return entries

    async def _read_base(self, head: Head, base: CallPlace) -> None:
        """Read the earlier calls of a conversation that goes on after the cursor.

        It reads backwards, no further than to the first call of the conversation. What is no
        longer stored is left out.
        """
        found: list[Event] = []
        wanted: CallPlace | None = base
        position, size = self.position - 1, 0
        while wanted is not None and position > 0 and size <= _PAGE_BYTES_MAX:
            first = max(1, position - _RECORDS_PER_STEP_BACK + 1)
            keys = [
                journal_key(head.key, head.generation, each) for each in range(first, position + 1)
            ]
            items = [item for item in await self._kernel.journals.get_many(keys) if item]
            try:
                kept = [content_of(item) for item in items if not is_emptied(item)]
                contents = await load_payloads(self._kernel, kept)
            except BlobNotFound:
                break
            for data in reversed(contents):
                size += plain_bytes(data)
                events = await unpack_payload(self._kernel, data, unpack_recorded_events)
                for event in reversed(events):
                    if wanted is None or visit_begins_after(event, wanted):
                        wanted = None
                        break
                    if isinstance(event, RecordedCall) and place_of(event) == wanted:
                        found.append(event)
                        wanted = missing_base(event)
            position = first - 1
        self._prompts.add(reversed(found))

    async def _explain_missing(self, head: Head) -> Exception:
        """Return the error for the missing record at the position."""
        current = await reread_head(self._kernel, head)
        if current.freed or is_freed_by(current, self._kernel.clock.now_ms()):
            return journal_not_kept(current)
        if self._after is not None and self.position >= current.extent.position:
            return self._unknown_cursor(head, self._after)
        return JournalDamaged(f"record {self.position} of run {head.key.id!r} is missing")

    def _unknown_cursor(self, head: Head, cursor: EventCursor) -> InvalidQuery:
        return InvalidQuery(
            f"the run {head.key.id!r} has no event {str(cursor)!r}", field=self._field
        )


def _batched_by_size(items: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    batches: list[list[dict[str, Any]]] = []
    size = _BATCH_BYTES_MAX + 1
    for item in items:
        item_bytes = content_of(item).size
        if size + item_bytes > _BATCH_BYTES_MAX:
            batches.append([])
            size = 0
        size += item_bytes
        batches[-1].append(item)
    return batches
