"""What a worker and its process count for metrics, beside the counts of `Worker.counts`."""

from __future__ import annotations

from collections import Counter

import msgspec

from holdfast.engine.effects.model_usage import ModelUsageCounter
from holdfast.storage.latency import HistogramCounter

__all__ = ["CLAIM_LAG_BOUNDS", "WorkerFigures"]

CLAIM_LAG_BOUNDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
"""The upper bounds of the buckets of claim lags, in seconds."""


class WorkerFigures(msgspec.Struct):
    """Counters of one worker, in its event loop."""

    models: ModelUsageCounter
    """What models were asked and cost; all workers of one `Holdfast` share it."""
    ended: Counter[tuple[str, str]] = msgspec.field(default_factory=lambda: Counter())
    """How many runs it ended, by graph and status."""
    claim_lag: HistogramCounter = msgspec.field(
        default_factory=lambda: HistogramCounter(CLAIM_LAG_BOUNDS)
    )
    """How overdue runs were when the worker claimed them."""
    resume_failures: int = 0
    """How often a run could not be resumed."""
    quota_waits: Counter[str] = msgspec.field(default_factory=lambda: Counter())
    """How often a call had to wait for a permit, by quota."""
