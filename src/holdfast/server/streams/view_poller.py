"""`ViewPoller`: reads something that is stored again and again, for all who follow it."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from holdfast.server.streams.shared_read import SharedRead
from holdfast.server.streams.waiting import wait_at_most

__all__ = ["ViewPoller"]

V = TypeVar("V")


class ViewPoller(Generic[V]):
    """The current view of something, and the task that reads it."""

    def __init__(self, *, poll_seconds: float) -> None:
        self.listeners: set[asyncio.Event] = set()
        """Set when the view has changed."""
        self.joining = 0
        """How many followers are about to join."""
        self.view: V | None = None
        self.error: Exception | None = None
        """Why it reads no more."""
        self._poll_seconds = poll_seconds
        self._reads = SharedRead(self._read)
        self._task: asyncio.Task[None] | None = None
        self._is_closed = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether it can be read no more."""
        return self.error is not None

    @property
    def is_used(self) -> bool:
        """Whether it has followers."""
        return bool(self.listeners) or self.joining > 0

    @property
    def is_worth_keeping(self) -> bool:
        """Whether a follower that comes back soon can use it."""
        return not self.is_over and self.view is not None

    async def read_view(self, before: V | None) -> V:
        """Read what there is now; return ``before`` itself if nothing has changed."""
        raise NotImplementedError

    def is_last(self, view: V) -> bool:
        """Return whether no view follows this one, so that the task may end."""
        return False

    async def refresh(self) -> V:
        """Read the view now, together with others, and from then on."""
        view = await self._reads.get()
        if (self._task is None or self._task.done()) and not self._is_closed.is_set():
            self._task = asyncio.create_task(self._poll())
        return view

    async def close(self) -> None:
        """Stop reading."""
        self._is_closed.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _poll(self) -> None:
        try:
            while self.view is not None and not self.is_last(self.view):
                await wait_at_most(self._is_closed, self._poll_seconds)
                if self._is_closed.is_set():
                    return
                await self._reads.get()
        except Exception as error:  # the followers tell it
            self.error = error
            self._wake()

    async def _read(self) -> V:
        before = self.view
        view = await self.read_view(before)
        if view is not before:
            self.view = view
            self._wake()
        return view

    def _wake(self) -> None:
        for listener in self.listeners:
            listener.set()
