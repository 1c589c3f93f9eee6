"""Histograms of durations: counts in fixed buckets, cheap to add to and exact to add up."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

__all__ = ["LATENCY_BOUNDS", "Histogram", "HistogramCounter"]

LATENCY_BOUNDS = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
"""The upper bounds of the buckets for operations of the store, in seconds."""


class Histogram(msgspec.Struct, frozen=True):
    """How many durations fell into each bucket."""

    bounds: tuple[float, ...]
    """The upper bounds of the buckets, in seconds; one more bucket has no bound."""
    counts: tuple[int, ...]
    """How many durations each bucket has, the last one those above all bounds."""
    seconds: float
    """The sum of all durations."""

    @property
    def count(self) -> int:
        """How many durations there are."""
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """Return the duration that this share of all durations does not exceed, interpolated.

        It is at most the largest bound, and 0 if there are no durations.
        """
        wanted, below, lower = share * self.count, 0, 0.0
        for count, upper in zip(self.counts, self.bounds, strict=False):
            if count and below + count >= wanted:
                return lower + (upper - lower) * max(wanted - below, 0) / count
            below, lower = below + count, upper
        return lower if below < self.count else 0.0

    def __add__(self, other: Histogram) -> Histogram:
        counts = tuple(
            mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)
        )
        return Histogram(self.bounds, counts, self.seconds + other.seconds)


class HistogramCounter:
    """A histogram that grows. It has no lock: add from one thread, or under a lock of your own."""

    __slots__ = ("_bounds", "_counts", "_seconds")

    def __init__(self, bounds: Sequence[float] = LATENCY_BOUNDS) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._seconds += seconds

    @property
    def histogram(self) -> Histogram:
        """The durations so far."""
        return Histogram(self._bounds, tuple(self._counts), self._seconds)
