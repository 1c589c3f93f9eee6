"""`RunFollower`: what one connection gets of a run, in order and without gaps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from holdfast.display import get_logger
from holdfast.errors import HoldfastError, RunNotFound
from holdfast.model.run import Run, TextPiece
from holdfast.records.head import ENDED
from holdfast.server.streams.cursor import StreamCursor, place_of_event, place_of_text
from holdfast.server.streams.hub import EncodedEvent, RunHub
from holdfast.server.streams.message import EndReason, StreamMessage, end_message
from holdfast.server.streams.shared_reader import FellBehind, Lane

__all__ = ["RunFollower", "Wanted", "join_run"]

_log = get_logger("holdfast.server")

# How long after the last event the text may take to end, before the row is read again.
_TEXT_END_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a follower asks for."""

    events: bool = True
    text: bool = True
    ephemeral: bool = True
    follow: bool = True


class RunFollower:
    """The messages of a run for one connection, from its cursor on."""

    def __init__(self, hub: RunHub, cursor: StreamCursor, wanted: Wanted) -> None:
        self.woken = asyncio.Event()
        self._hub = hub
        self._wanted = wanted
        self._status: str | None = None
        self._end: StreamMessage | None = None
        self._text_ends_at: float | None = None
        events, text = cursor.events, cursor.text
        event_place = place_of_event(events)
        self._events = Lane(
            hub.events,
            event_place,
            None if events is None else str(events),
            follow=wanted.follow,
        )
        self._text = Lane(
            hub.text,
            place_of_text(text),
            None if text is None else str(text),
            follow=wanted.follow,
        )
        # What it does not ask for stays where its cursor was.
        self._sent_event = self._events.cursor
        hub.listeners.add(self.woken)

    async def open(self, row: Run) -> StreamMessage:
        """Join the readers, and return the first message: the row.

        Raises:
            RunNotFound: there is no such run, or its journal is deleted.
            InvalidQuery: the cursor is not one of this run.
        """
        self._status = row.status
        await self._events.open()
        if self._wanted.text:
            await self._text.open()
        return StreamMessage("snapshot", msgspec.json.encode(row.as_dict()))

    async def take(self) -> list[StreamMessage]:
        """Return the next messages; none if there are none yet, or the stream is to end."""
        if self._end is not None:
            return []
        found: list[StreamMessage] = []
        try:
            events = await self._events.take(lambda event: event.cursor)
            found += self._take_events(events)
            if self._wanted.text:
                found += self._take_text(await self._text.take(lambda piece: piece.cursor))
        except FellBehind:
            self._end = self.end("too_slow")
        except Exception as error:
            self._end = self._failed(error)
        return found

    async def ending(self) -> StreamMessage | None:
        """Return the last message, if nothing more is to come."""
        if self._end is None and self._events.is_over:
            error = self._events.error or (self._text.error if self._wanted.text else None)
            if error is not None:
                self._end = self._failed(error)
            elif not self._wanted.text or self._text.is_over or await self._stop_waiting_for_text():
                self._end = self._ended()
        return self._end

    def end(self, reason: EndReason, code: str | None = None) -> StreamMessage:
        """Return the last message of a stream that ends for this reason."""
        status = self._status if reason in ("ended", "caught_up") else None
        return end_message(reason, resume=self._id, status=status, code=code)

    def close(self) -> None:
        """Leave the hub."""
        self._hub.listeners.discard(self.woken)
        self._events.close()
        self._text.close()

    @property
    def _id(self) -> str:
        return f"{self._sent_event or ''}~{self._text.cursor or ''}"

    def _take_events(self, events: Sequence[EncodedEvent]) -> Iterator[StreamMessage]:
        for event in events:
            if not event.cursor:
                if self._wanted.ephemeral:
                    yield StreamMessage("ephemeral", event.data)
            elif self._wanted.events:
                self._sent_event = event.cursor
                yield StreamMessage("event", event.data, self._id)

    def _take_text(self, pieces: Sequence[TextPiece]) -> Iterator[StreamMessage]:
        for group in _adjacent(pieces):
            id = f"{self._sent_event or ''}~{group[-1].cursor}"
            yield StreamMessage("text", self._hub.encode_text(group), id)

    async def _stop_waiting_for_text(self) -> bool:
        """Return whether the text has no end, because the run was retried after its last event."""
        now = asyncio.get_running_loop().time()
        if self._text_ends_at is None:
            self._text_ends_at = now + _TEXT_END_SECONDS
        if now < self._text_ends_at:
            return False
        self._text_ends_at = None
        try:
            return (await self._hub.rows.get()).status not in ENDED
        except HoldfastError as error:
            self._end = self._failed(error)
            return False

    def _ended(self) -> StreamMessage:
        if not self._wanted.follow:
            return self.end("ended" if self._status in ENDED else "caught_up")
        self._status = self._hub.final_status or self._status
        return self.end("ended")

    def _failed(self, error: Exception) -> StreamMessage:
        if isinstance(error, RunNotFound):
            return self.end("deleted")
        if isinstance(error, HoldfastError):
            return self.end("error", error.code)
        _log.error("%s: a stream of it failed", self._hub.log_name, exc_info=error)
        return self.end("error", "internal")


def _adjacent(pieces: Sequence[TextPiece]) -> Iterator[list[TextPiece]]:
    """Yield pieces in groups that can be joined: of one answer, without an end in between."""
    group: list[TextPiece] = []
    for piece in pieces:
        if group and (group[-1].call != piece.call or group[-1].last or piece.restarted):
            yield group
            group = []
        group.append(piece)
    if group:
        yield group


async def join_run(
    hub: RunHub, cursor: StreamCursor, wanted: Wanted
) -> tuple[RunFollower, StreamMessage]:
    """Return a new follower of a run, and its first message.

    Raises:
        RunNotFound: there is no such run, or its journal is deleted.
        InvalidQuery: the cursor is not one of this run.
        HubReplaced: another run has the id by now.
    """
    follower = RunFollower(hub, cursor, wanted)
    try:
        return follower, await follower.open(await hub.read_row(cursor))
    except BaseException:
        follower.close()
        raise
