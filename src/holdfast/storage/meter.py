"""`Meter`: the cost of a store's operations in units and dollars, their latency, and their errors.

The engine supplies the units: DynamoDB reports them, and SQLite computes them by the same rules.
So a test on a laptop predicts the cost of a month on DynamoDB.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import msgspec

from holdfast.clock import SystemClock
from holdfast.storage.latency import Histogram, HistogramCounter
from holdfast.storage.prices import PRICES, PriceList
from holdfast.storage.units import NO_UNITS, Units, sum_units

__all__ = ["Meter", "MeterRow", "Report", "StoreFailure"]

HOURS_PER_MONTH = 730


class MeterRow(msgspec.Struct, frozen=True):
    """The calls and the cost of one kind of operation for one purpose."""

    purpose: str
    operation: str
    calls: int
    units: Units


class StoreFailure(msgspec.Struct, frozen=True):
    """How often operations of one kind failed with one error."""

    operation: str
    code: str
    """The code of the error, such as ``throttled``."""
    times: int


class Report(msgspec.Struct, frozen=True):
    """The operations since the meter was created or reset, and their cost."""

    rows: tuple[MeterRow, ...]
    prices: PriceList

    @property
    def calls(self) -> int:
        return sum(row.calls for row in self.rows)

    @property
    def units(self) -> Units:
        return sum_units(row.units for row in self.rows)

    @property
    def usd(self) -> float:
        """The cost of all operations, in dollars."""
        return cost_usd(self.units, self.prices)

    def by_purpose(self) -> dict[str, Units]:
        """Return the units of each purpose."""
        sums: dict[str, Units] = {}
        for row in self.rows:
            sums[row.purpose] = sums.get(row.purpose, NO_UNITS) + row.units
        return sums

    def usd_per_month(self, times_per_hour: float) -> float:
        """Return the cost of a month if all of these operations happen that many times an hour."""
        return self.usd * times_per_hour * HOURS_PER_MONTH

    def __str__(self) -> str:
        lines = [
            f"{'purpose':<12} {'operation':<11} {'calls':>8} {'read':>10} {'write':>10} "
            f"{'blob bytes':>14} {'usd':>12}"
        ]
        lines += [
            f"{row.purpose:<12} {row.operation:<11} {row.calls:>8,} {row.units.reads:>10,.1f} "
            f"{row.units.writes:>10,.1f} {row.units.blob_bytes:>14,} "
            f"{cost_usd(row.units, self.prices):>12.8f}"
            for row in self.rows
        ]
        lines.append(
            f"{'total':<24} {self.calls:>8,} {self.units.reads:>10,.1f} "
            f"{self.units.writes:>10,.1f} {self.units.blob_bytes:>14,} {self.usd:>12.8f}"
        )
        lines.append(f"(prices of {self.prices.region} since {self.prices.valid_from})")
        return "\n".join(lines)


class _MeterSum:
    """Calls and units so far. Mutable, because it changes with every operation."""

    __slots__ = ("_capacity", "_requests", "calls", "latency")

    def __init__(self) -> None:
        self.calls = 0
        self.latency = HistogramCounter()
        self._capacity = [0.0, 0.0, 0.0, 0.0]
        self._requests = [0, 0, 0]

    def add(self, units: Units) -> None:
        self.calls += 1
        capacity, requests = self._capacity, self._requests
        capacity[0] += units.read
        capacity[1] += units.write
        capacity[2] += units.index_read
        capacity[3] += units.index_write
        requests[0] += units.blob_puts
        requests[1] += units.blob_gets
        requests[2] += units.blob_bytes

    @property
    def units(self) -> Units:
        read, write, index_read, index_write = self._capacity
        blob_puts, blob_gets, blob_bytes = self._requests
        return Units(read, write, index_read, index_write, blob_puts, blob_gets, blob_bytes)


class Meter:
    """Counts units by purpose and by operation, latencies and errors; safe in threads."""

    def __init__(self, now: Callable[[], float] | None = None) -> None:
        """``now`` returns seconds that never decrease: the latency is a difference of two."""
        self.now = now or SystemClock().monotonic
        self._lock = threading.Lock()
        self._sums: dict[tuple[str, str], _MeterSum] = {}
        self._failures: Counter[tuple[str, str]] = Counter()
        self._retries: Counter[str] = Counter()

    def record(
        self, purpose: str, operation: str, units: Units, *, began: float | None = None
    ) -> None:
        """Count one operation; ``began`` is when it began, by the meter's own clock."""
        seconds = None if began is None else self.now() - began
        with self._lock:
            sum_ = self._sums.get((purpose, operation))
            if sum_ is None:
                sum_ = self._sums[purpose, operation] = _MeterSum()
            sum_.add(units)
            if seconds is not None:
                sum_.latency.add(seconds)

    def record_failure(self, operation: str, code: str) -> None:
        """Count an error of an operation."""
        with self._lock:
            self._failures[operation, code] += 1

    def record_retry(self, code: str) -> None:
        """Count a request that is sent again after this error, inside of one operation."""
        with self._lock:
            self._retries[code] += 1

    def latencies(self) -> dict[str, Histogram]:
        """Return how long the operations took, by their kind."""
        with self._lock:
            found = [(name[1], sum_.latency.histogram) for name, sum_ in self._sums.items()]
        sums: dict[str, Histogram] = {}
        for operation, histogram in sorted(found, key=lambda pair: pair[0]):
            known = sums.get(operation)
            sums[operation] = histogram if known is None else known + histogram
        return sums

    def retries(self) -> dict[str, int]:
        """Return how often requests were sent again, by the error; a throttle is ``throttled``."""
        with self._lock:
            return dict(self._retries)

    def failures(self) -> tuple[StoreFailure, ...]:
        """Return how often operations failed, by their kind and by the error.

        A condition that does not hold counts as a failure of its write, though it is none of the
        store: ``condition_failed`` and ``transaction_cancelled`` are part of normal work.
        """
        with self._lock:
            found = sorted(self._failures.items())
        return tuple(StoreFailure(*name, times) for name, times in found)

    def report(self, prices: PriceList = PRICES) -> Report:
        """Return the operations so far, with their cost by a price list."""
        with self._lock:
            rows = [MeterRow(*name, sum_.calls, sum_.units) for name, sum_ in self._sums.items()]
        return Report(tuple(sorted(rows, key=lambda row: (row.purpose, row.operation))), prices)

    def reset(self) -> None:
        """Set all counts to zero."""
        with self._lock:
            self._sums.clear()
            self._failures.clear()
            self._retries.clear()


def cost_usd(units: Units, prices: PriceList) -> float:
    """Return the cost of units by a price list."""
    table = (
        units.writes * prices.write_units_million_usd + units.reads * prices.read_units_million_usd
    )
    blobs = (
        units.blob_puts * prices.blob_puts_thousand_usd
        + units.blob_gets * prices.blob_gets_thousand_usd
    )
    return table / 1_000_000 + blobs / 1000
