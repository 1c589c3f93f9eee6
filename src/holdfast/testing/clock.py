"""The clock of a test kit: it stands still until the test moves it."""

from __future__ import annotations

import asyncio
import heapq
import math
from datetime import UTC, datetime

from holdfast.clock import ManualClock

__all__ = ["KitClock"]


class KitClock(ManualClock):
    """A clock that stands still, and that knows who sleeps until when."""

    @property
    def now(self) -> datetime:
        """The time that the clock shows."""
        return datetime.fromtimestamp(self.now_ms() / 1000, UTC)

    def list_sleepers(self) -> dict[asyncio.Future[None], int]:
        """Return what the sleeping tasks await, each with the time at which it wakes."""
        self._sleepers = [each for each in self._sleepers if not each[2].done()]
        heapq.heapify(self._sleepers)
        return {woken: math.ceil(due_ms) for due_ms, _, woken in self._sleepers}

    def move_to(self, now_ms: int) -> None:
        """Move the time forward to a moment and wake the sleepers that are due."""
        self.advance(max(now_ms - self.now_ms(), 0) / 1000)
