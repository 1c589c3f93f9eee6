"""The clocks of the world: the true one, and those of the processes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.process import Process

__all__ = ["EPOCH_MS", "ProcessClock"]

_SECONDS_MIN = 1e-6
EPOCH_MS = 1_700_000_000_000
"""The true wall clock at the beginning of every world."""


class ProcessClock:
    """The clock of one process: its wall clock may be off, its seconds are true."""

    def __init__(self, process: Process, skew_seconds: float) -> None:
        self._process = process
        self._loop = process.world.loop
        self._offset_ms = EPOCH_MS + skew_seconds * 1000
        self.skew_seconds = skew_seconds

    def now_ms(self) -> int:
        return int(self._offset_ms + self._loop.now * 1000)

    def monotonic(self) -> float:
        return self._loop.now

    async def sleep(self, seconds: float) -> None:
        process = self._process
        woken = process.promise()
        # However short, it takes time: who waits for a moment would wait for it forever otherwise.
        seconds = max(seconds, _SECONDS_MIN) if seconds > 0 else 0
        process.run_risk(seconds)
        overshoot_max = process.world.plan.overshoot_seconds_max
        if overshoot_max and seconds:
            seconds += process.world.random.random() * overshoot_max
        timer = self._loop.call_at(self._loop.now + seconds, _wake, woken, context=process.context)
        try:
            await woken
        finally:
            timer.cancel()


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
