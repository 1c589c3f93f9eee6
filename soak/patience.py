"""How long a round waits for its runs to end: the time that its processes could run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

__all__ = ["Patience", "Starved", "queued_seconds"]

STARVED_FACTOR = 5
"""After so many times the seconds, a machine that is still too busy does not judge."""
SPAN_SECONDS = 3.0
QUEUED_SHARE_MAX = 0.25


class Starved(Exception):
    """The machine had no time for the processes, so what they left undone says nothing."""


class Patience:
    """Counts down the seconds in which all processes got a core when they wanted one.

    A worker that gets no core for a lease loses its runs again and again. That is right, and its
    runs do not end. So a span counts only if each process queued for a small part of it.
    """

    def __init__(
        self,
        seconds: float,
        pids: Callable[[], Iterable[int]],
        *,
        queued: Callable[[int], float] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._left = seconds
        self._pids = pids
        self._queued = queued or queued_seconds
        self._monotonic = monotonic
        self._seen_at = monotonic()
        self._deadline = self._seen_at + seconds * STARVED_FACTOR
        self._before = self._measured()

    def is_over(self) -> bool:
        """Count the time since the last span; return whether none is left.

        Raises:
            Starved: it takes too long until enough of it counts.
        """
        now = self._monotonic()
        passed = now - self._seen_at
        if passed < SPAN_SECONDS:
            return False
        queued = self._measured()
        # A process that is new began within the span.
        longest = max((queued[pid] - self._before.get(pid, 0.0) for pid in queued), default=0.0)
        self._seen_at, self._before = now, queued
        if longest < QUEUED_SHARE_MAX * passed:
            self._left -= passed
        elif now > self._deadline:
            raise Starved
        return self._left <= 0

    def _measured(self) -> dict[int, float]:
        return {pid: self._queued(pid) for pid in self._pids()}


def queued_seconds(pid: int) -> float:
    """Return how long the main thread of a process has queued for a core; 0 where none can tell."""
    try:
        _, queued_ns, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    except (OSError, ValueError):
        return 0.0
    return int(queued_ns) / 1e9
