"""Rates of requests: one token bucket for each caller, in the memory of this process."""

from __future__ import annotations

import math
from collections import OrderedDict

from holdfast.clock import Clock
from holdfast.errors import TooManyRequests
from holdfast.server.options import Rate

__all__ = ["Throttle"]

_BUCKETS_MAX = 10_000


class Throttle:
    """Admits requests up to a rate for each name.

    It remembers the names that asked last. A forgotten name starts with a full bucket.
    """

    def __init__(self, rate: Rate, clock: Clock) -> None:
        self._rate = rate
        self._clock = clock
        # For each name: when its bucket is full again. One request moves it by one interval.
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def admit(self, name: str) -> None:
        """Count a request.

        Raises:
            TooManyRequests: the name has used its rate; the error says when to try again.
        """
        self.check(name)
        self.count(name)

    def check(self, name: str) -> None:
        """Check that a request would be admitted, without counting it.

        Raises:
            TooManyRequests: as `admit`.
        """
        now = self._clock.monotonic()
        wait = self._full_at.get(name, now) + 1 / self._rate.per_second - now
        wait -= self._rate.burst / self._rate.per_second
        if wait > 1e-9:  # less is a rounding error
            raise TooManyRequests(
                "too many requests; try again later", retry_after_seconds=math.ceil(wait)
            )

    def count(self, name: str) -> None:
        """Count a request that was admitted, or that failed."""
        now = self._clock.monotonic()
        full_at = max(self._full_at.pop(name, now), now) + 1 / self._rate.per_second
        self._full_at[name] = full_at
        if len(self._full_at) > _BUCKETS_MAX:
            self._full_at.popitem(last=False)
