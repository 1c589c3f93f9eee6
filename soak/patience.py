"""How long a round waits for its runs to end: the time that its processes could run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

__all__ = ["Patience", "Starved", "queued_seconds"]

STARVED_FACTOR = 5
"""After so many times the seconds, a machine that is still too busy does not judge."""
SPAN_SECONDS = 3.0
QUEUED_SHARE_MAX = 0.25


class Starved(Exception):
    """The machine had no time for the processes, so what they left undone says nothing."""


def queued_seconds() -> dict[int, float]:
    """Return how long each thread of this process and its descendants has queued for a core.

    Empty where the system does not tell.
    """
    queued: dict[int, float] = {}
    family = [os.getpid()]
    for pid in family:
        for task in Path(f"/proc/{pid}/task").glob("*"):
            # A process may end at any moment.
            with suppress(OSError, ValueError):
                _, queued_ns, _ = (task / "schedstat").read_text().split()
                queued[int(task.name)] = int(queued_ns) / 1e9
                family += map(int, (task / "children").read_text().split())
    return queued


class Patience:
    """Counts down the seconds in which every process of a round got a core when it wanted one.

    A worker that gets no core for a lease, or whose store gets none, loses its runs again and
    again. That is right, and its runs do not end. So a span counts only if each thread of the soak
    and of its children, servers included, queued for a small part of it.
    """

    def __init__(
        self,
        seconds: float,
        *,
        queued: Callable[[], dict[int, float]] = queued_seconds,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._left = seconds
        self._queued = queued
        self._monotonic = monotonic
        self._seen_at = monotonic()
        self._deadline = self._seen_at + seconds * STARVED_FACTOR
        self._before = self._queued()

    def is_over(self) -> bool:
        """Count the time since the last span; return whether none is left.

        Raises:
            Starved: it takes too long until enough of it counts.
        """
        now = self._monotonic()
        passed = now - self._seen_at
        if passed < SPAN_SECONDS:
            return False
        queued = self._queued()
        # A thread that is new began within the span.
        longest = max((queued[one] - self._before.get(one, 0.0) for one in queued), default=0.0)
        self._seen_at, self._before = now, queued
        if longest < QUEUED_SHARE_MAX * passed:
            self._left -= passed
        elif now > self._deadline:
            raise Starved
        return self._left <= 0
