"""Limits how often one thing is asked for, in this process."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from holdfast.clock import Clock
from holdfast.errors import TooManyRequests

__all__ = ["RequestRate"]

_KNOWN_MAX = 10_000


class RequestRate:
    """Admits a number of requests for one name in each window of time."""

    def __init__(self, clock: Clock, *, requests: int, seconds: float) -> None:
        self._clock = clock
        self._requests = requests
        self._seconds = seconds
        # When the window of a name began, and how many requests it has admitted.
        self._windows: OrderedDict[bytes, tuple[float, int]] = OrderedDict()

    def admit(self, name: str) -> None:
        """Count a request.

        Raises:
            TooManyRequests: the window has no room for it.
        """
        # Not the name itself: it may be a secret, and as long as a sender likes.
        key, now = hashlib.blake2b(name.encode(), digest_size=16).digest(), self._clock.monotonic()
        began, count = self._windows.pop(key, (now, 0))
        if now - began >= self._seconds:
            began, count = now, 0
        self._windows[key] = (began, min(count + 1, self._requests))
        if len(self._windows) > _KNOWN_MAX:
            self._windows.popitem(last=False)
        if count >= self._requests:
            raise TooManyRequests(
                f"at most {self._requests} requests in {self._seconds:g} s are admitted here",
                retry_after_seconds=self._seconds - (now - began),
            )
