"""`SharedReader`: reads the events or the text of a run for all of its followers.

A follower of what is written now takes it from the main track. One that is further behind takes
what is stored from another track, until it reaches the backlog of the main one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from holdfast.engine.history.run_stream import RunStream
from holdfast.server.streams.backlog import Backlog, Entry
from holdfast.server.streams.cursor import Place
from holdfast.server.streams.track import Track

__all__ = ["FellBehind", "Lane", "ReaderLimits", "SharedReader"]

C = TypeVar("C")

# What a follower takes at a time, so that it notices soon that it must end.
_BATCH_ENTRIES_MAX = 256
_BATCH_BYTES_MAX = 256 * 1024


class FellBehind(Exception):
    """A follower was so slow that messages left the backlog before it took them."""


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    """How much a backlog keeps."""

    messages_max: int
    bytes_max: int


class SharedReader(Generic[C]):
    """The tracks of one kind of messages of a run."""

    def __init__(
        self,
        stream_of: Callable[[str | None, bool], RunStream[Any]],
        entry_of: Callable[[Any], Entry[C] | None],
        *,
        limits: ReaderLimits,
        wake: Callable[[], None],
    ) -> None:
        """``stream_of`` takes a cursor, and whether to follow the run."""
        self.main: Track[C] | None = None
        self._stream_of = stream_of
        self._entry_of = entry_of
        self._limits = limits
        self._wake = wake
        self._behind: set[Track[C]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._lock = asyncio.Lock()

    async def join(self, place: Place | None, cursor: str | None, *, new: bool) -> Track[C]:
        """Return a track that has all messages after a place, and open it if there is none.

        For a ``new`` follower, check that its cursor exists.

        Raises:
            RunNotFound: there is no such run, or what the stream reads is deleted.
            InvalidQuery: the cursor is not one of this run.
        """
        async with self._lock:
            if self.main is None:
                self.main = await self.open(place, cursor, follow=True)
            last = self.main.backlog.last
            if new and place is not None and (last is None or place > last):
                async with self._stream_of(cursor, False):
                    pass
            track = self._covering(self.main, place)
            if track is None:
                reaches = self.main.backlog.begin
                track = await self.open(place, cursor, follow=False)
                track.reaches = reaches
                self._behind.add(track)
            track.followers += 1
            return track

    async def open(self, place: Place | None, cursor: str | None, *, follow: bool) -> Track[C]:
        """Open a track that begins at a place.

        Raises:
            RunNotFound: there is no such run, or what the stream reads is deleted.
            InvalidQuery: the cursor is not one of this run.
        """
        limits = self._limits
        backlog: Backlog[C] = Backlog(
            place, count_max=limits.messages_max, bytes_max=limits.bytes_max
        )
        track = Track(backlog, wake=self._wake)
        await track.open(self._stream_of(cursor, follow), self._entry_of)
        return track

    def leave(self, track: Track[C]) -> None:
        """Let a follower leave a track. A track without followers ends, except the main one."""
        track.followers -= 1
        if track is not self.main and track.followers <= 0:
            self._behind.discard(track)
            task = asyncio.create_task(track.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Stop all tracks."""
        main = () if self.main is None else (self.main,)
        for track in (*main, *self._behind):
            await track.close()
        if self._closing:
            await asyncio.wait(self._closing)

    def _covering(self, main: Track[C], place: Place | None) -> Track[C] | None:
        behind = [track for track in self._behind if not track.is_done]
        return next((each for each in (main, *behind) if each.backlog.covers(place)), None)


class Lane(Generic[C]):
    """The way of one follower through the messages of one kind."""

    def __init__(
        self, reader: SharedReader[C], place: Place | None, cursor: str | None, *, follow: bool
    ) -> None:
        self._reader = reader
        self._place = place
        self.cursor = cursor
        """The cursor of the last recorded message that was taken."""
        self._follow = follow
        self._track: Track[C] | None = None
        self._number = 0
        # What is not recorded is no news if it happened before the follower came.
        self._since = 0 if reader.main is None else reader.main.backlog.next

    @property
    def is_over(self) -> bool:
        """Whether all was taken, and nothing more comes."""
        track = self._track
        if track is None or (self._follow and track is not self._reader.main):
            return False
        return track.is_done and self._number >= track.backlog.next

    @property
    def error(self) -> Exception | None:
        """The error of the reader."""
        return None if self._track is None else self._track.error

    async def open(self) -> None:
        """Check the cursor, and join a track.

        Raises:
            RunNotFound: there is no such run, or what the stream reads is deleted.
            InvalidQuery: the cursor is not one of this run.
        """
        if self._follow:
            self._enter(await self._reader.join(self._place, self.cursor, new=True))
            return
        self._enter(await self._reader.open(self._place, self.cursor, follow=False))
        self._since = 0

    async def take(self, cursor_of: Callable[[C], str]) -> list[C]:
        """Return the next messages; none if there are none yet.

        Raises:
            FellBehind: messages left the backlog of the main track before they were taken.
        """
        taken: list[C] = []
        try:
            await self._take_into(taken, cursor_of)
        except Exception:
            if not taken:
                raise
        return taken  # the next call raises, if there is a reason to

    async def _take_into(self, taken: list[C], cursor_of: Callable[[C], str]) -> None:
        size = 0
        while len(taken) < _BATCH_ENTRIES_MAX and size < _BATCH_BYTES_MAX:
            track = self._joined_track()
            is_main = track is self._reader.main or not self._follow
            if self._number < track.backlog.first:
                if is_main:
                    raise FellBehind
                await self._rejoin()
                continue
            entry = track.backlog.get(self._number)
            if entry is None:
                if is_main or not track.is_done:
                    return
                self._pass(track)
                await self._rejoin()
                continue
            self._number += 1
            track.note_taken(self._number)
            if entry.place is None:
                if self._number <= self._since:
                    continue
            elif self._place is not None and entry.place <= self._place:
                continue
            else:
                self._place, self.cursor = entry.place, cursor_of(entry.content)
            taken.append(entry.content)
            size += entry.size

    def close(self) -> None:
        """Leave the track."""
        if self._track is not None:
            self._reader.leave(self._track)
            self._track = None

    def _joined_track(self) -> Track[C]:
        """Return the current track: the main one as soon as it covers the place."""
        track, main = self._track, self._reader.main
        assert track is not None
        if not self._follow or main is None or track is main:
            return track
        if not main.backlog.covers(self._place):
            return track
        main.followers += 1
        self.close()
        self._enter(main)
        return main

    def _pass(self, track: Track[C]) -> None:
        """Go to the place up to which a track has read everything that is stored."""
        if track.error is not None:
            raise track.error
        reached = track.reaches
        if reached is not None and (self._place is None or reached > self._place):
            self._place = reached  # what was between is no longer stored

    async def _rejoin(self) -> None:
        following = await self._reader.join(self._place, self.cursor, new=False)
        self.close()
        self._enter(following)

    def _enter(self, track: Track[C]) -> None:
        self._track = track
        self._number = track.backlog.first
