"""Makes records durable that wait for others to share a Put with, before they wait too long."""

from __future__ import annotations

import asyncio
from typing import Protocol

from holdfast.clock import Clock

__all__ = ["Flushable", "Flusher"]

# How long the record of a call waits for others.
_FLUSH_DELAY_SECONDS = 0.005


class Flushable(Protocol):
    """Somebody who holds records back."""

    def flush_buffered(self) -> None:
        """Begin to write what is still held back."""
        ...


class Flusher:
    """Looks after all runs of a worker at once: a timer for each record would cost more than it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pending: dict[Flushable, None] = {}
        self._task: asyncio.Task[None] | None = None

    def schedule(self, pending: Flushable) -> None:
        """See to it that somebody does not hold records back for long."""
        self._pending[pending] = None
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._flush())

    def stop(self) -> None:
        """Look after nobody any more."""
        self._pending.clear()
        if self._task is not None:
            self._task.cancel()

    async def _flush(self) -> None:
        while self._pending:
            await self._clock.sleep(_FLUSH_DELAY_SECONDS)
            pending, self._pending = self._pending, {}
            for each in pending:
                each.flush_buffered()
