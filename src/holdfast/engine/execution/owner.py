"""What the driver of a run needs of the worker that claimed the run."""

from __future__ import annotations

from typing import Protocol

from holdfast.engine.effects.resources import Resources
from holdfast.engine.execution.figures import WorkerFigures
from holdfast.engine.execution.node_threads import NodeThreads
from holdfast.engine.journal.flusher import Flusher
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.errors import StoreError
from holdfast.model.execution import Execution
from holdfast.model.hooks import AttemptFailure
from holdfast.model.run import Status
from holdfast.records.head import Head

__all__ = ["Owner"]


class Owner(Protocol):
    """A worker, as the drivers of its runs see it."""

    hold_ms: int
    """A run that sleeps for at most this long keeps its slot meanwhile."""
    resumes_max: int
    """A run is quarantined after so many failed resumes in a row."""
    local_workers: LocalWorkers
    """All workers of this process."""
    flusher: Flusher
    """Writes buffered records soon."""
    figures: WorkerFigures
    """What the worker counts for metrics."""
    resources: Resources
    """Through which nodes act on the world outside: quotas, budgets, shared answers."""
    threads: NodeThreads
    """Where nodes that are plain functions run."""
    store_retry_seconds: float
    """How long the worker keeps a run whose store cannot be used, before it releases the run."""

    @property
    def id(self) -> str:
        """The name under which the worker is registered; empty while it has none."""
        ...

    @property
    def draining(self) -> bool:
        """Whether the worker stops, and claims no more runs."""
        ...

    def alive(self) -> bool:
        """Return whether the worker's lease is still valid."""
        ...

    def on_store_outage(self, error: StoreError) -> None:
        """Report that a run was released because the store could not be used."""
        ...

    def on_unserved(self, head: Head) -> None:
        """Report that a run needs a model or a task that this process does not have."""
        ...

    def on_paused(self, head: Head) -> None:
        """Report that a run waits, with its row."""
        ...

    def on_attempt_failed(self, head: Head, failure: AttemptFailure) -> None:
        """Report that an attempt of a node failed, after it is recorded."""
        ...

    def on_ended(self, head: Head, execution: Execution, status: Status) -> None:
        """Report that a run has ended."""
        ...
