"""The latency and the errors of operations, as the meter counts them."""

from __future__ import annotations

import pytest

from holdfast.clock import ManualClock
from holdfast.errors import ConditionFailed, Throttled
from holdfast.storage import Absent, Histogram, Meter, Put, StoreFailure, Table, Units
from holdfast.storage.latency import LATENCY_BOUNDS, HistogramCounter
from holdfast.storage.layout import LAYOUT, Key
from holdfast.storage.operations import Operation, Reply
from holdfast.storage.sqlite import MEMORY, SqliteEngine
from holdfast.storage.writes import Write


class SlowEngine:
    """An engine whose operations take as long, or fail, as a test says."""

    layout = LAYOUT
    poll_seconds = 1.0

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.seconds = 0.0
        self.error: Exception | None = None

    async def perform(self, operation: Operation) -> Reply:
        self.clock.advance(self.seconds)
        if self.error is not None:
            raise self.error
        return Reply(units=Units(read=1))


def slow_table() -> tuple[SlowEngine, Meter, Table]:
    clock = ManualClock()
    engine, meter = SlowEngine(clock), Meter(clock.monotonic)
    return engine, meter, Table(engine, meter, "head")  # type: ignore[arg-type]


async def test_each_operation_falls_into_the_bucket_of_its_duration() -> None:
    engine, meter, table = slow_table()
    for engine.seconds in (0.002, 0.002, 0.3, 60):
        await table.with_purpose("journal").get(Key("a", "b"))
    histogram = meter.latencies()["get"]
    counts = dict(zip((*LATENCY_BOUNDS, None), histogram.counts, strict=True))
    assert {bound: count for bound, count in counts.items() if count} == {
        0.0025: 2,
        0.5: 1,
        None: 1,
    }
    assert histogram.seconds == pytest.approx(60.304)


async def test_latencies_of_all_purposes_add_up() -> None:
    _, meter, table = slow_table()
    await table.get(Key("a", "b"))
    await table.with_purpose("journal").get(Key("a", "b"))
    assert meter.latencies()["get"].count == 2


async def test_an_error_counts_by_operation_and_code_and_has_no_latency() -> None:
    engine, meter, table = slow_table()
    engine.error = Throttled("busy")
    with pytest.raises(Throttled):
        await table.get(Key("a", "b"))
    assert meter.failures() == (StoreFailure("get", "throttled", 1),)
    assert meter.latencies() == {}


async def test_a_refused_write_counts_with_its_latency() -> None:
    meter = Meter()
    table = Table(SqliteEngine(MEMORY), meter)
    put: Write = Put({"PK": "a", "SK": "b"}, condition=Absent("PK"))
    await table.write(put)
    with pytest.raises(ConditionFailed):
        await table.write(put)
    assert meter.failures() == (StoreFailure("write", "condition_failed", 1),)
    assert meter.latencies()["write"].count == 2
    await table.close()


def test_reset_forgets_latencies_failures_and_retries() -> None:
    meter = Meter()
    meter.record("head", "get", Units(), began=meter.now())
    meter.record_failure("get", "throttled")
    meter.record_retry("throttled")
    assert meter.retries() == {"throttled": 1}
    meter.reset()
    assert (meter.latencies(), meter.failures(), meter.retries()) == ({}, (), {})


@pytest.mark.parametrize(
    ("counts", "share", "seconds"),
    [
        ((0, 0, 0), 0.99, 0.0),
        ((4, 0, 0), 0.5, 0.5),
        ((2, 2, 0), 0.75, 1.5),
        ((1, 0, 1), 0.99, 2.0),
        ((0, 0, 9), 0.5, 2.0),
    ],
)
def test_quantiles_are_interpolated_and_bounded(
    counts: tuple[int, ...], share: float, seconds: float
) -> None:
    assert Histogram((1.0, 2.0), counts, 0.0).quantile(share) == seconds


def test_a_duration_at_a_bound_belongs_to_its_bucket() -> None:
    counter = HistogramCounter((1.0, 2.0))
    counter.add(1.0)
    assert counter.histogram.counts == (1, 0, 0)
