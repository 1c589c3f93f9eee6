"""`SharedRead`: one read of the store for all who ask at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

__all__ = ["SharedRead"]

T = TypeVar("T")


class SharedRead(Generic[T]):
    """Answers all who ask at the same time with one read.

    The read begins after each of them asked, so that none of them gets an older value.
    """

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._current: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Read the value, together with others."""
        if self._next is None:
            self._next = asyncio.create_task(self._read_after(self._current))
            self._next.add_done_callback(_note_error)
        return await asyncio.shield(self._next)

    async def _read_after(self, earlier: asyncio.Task[T] | None) -> T:
        if earlier is not None and not earlier.done():
            await asyncio.wait({earlier})
        self._current, self._next = self._next, None
        return await self._read()


def _note_error(task: asyncio.Task[T]) -> None:
    """Take the error of a read whose readers all left, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()
