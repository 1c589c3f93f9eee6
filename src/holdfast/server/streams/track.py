"""`Track`: one reader of a run's events or text, and the backlog that its followers share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from holdfast.engine.history.run_stream import RunStream
from holdfast.server.streams.backlog import Backlog, Entry
from holdfast.server.streams.cursor import Place

__all__ = ["Track"]

T = TypeVar("T")
C = TypeVar("C")


class Track(Generic[C]):
    """Reads a stream once for any number of followers.

    The reader stops while its backlog is full and no follower has read the oldest message. So it is
    as fast as its fastest follower. A slower one falls behind, and the others do not wait for it.
    """

    def __init__(self, backlog: Backlog[C], *, wake: Callable[[], None]) -> None:
        self.backlog = backlog
        self.reaches: Place | None = None
        """The place up to which everything is read when this is done, also if nothing is there."""
        self.is_done = False
        """Whether all was read, or the reader failed."""
        self.error: Exception | None = None
        self.followers = 0
        self._wake = wake
        self._furthest = 0
        self._progress = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self, stream: RunStream[T], entry_of: Callable[[T], Entry[C] | None]) -> None:
        """Check the run and the cursor, and read from then on. ``entry_of`` may drop an item.

        Raises:
            RunNotFound: there is no such run, or what the stream reads is deleted.
            InvalidQuery: the cursor is not one of this run.
        """
        try:
            await stream.open()
        except BaseException:
            await stream.aclose()
            raise
        self._task = asyncio.create_task(self._read(stream, entry_of))

    def note_taken(self, number: int) -> None:
        """Note that a follower has taken all messages before a number."""
        if number > self._furthest:
            self._furthest = number
            self._progress.set()

    async def close(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _read(self, stream: RunStream[T], entry_of: Callable[[T], Entry[C] | None]) -> None:
        try:
            async with stream:
                async for item in stream:
                    entry = entry_of(item)
                    if entry is not None:
                        await self._make_room(entry.size)
                        self.backlog.append(entry)
                        self._wake()
        except Exception as error:  # the followers tell it
            self.error = error
        finally:
            self.is_done = True
            self._wake()

    async def _make_room(self, size: int) -> None:
        while not self.backlog.has_room(size):
            while self.backlog.first >= self._furthest:
                self._progress.clear()
                await self._progress.wait()
            self.backlog.drop_oldest()
