"""The only module that reads the time, creates ids, draws random numbers or sleeps.

All other code gets a `Clock` and an `Ids`, so that a test or the simulator decides what time it is.
A lint rule bans the functions used here from the rest of the project.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["Clock", "Ids", "ManualClock", "SeededIds", "SystemClock", "SystemIds"]


class Clock(Protocol):
    """Tells the time, and waits."""

    def now_ms(self) -> int:
        """Return the wall clock's milliseconds since 1970, UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never decrease; only differences have a meaning."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait until that many seconds have passed on this clock."""
        ...


class Ids(Protocol):
    """Creates ids and draws random numbers."""

    def new(self) -> str:
        """Return a new UUIDv7 as text, which sorts by the time of its creation.

        Each id is greater than all earlier ones of this process, even if its clock was set back.
        Ids of two processes are in the order of their clocks. Each has 62 new random bits, so that
        one id does not help to guess another.
        """
        ...

    def key(self) -> bytes:
        """Return 32 random bytes for a secret key."""
        ...

    def random(self) -> float:
        """Return a random number from 0 up to but not including 1."""
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
    """A clock that stands still until `advance` moves it: for tests."""

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
        """Move the time forward and wake the sleepers that are due, the earliest first."""
        self._now_ms += round(seconds * 1000)
        while self._sleepers and self._sleepers[0][0] <= self._now_ms:
            _, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)


# A UUIDv7: 48 bits of milliseconds, 12 bits of the fraction of a millisecond (RFC 9562, method 3),
# then 62 random bits. A tick is the unit of the fraction, about 244 ns.
_FRACTION_BITS = 12
_RANDOM_BITS = 62
_FREE_BITS = _FRACTION_BITS + _RANDOM_BITS
_KEY_BYTES = 32


def _uuid7_text(now_ms: int, free: int) -> str:
    high, low = free >> _RANDOM_BITS, free & ((1 << _RANDOM_BITS) - 1)
    number = (now_ms << 80) | (0x7 << 76) | (high << 64) | (0b10 << 62) | low
    digits = f"{number:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


class _IdSequence:
    """Strictly increasing ids from one clock; thread-safe.

    Only the tick orders them. Each id has new random bits, so that it reveals nothing about the
    next one, and a forked process creates other ids than its parent.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._last = 0

    def new(self) -> str:
        drawn = int.from_bytes(os.urandom(8), "big") >> (64 - _RANDOM_BITS)
        with self._lock:
            now = (self._now_ns() << _FRACTION_BITS) // 1_000_000
            # If the clock shows no later tick, or was set back, take the next tick: the order
            # matters more than the time. Python creates fewer ids than there are ticks, so a
            # running clock catches up.
            tick = self._last = max(now, self._last + 1)
        fraction = tick & ((1 << _FRACTION_BITS) - 1)
        return _uuid7_text(tick >> _FRACTION_BITS, (fraction << _RANDOM_BITS) | drawn)


# One sequence for the whole process, so that all of its ids are in the order of their creation.
_SYSTEM_SEQUENCE = _IdSequence(time.time_ns)


class SystemIds:
    """Time-ordered ids from the machine's clock and randomness; thread-safe."""

    def __init__(self, clock: Clock | None = None) -> None:
        if clock is None or isinstance(clock, SystemClock):
            self._sequence = _SYSTEM_SEQUENCE
        else:
            self._sequence = _IdSequence(lambda: clock.now_ms() * 1_000_000)

    def new(self) -> str:
        return self._sequence.new()

    def key(self) -> bytes:
        return os.urandom(_KEY_BYTES)

    def random(self) -> float:
        return random.random()


class SeededIds:
    """Ids and random numbers that depend only on a seed and a clock: for tests only."""

    def __init__(self, seed: int, clock: Clock) -> None:
        self._random = random.Random(seed)
        self._clock = clock
        self._counter = itertools.count()
        self._last_ms = 0

    def new(self) -> str:
        free = (next(self._counter) << 42) | self._random.getrandbits(42)
        # As in `SystemIds`: ids keep their order even if the clock was set back.
        self._last_ms = max(self._clock.now_ms(), self._last_ms)
        return _uuid7_text(self._last_ms, free & ((1 << _FREE_BITS) - 1))

    def key(self) -> bytes:
        return self._random.randbytes(_KEY_BYTES)

    def random(self) -> float:
        return self._random.random()
