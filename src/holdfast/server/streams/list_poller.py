"""`ListPoller`: reads a list of runs again and again, for all who follow it."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from holdfast.errors import InvalidQuery
from holdfast.model.run import RunEntry, RunPage
from holdfast.server.streams.message import EndReason, StreamMessage, end_message
from holdfast.server.streams.view_poller import ViewPoller

__all__ = ["ListCursor", "ListFollower", "ListPoller", "join_list", "parse_list_cursor"]

# Clocks of workers differ, and the index of runs is a moment behind.
_OVERLAP_MS = 60_000
_CURSOR_PATTERN = re.compile(r"([0-9]{1,13})\.([0-9a-f]{16})")


@dataclass(frozen=True, slots=True)
class ListCursor:
    """What a follower has: these runs, with all changes up to a time."""

    updated_ms: int
    members: str
    """A digest of their ids."""

    def __str__(self) -> str:
        return f"{self.updated_ms}.{self.members}"


def parse_list_cursor(text: str | None, *, field: str) -> ListCursor | None:
    """Parse the id of a message of a list; None if none was given.

    Raises:
        InvalidQuery: it is not such an id.
    """
    if not text:
        return None
    found = _CURSOR_PATTERN.fullmatch(text)
    if found is None:
        raise InvalidQuery(
            f"{field} must be the id of a message of this stream, got {text!r:.80}", field=field
        )
    return ListCursor(int(found[1]), found[2])


@dataclass(frozen=True, slots=True)
class ListView:
    """The runs of a list at one time."""

    rows: Mapping[str, RunEntry]
    read_to: str | None
    """The position of the last run that was looked at; None if that was the oldest."""
    cursor: ListCursor
    encoded: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def run_message(self, id: str) -> StreamMessage:
        """Return the row of a run, which is encoded once for all followers."""
        data = self.encoded.get(id)
        if data is None:
            data = self.encoded[id] = msgspec.json.encode(self.rows[id].as_dict())
        return StreamMessage("run", data)

    def gone_message(self, run: RunEntry) -> StreamMessage:
        """Return the message that a run is no longer here."""
        position = f"{_ms(run.created_at.timestamp()):013d}#{run.id}"
        is_older = self.read_to is not None and position < self.read_to
        reason = "window" if is_older else "no_match"
        return StreamMessage("gone", msgspec.json.encode({"id": run.id, "reason": reason}))


class ListPoller(ViewPoller[ListView]):
    """The current view of one list, and the task that reads it."""

    def __init__(self, read: Callable[[], Awaitable[RunPage]], *, poll_seconds: float) -> None:
        super().__init__(poll_seconds=poll_seconds)
        self._read_page = read

    async def read_view(self, before: ListView | None) -> ListView:
        """Read the list; return ``before`` itself if nothing has changed."""
        view = _view_of(await self._read_page())
        if before is not None:
            for id, row in view.rows.items():
                if id in before.encoded and before.rows[id] == row:
                    view.encoded[id] = before.encoded[id]
            if before.rows == view.rows:
                return before
        return view


class ListFollower:
    """What one connection gets of a list: the runs that it does not have, and each change."""

    def __init__(self, poller: ListPoller, after: ListCursor | None) -> None:
        self.woken = asyncio.Event()
        self._poller = poller
        self._after = after
        self._opened: ListView | None = None
        self._sent: ListView | None = None
        poller.listeners.add(self.woken)

    async def open(self) -> StreamMessage:
        """Read the list, and return the first message: the ids of all its runs, newest first."""
        view = self._opened = await self._poller.refresh()
        return StreamMessage("snapshot", msgspec.json.encode({"ids": list(view.rows)}))

    async def take(self) -> list[StreamMessage]:
        """Return what has changed since the last call."""
        view, sent = self._poller.view, self._sent
        if view is None or view is sent:
            return []
        self._sent = view
        found: list[StreamMessage] = []
        if sent is None:
            sent = self._opened or view
            found += self._first_messages(sent)
        found += _changes(sent, view)  # also since the snapshot, which a slow client delays
        if found:  # a follower that has all of them can resume here, but not in between
            last = found[-1]
            found[-1] = StreamMessage(last.kind, last.data, str(view.cursor))
        return found

    async def ending(self) -> StreamMessage | None:
        """Return the last message, if the list cannot be read."""
        error = self._poller.error
        return None if error is None else self.end("error", getattr(error, "code", "internal"))

    def end(self, reason: EndReason, code: str | None = None) -> StreamMessage:
        """Return the last message of a stream that ends for this reason."""
        resume = self._after if self._sent is None else self._sent.cursor
        return end_message(reason, resume="" if resume is None else str(resume), code=code)

    def close(self) -> None:
        """Leave the poller."""
        self._poller.listeners.discard(self.woken)

    def _first_messages(self, view: ListView) -> list[StreamMessage]:
        after, rows = self._after, view.rows.values()
        if after is not None and after.members == view.cursor.members:
            since_ms = after.updated_ms - _OVERLAP_MS
            rows = [row for row in rows if _ms(row.updated_at.timestamp()) >= since_ms]
        return [view.run_message(row.id) for row in rows]


async def join_list(
    poller: ListPoller, after: ListCursor | None
) -> tuple[ListFollower, StreamMessage]:
    """Return a new follower of a list, and its first message."""
    follower = ListFollower(poller, after)
    try:
        return follower, await follower.open()
    except BaseException:
        follower.close()
        raise


def _changes(before: ListView, now: ListView) -> list[StreamMessage]:
    gone = [now.gone_message(row) for id, row in before.rows.items() if id not in now.rows]
    changed = [id for id, row in now.rows.items() if before.rows.get(id) != row]
    return [*gone, *map(now.run_message, changed)]


def _view_of(page: RunPage) -> ListView:
    rows = {run.id: run for run in page.runs}
    updated_ms = max((_ms(run.updated_at.timestamp()) for run in page.runs), default=0)
    ids = "\n".join(sorted(rows)).encode()
    members = hashlib.blake2b(ids, digest_size=8).hexdigest()
    return ListView(rows, page.cursor, ListCursor(updated_ms, members))


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
