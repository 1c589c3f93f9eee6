"""The figures of one process for Prometheus: the store, runs, workers, models and requests.

Each server has a registry of its own. A scrape reads counters in memory and never waits for the
store. What only the store knows is read in the background, at most every 30 seconds.
"""

from __future__ import annotations

import asyncio
import platform
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import reduce
from importlib.metadata import version
from operator import add
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from holdfast.app import Holdfast
from holdfast.clock import Clock, SystemClock
from holdfast.display import get_logger
from holdfast.engine.effects.model_usage import ModelUsage
from holdfast.engine.worker.worker import Worker
from holdfast.errors import HoldfastError, StoreClosed
from holdfast.storage import Histogram
from holdfast.storage.latency import HistogramCounter
from holdfast.storage.meter import cost_usd

__all__ = ["REFRESH_SECONDS", "FleetFigures", "ServerMetrics"]

_log = get_logger("holdfast.server")

REFRESH_SECONDS = 30.0
"""How often the runs in the store are counted."""
LABEL_VALUES_MAX = 100
"""How many graphs, models, quotas or purposes a metric tells apart; the rest is ``other``."""
_OTHER = "other"
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "WEBSOCKET"))
_STATES = ("ready", "running", "waiting", "failed", "quarantined", "stuck", "unserved")
# What a worker counts, by the name of its metric.
_COUNTS = {
    "claimed": ("holdfast_claims", "Runs that workers of this process claimed."),
    "taken over": ("holdfast_takeovers", "Runs of dead workers that were made due again."),
    "lost": ("holdfast_lost_runs", "Runs that workers lost, mostly with their lease."),
    "cut off": ("holdfast_cut_off_runs", "Runs that were released because the store failed."),
    "unserved": ("holdfast_unserved_runs", "Runs that were left to a worker with their models."),
}


class FleetFigures(Protocol):
    """How many runs are in which state, and how many workers there are: see `Fleet.overview`."""

    @property
    def workers_alive(self) -> int: ...

    @property
    def workers_dead(self) -> int: ...


class ServerMetrics:
    """The metrics of one server or one worker process."""

    def __init__(
        self,
        hf: Holdfast,
        *,
        overview: Callable[[], Awaitable[FleetFigures]] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """``overview`` counts the runs of the store; without it these metrics are left out."""
        self.hf = hf
        self.workers: list[Worker] = []
        self._overview = overview
        self._clock = clock or SystemClock()
        self.fleet: FleetFigures | None = None
        self._refreshed_at: float | None = None
        self.registry = CollectorRegistry(auto_describe=False)
        self.requests: dict[tuple[str, str, str], HistogramCounter] = {}
        """How long requests took, by method, route and status."""
        self.streams_open = 0
        """How many event streams and WebSockets are open."""
        self.registry.register(_ProcessCollector(self))

    def watch(self, worker: Worker) -> None:
        """Include a worker of this process."""
        self.workers.append(worker)

    def record_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request; ``route`` is the template of its path, empty if there is none."""
        known = method if method in _METHODS else _OTHER
        labels = (known, route or "none", str(status))
        if labels not in self.requests:
            self.requests[labels] = HistogramCounter()
        self.requests[labels].add(seconds)

    @property
    def fleet_age_seconds(self) -> float | None:
        """How old the figures of the store are; None if they were never read."""
        if self._refreshed_at is None:
            return None
        return self._clock.monotonic() - self._refreshed_at

    def page(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    async def refresh(self) -> None:
        """Count the runs in the store; keep the old figures if the store does not answer."""
        if self._overview is None:
            return
        try:
            self.fleet = await self._overview()
            self._refreshed_at = self._clock.monotonic()
        except StoreClosed:
            raise
        except HoldfastError as error:
            _log.warning("the runs could not be counted for metrics: %s", error)

    @asynccontextmanager
    async def refreshing(self) -> AsyncGenerator[None]:
        """Count the runs in the store now and then, inside of the block."""
        task = asyncio.create_task(self._refresh_forever(), name="holdfast metrics")
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, HoldfastError):
                await task

    async def _refresh_forever(self) -> None:
        while self._overview is not None:
            await self.refresh()
            await self._clock.sleep(REFRESH_SECONDS)


class _ProcessCollector(Collector):
    """Turns what the process has counted into metrics when it is scraped."""

    def __init__(self, metrics: ServerMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        metrics = self._metrics
        yield _info()
        yield from _store_metrics(metrics.hf)
        yield from _worker_metrics(metrics.workers)
        yield from _run_metrics(metrics.workers)
        yield from _money_metrics(metrics.hf, metrics.workers)
        yield from _request_metrics(metrics)
        yield from _fleet_metrics(metrics.fleet, metrics.fleet_age_seconds)
        yield _counter(
            "holdfast_webhook_deliveries",
            "Webhooks that were sent, by outcome.",
            "outcome",
            metrics.hf.webhooks.attempts,
        )


def _info() -> Metric:
    info = GaugeMetricFamily("holdfast_build_info", "The release.", labels=("version", "python"))
    info.add_metric((version("holdfast"), platform.python_version()), 1)
    return info


def _store_metrics(hf: Holdfast) -> Iterator[Metric]:
    meter = hf.meter
    latencies = meter.latencies()
    seconds = HistogramMetricFamily(
        "holdfast_store_operation_seconds",
        "How long operations of the store took.",
        labels=("operation",),
    )
    quantiles = {
        0.5: ("holdfast_store_operation_p50_seconds", "The median of all operations so far."),
        0.99: ("holdfast_store_operation_p99_seconds", "99 % of all operations were faster."),
    }
    for operation, durations in latencies.items():
        _add_durations(seconds, (operation,), durations)
    yield seconds
    for share, (name, about) in quantiles.items():
        gauge = GaugeMetricFamily(name, about, labels=("operation",))
        for operation, durations in latencies.items():
            gauge.add_metric((operation,), durations.quantile(share))
        yield gauge
    errors = CounterMetricFamily(
        "holdfast_store_errors", "Operations that failed, by error.", labels=("operation", "code")
    )
    retries = meter.retries()
    throttles = retries.get("throttled", 0)
    for failure in meter.failures():
        errors.add_metric((failure.operation, failure.code), failure.times)
        throttles += failure.times if failure.code == "throttled" else 0
    yield errors
    yield _counter("holdfast_store_retries", "Requests that were sent again.", "code", retries)
    yield _single_counter(
        "holdfast_store_throttles", "Requests that the store was too busy for.", throttles
    )
    report = meter.report()
    units = CounterMetricFamily(
        "holdfast_store_units", "Capacity units by purpose.", labels=("purpose", "kind")
    )
    dollars = CounterMetricFamily(
        "holdfast_store_cost_usd", "What the store cost by purpose.", labels=("purpose",)
    )
    for purpose, used in sorted(report.by_purpose().items()):
        units.add_metric((purpose, "read"), used.reads)
        units.add_metric((purpose, "write"), used.writes)
        dollars.add_metric((purpose,), cost_usd(used, report.prices))
    yield units
    yield dollars


def _worker_metrics(workers: Iterable[Worker]) -> Iterator[Metric]:
    workers = list(workers)
    counts = sum((Counter(dict(worker.counts)) for worker in workers), Counter[str]())
    for name, (metric, about) in _COUNTS.items():
        yield _single_counter(metric, about, counts[name])
    yield _single_counter(
        "holdfast_resume_failures",
        "How often a run could not be resumed.",
        sum(worker.figures.resume_failures for worker in workers),
    )
    yield _single_gauge(
        "holdfast_worker_slots",
        "How many runs the workers of this process drive at most.",
        sum(worker.concurrency for worker in workers),
    )
    yield _single_gauge(
        "holdfast_worker_slots_used",
        "How many runs they drive.",
        sum(worker.running for worker in workers),
    )
    yield _single_gauge(
        "holdfast_workers_healthy",
        "How many workers of this process can do their work.",
        sum(worker.health.ok for worker in workers),
    )
    ages = [age for worker in workers if (age := worker.heartbeat_age_seconds) is not None]
    age_metric = GaugeMetricFamily(
        "holdfast_worker_heartbeat_age_seconds", "How long ago a worker renewed its lease, at most."
    )
    if ages:
        age_metric.add_metric((), max(ages))
    yield age_metric
    lag = HistogramMetricFamily(
        "holdfast_claim_lag_seconds", "How overdue runs were when they were claimed.", labels=()
    )
    if lags := [worker.figures.claim_lag.histogram for worker in workers]:
        _add_durations(lag, (), reduce(add, lags))
    yield lag


def _run_metrics(workers: Iterable[Worker]) -> Iterator[Metric]:
    ended: Counter[tuple[str, str]] = Counter()
    waits: Counter[str] = Counter()
    for worker in workers:
        ended.update(dict(worker.figures.ended))
        waits.update(dict(worker.figures.quota_waits))
    by_graph: Counter[str] = Counter()
    for (graph, _), count in ended.items():
        by_graph[graph] += count
    shown = _shown(by_graph)
    capped: Counter[tuple[str, str]] = Counter()
    for (graph, status), count in ended.items():
        capped[graph if graph in shown else _OTHER, status] += count
    metric = CounterMetricFamily(
        "holdfast_runs_ended", "Runs that ended in this process.", labels=("graph", "status")
    )
    for labels, count in sorted(capped.items()):
        metric.add_metric(labels, count)
    yield metric
    yield _counter("holdfast_quota_waits", "How often a call waited for a permit.", "quota", waits)


def _money_metrics(hf: Holdfast, workers: Iterable[Worker]) -> Iterator[Metric]:
    saved = hf.saved
    yield _single_counter(
        "holdfast_saved_calls", "Calls that were answered without being made.", saved.calls
    )
    yield _single_counter(
        "holdfast_saved_tokens", "Tokens that these would have taken.", saved.tokens
    )
    yield _single_counter("holdfast_saved_usd", "What these calls would have cost.", saved.usd)
    # All workers of one Holdfast share a counter.
    counters = {id(worker.figures.models): worker.figures.models for worker in workers}
    used: dict[str, ModelUsage] = {}
    for counter in counters.values():
        used |= dict(counter.by_model)
    answers = {model: usage.answers for model, usage in used.items()}
    yield _counter("holdfast_model_answers", "Answers of models.", "model", answers)
    tokens = CounterMetricFamily(
        "holdfast_model_tokens", "Tokens that models took.", labels=("model", "direction")
    )
    inputs = _capped({model: usage.input_tokens for model, usage in used.items()})
    outputs = _capped({model: usage.output_tokens for model, usage in used.items()})
    for direction, counts in (("input", inputs), ("output", outputs)):
        for model, count in counts.items():
            tokens.add_metric((model, direction), count)
    yield tokens
    dollars = {model: usage.spending.usd for model, usage in used.items()}
    yield _counter("holdfast_model_cost_usd", "What answers of models cost.", "model", dollars)


def _request_metrics(metrics: ServerMetrics) -> Iterator[Metric]:
    seconds = HistogramMetricFamily(
        "holdfast_http_request_seconds",
        "Requests by method, route and status, and how long they took.",
        labels=("method", "route", "status"),
    )
    for labels, counter in sorted(dict(metrics.requests).items()):
        _add_durations(seconds, labels, counter.histogram)
    yield seconds
    yield _single_gauge(
        "holdfast_http_streams_open",
        "Event streams and WebSockets that are open.",
        metrics.streams_open,
    )


def _fleet_metrics(fleet: FleetFigures | None, age: float | None) -> Iterator[Metric]:
    runs = GaugeMetricFamily(
        "holdfast_runs", "Runs of all tenants in the store, by state.", labels=("state",)
    )
    workers = GaugeMetricFamily(
        "holdfast_workers", "Workers of all processes that are alive or dead.", labels=("state",)
    )
    read = GaugeMetricFamily(
        "holdfast_fleet_age_seconds", "How old the counts of runs and workers of the store are."
    )
    if fleet is not None and age is not None:
        for state in _STATES:
            counted: Any = getattr(fleet, state)
            runs.add_metric((state,), counted.runs)
        workers.add_metric(("alive",), fleet.workers_alive)
        workers.add_metric(("dead",), fleet.workers_dead)
        read.add_metric((), age)
    yield runs
    yield workers
    yield read


def _add_durations(
    metric: HistogramMetricFamily, labels: tuple[str, ...], durations: Histogram
) -> None:
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*durations.bounds, None), durations.counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound is None else str(bound), total))
    metric.add_metric(labels, buckets, durations.seconds)


def _shown(counts: Mapping[str, float]) -> frozenset[str]:
    """Return the names that a metric tells apart: those with the largest counts."""
    largest = sorted(counts, key=lambda name: (-counts[name], name))
    return frozenset(largest[:LABEL_VALUES_MAX])


def _capped(counts: Mapping[str, float]) -> dict[str, float]:
    """Return counts by name, with those of rare names together."""
    shown, capped = _shown(counts), Counter[str]()
    for name, count in sorted(counts.items()):
        capped[name if name in shown else _OTHER] += count  # pyright: ignore[reportArgumentType]
    return dict(capped)


def _counter(name: str, about: str, label: str, counts: Mapping[str, float]) -> Metric:
    metric = CounterMetricFamily(name, about, labels=(label,))
    for value, count in _capped(counts).items():
        metric.add_metric((value,), count)
    return metric


def _single_counter(name: str, about: str, value: float) -> Metric:
    return CounterMetricFamily(name, about, value=value)


def _single_gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(name, about, value=value)
