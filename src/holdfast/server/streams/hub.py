"""`RunHub`: one reader of a run for all of its followers on this server."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.engine.history.cursors import parse_event_cursor, parse_text_cursor
from holdfast.errors import InvalidQuery
from holdfast.handle import RunHandle
from holdfast.model.run import HistoryEntry, Run, TextPiece
from holdfast.records.keys import RunKey
from holdfast.server.streams.backlog import Entry
from holdfast.server.streams.cursor import StreamCursor, place_of_event, place_of_text
from holdfast.server.streams.shared_read import SharedRead
from holdfast.server.streams.shared_reader import ReaderLimits, SharedReader

__all__ = ["EncodedEvent", "HubReplaced", "RunHub"]

# Besides its text, a piece has ids and flags.
_PIECE_BYTES = 200


class HubReplaced(Exception):
    """The run of this hub is deleted, and another run has its id."""


@dataclass(frozen=True, slots=True)
class EncodedEvent:
    """An event, encoded once for all followers. Its cursor is empty if it is not recorded."""

    cursor: str
    data: bytes


class RunHub:
    """What the followers of one run share: its row, its events and its text."""

    def __init__(self, run: RunHandle[Any], limits: ReaderLimits) -> None:
        self.listeners: set[asyncio.Event] = set()
        """Set when there may be something new to take."""
        self.joining = 0
        """How many followers are about to join."""
        self.final_status: str | None = None
        """The status with which the run ended."""
        self.rows = SharedRead[Run](run.get)
        self.events = SharedReader[EncodedEvent](
            lambda cursor, follow: run.events(after=cursor, follow=follow, ephemeral=follow),
            self._event_entry,
            limits=limits,
            wake=self._wake,
        )
        self.text = SharedReader[TextPiece](
            lambda cursor, follow: run.tokens(after=cursor, follow=follow, joined=False),
            _text_entry,
            limits=limits,
            wake=self._wake,
        )
        self.log_name = RunKey(run.tenant, run.id).log_name
        """The run as logs name it."""
        self._run_id = run.id
        self._generation: str | None = None
        self._encoded_text: tuple[str, str, bytes] = ("", "", b"")

    @property
    def is_over(self) -> bool:
        """Whether it reads no more: the run has ended, or reading failed."""
        return self.events.main is not None and self.events.main.is_done

    @property
    def is_used(self) -> bool:
        """Whether it has followers."""
        return bool(self.listeners) or self.joining > 0

    @property
    def is_worth_keeping(self) -> bool:
        """Whether a follower that comes back soon can use it."""
        return not self.is_over and self.events.main is not None

    async def read_row(self, cursor: StreamCursor) -> Run:
        """Read the row for a new follower, and check that its cursor is one of this run.

        Raises:
            RunNotFound: there is no such run.
            InvalidQuery: the cursor is one of another run.
            HubReplaced: another run has the id by now.
        """
        row = await self.rows.get()
        if cursor.generation not in (None, row.generation):
            raise InvalidQuery(
                f"the run {self._run_id!r} has no message {str(cursor)!r}", field="after"
            )
        if self._generation not in (None, row.generation):
            raise HubReplaced
        self._generation = row.generation
        return row

    def encode_text(self, pieces: list[TextPiece]) -> bytes:
        """Return adjacent pieces of one answer as one piece in JSON."""
        first, last = pieces[0], pieces[-1]
        known = self._encoded_text
        if known[:2] == (first.cursor, last.cursor):
            return known[2]
        joined = msgspec.structs.replace(
            last, text="".join(piece.text for piece in pieces), restarted=first.restarted
        )
        data = msgspec.json.encode(joined.as_dict())
        self._encoded_text = (first.cursor, last.cursor, data)
        return data

    async def close(self) -> None:
        """Stop reading."""
        await self.events.close()
        await self.text.close()

    def _wake(self) -> None:
        for listener in self.listeners:
            listener.set()

    def _event_entry(self, event: HistoryEntry) -> Entry[EncodedEvent] | None:
        if event.ephemeral:
            if event.kind == "ended":
                self.final_status = event.details["status"]
            # Each follower gets a row and an end of its own instead.
            if event.kind in ("snapshot", "started", "ended"):
                return None
        data = msgspec.json.encode(event.as_dict())
        place = place_of_event(parse_event_cursor(event.cursor or None, field="cursor"))
        return Entry(EncodedEvent(event.cursor, data), len(data), place)


def _text_entry(piece: TextPiece) -> Entry[TextPiece]:
    place = place_of_text(parse_text_cursor(piece.cursor, field="cursor"))
    return Entry(piece, len(piece.text) + _PIECE_BYTES, place)
