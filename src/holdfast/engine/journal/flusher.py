"""Flushes buffered records after a few milliseconds, if no other write takes them along."""

from __future__ import annotations

import asyncio
from typing import Protocol

from holdfast.clock import Clock
from holdfast.log_context import context_without_run

__all__ = ["Flushable", "Flusher"]

# How long a record waits for others to share its write.
_FLUSH_DELAY_SECONDS = 0.005


class Flushable(Protocol):
    """A claimed run with buffered records."""

    def flush_buffered(self) -> None:
        """Begin to write the buffered records."""
        ...


class Flusher:
    """Flushes all runs of a worker with one timer: a timer for each record would cost more."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pending: dict[Flushable, None] = {}
        self._task: asyncio.Task[None] | None = None

    def schedule(self, pending: Flushable) -> None:
        """Flush the buffered records of a run soon."""
        self._pending[pending] = None
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._flush(), context=context_without_run())

    def stop(self) -> None:
        """Flush nothing any more."""
        self._pending.clear()
        if self._task is not None:
            self._task.cancel()

    async def _flush(self) -> None:
        while self._pending:
            await self._clock.sleep(_FLUSH_DELAY_SECONDS)
            pending, self._pending = self._pending, {}
            for each in pending:
                each.flush_buffered()
