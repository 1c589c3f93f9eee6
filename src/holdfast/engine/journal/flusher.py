"""Makes records durable that wait for others to share a Put with, before they wait too long."""

from __future__ import annotations

import asyncio
from typing import Protocol

from holdfast.clock import Clock

__all__ = ["Flusher", "Holding"]

# How long the record of a call waits for others.
_HELD_SECONDS = 0.005


class Holding(Protocol):
    """Somebody who holds records back."""

    def flush_held(self) -> None:
        """Begin to write what is still held back."""
        ...


class Flusher:
    """Looks after all runs of a worker at once: a timer for each record would cost more than it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._holding: dict[Holding, None] = {}
        self._task: asyncio.Task[None] | None = None

    def soon(self, holding: Holding) -> None:
        """See to it that somebody does not hold records back for long."""
        self._holding[holding] = None
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._flush())

    def stop(self) -> None:
        """Look after nobody any more."""
        self._holding.clear()
        if self._task is not None:
            self._task.cancel()

    async def _flush(self) -> None:
        while self._holding:
            await self._clock.sleep(_HELD_SECONDS)
            holding, self._holding = self._holding, {}
            for each in holding:
                each.flush_held()
