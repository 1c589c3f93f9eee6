"""A worker as the owner of its runs: its name and lease, its limits, and what its runs report."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.display import get_logger
from holdfast.engine.effects.resources import Resources
from holdfast.engine.execution.figures import WorkerFigures
from holdfast.engine.execution.node_threads import NodeThreads
from holdfast.engine.journal.flusher import Flusher
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.engine.worker.health import DRIVE_RUNS, Outages
from holdfast.engine.worker.hook_calls import HookCalls
from holdfast.engine.worker.lease import Lease
from holdfast.engine.worker.options import WorkerOptions
from holdfast.engine.worker.slots import Slots
from holdfast.engine.worker.unserved import UnservedGraphs
from holdfast.errors import StoreError
from holdfast.model.execution import Execution
from holdfast.model.hooks import AttemptFailure
from holdfast.model.run import Status
from holdfast.records.head import Head

__all__ = ["RunOwner"]

_log = get_logger("holdfast.worker")


class RunOwner:
    """What the parts of one worker share. Implements `Owner` for the drivers of its runs."""

    def __init__(
        self,
        kernel: Kernel,
        options: WorkerOptions,
        *,
        on_ended: Callable[[Head, Execution, Status], None],
        on_paused: Callable[[Head], None],
        hooks: HookCalls,
        local_workers: LocalWorkers,
        resources: Resources,
        slots: Slots,
        offer: Mapping[str, Any],
    ) -> None:
        """``offer`` are the attributes of the worker's row that say what it serves."""
        self._on_ended = on_ended
        self._on_paused = on_paused
        self.hooks = hooks
        self.local_workers = local_workers
        self.resources = resources
        self.flusher = Flusher(kernel.clock)
        self.threads = NodeThreads(options.concurrency)
        self.lease = Lease(
            kernel,
            options.lease_seconds,
            details={"concurrency": options.concurrency, **offer},
            load=lambda: {"running": slots.taken, "lag_ms": self.claim_lag_ms},
        )
        self.outages = Outages(kernel)
        # A result that cannot be written is kept for as long as the lease would last by itself.
        self.store_retry_seconds = options.lease_seconds
        self.hold_ms = round(options.hold_seconds * 1000)
        self.resumes_max = options.resumes_max
        self.counts: Counter[str] = Counter()
        self.figures = WorkerFigures(resources.model_usage)
        self.unserved = UnservedGraphs(kernel.clock)
        self.claim_lag_ms = 0
        """How overdue the most overdue run was that a poll claimed since the last heartbeat."""
        self.wake = asyncio.Event()
        """Set when the worker should poll at once."""
        self.stopping = asyncio.Event()
        """Set when the worker drains, and never cleared."""
        self.may_own_strays = False
        """Whether the row of a run may name this worker although it does not drive the run."""

    @property
    def id(self) -> str:
        """The name under which the worker is registered; empty while it has none."""
        return self.lease.worker_id

    @property
    def draining(self) -> bool:
        """Whether the worker claims no more runs because it stops."""
        return self.stopping.is_set()

    def alive(self) -> bool:
        """Return whether the worker's lease is still valid."""
        return self.id != "" and self.lease.is_valid()

    def may_claim(self) -> bool:
        """Return whether the worker may claim runs now."""
        return not self.draining and self.alive() and DRIVE_RUNS not in self.outages

    def on_store_outage(self, error: StoreError) -> None:
        """Claim no further runs: one was released because the store could not be used."""
        self.counts["cut off"] += 1
        self.outages.record_failure(self.id, DRIVE_RUNS, error)
        self.wake.set()

    def on_unserved(self, head: Head) -> None:
        """Leave runs of the graph to other workers for a while: this process lacks something."""
        self.counts["unserved"] += 1
        self.unserved.add(head.graph)

    def on_paused(self, head: Head) -> None:
        """Pass on that a run waits, with its row."""
        self._on_paused(head)
        if head.chunk is None:
            self.hooks.on_paused(head)

    def on_attempt_failed(self, head: Head, failure: AttemptFailure) -> None:
        """Pass on that an attempt of a node failed."""
        self.hooks.on_attempt_failed(head, failure)

    def on_ended(self, head: Head, execution: Execution, status: Status) -> None:
        """Count a run that has ended, and pass it on."""
        self.counts[status] += 1
        self.figures.ended[head.graph, status] += 1
        if status == "quarantined":
            why = "" if head.failure is None else f"{head.failure.type}: {head.failure.message}"
            _log.error("%s is quarantined at node %r: %s", head.key.log_name, head.node, why)
        self._on_ended(head, execution, status)
        if head.chunk is None:  # chunks are no runs that a caller started
            self.hooks.on_ended(head, execution, status)
