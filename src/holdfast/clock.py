"""The only place that reads time, makes ids, draws random numbers or sleeps.

Everything else is handed a `Clock` or an `Ids`, so that a test, and later the simulator, decides
what time it is. A lint rule bans the functions used here from the rest of the project.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import random
import threading
import time
from typing import Protocol

__all__ = ["Clock", "Ids", "ManualClock", "SeededIds", "SystemClock", "SystemIds"]


class Clock(Protocol):
    """Tells the time, and waits."""

    def now_ms(self) -> int:
        """Return the wall clock's milliseconds since 1970, UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never run back; only differences mean anything."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after that many seconds have passed on this clock."""
        ...


class Ids(Protocol):
    """Makes identifiers and draws random numbers."""

    def new(self) -> str:
        """Return a new UUIDv7 as text: unique, and in the order in which it was made."""
        ...

    def random(self) -> float:
        """Return a number from 0 up to but not including 1."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock that stands still until it is told to go on."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._started_ms = now_ms
        self._now_ms = now_ms
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return (self._now_ms - self._started_ms) / 1000

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        due_ms = self._now_ms + seconds * 1000
        heapq.heappush(self._sleepers, (due_ms, next(self._order), woken))
        await woken

    def advance(self, seconds: float) -> None:
        """Move the time on and wake whoever slept until then, the earliest first."""
        self._now_ms += round(seconds * 1000)
        while self._sleepers and self._sleepers[0][0] <= self._now_ms:
            _, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)


# A UUIDv7: 48 bits of milliseconds, then 74 free bits. The free bits start as a random number for
# each millisecond and count up within it, so that ids of one process are strictly increasing.
_COUNTER_BITS = 74
_COUNTER_MAX = (1 << _COUNTER_BITS) - 1


def _uuid7_text(now_ms: int, counter: int) -> str:
    high = counter >> 62
    low = counter & ((1 << 62) - 1)
    number = (now_ms << 80) | (0x7 << 76) | (high << 64) | (0b10 << 62) | low
    digits = f"{number:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


class SystemIds:
    """Time-ordered ids from the machine's clock and randomness; safe in threads."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._last_ms = 0
        self._counter = 0
        self._process = os.getpid()

    def new(self) -> str:
        with self._lock:
            now_ms = self._clock.now_ms()
            # A fork would go on counting where its parent goes on counting too.
            if now_ms > self._last_ms or os.getpid() != self._process:
                self._process = os.getpid()
                self._last_ms = max(now_ms, self._last_ms)
                # The top bit stays free, so that counting within a millisecond cannot overflow.
                self._counter = int.from_bytes(os.urandom(9), "big")
            else:
                # Also when the wall clock was set back: the order matters more than the time.
                self._counter = (self._counter + 1) & _COUNTER_MAX
            return _uuid7_text(self._last_ms, self._counter)

    def random(self) -> float:
        return random.random()


class SeededIds:
    """Time-ordered ids and random numbers that are the same for the same seed."""

    def __init__(self, seed: int, clock: Clock) -> None:
        self._random = random.Random(seed)
        self._clock = clock
        self._made = itertools.count()

    def new(self) -> str:
        counter = (next(self._made) << 42) | self._random.getrandbits(42)
        return _uuid7_text(self._clock.now_ms(), counter & _COUNTER_MAX)

    def random(self) -> float:
        return self._random.random()
