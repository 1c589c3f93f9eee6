"""What the driver of a run needs of the worker that claimed it."""

from __future__ import annotations

from typing import Protocol

from holdfast.engine.effects.resources import Resources
from holdfast.engine.execution.node_threads import NodeThreads
from holdfast.engine.journal.flusher import Flusher
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.errors import StoreError
from holdfast.model.execution import Execution
from holdfast.model.run import Status
from holdfast.records.head import Head

__all__ = ["Owner"]


class Owner(Protocol):
    """The worker that owns a run, as its driver sees it."""

    id: str
    draining: bool
    hold_ms: int
    """A sleep up to this long is waited for in the worker; for a longer one the run pauses."""
    resumes_max: int
    """After this many failed resumes in a row a run is quarantined."""
    local_workers: LocalWorkers
    """All workers of this process."""
    flusher: Flusher
    """Writes buffered events within milliseconds."""
    resources: Resources
    """Models, quotas, accounts and shared answers."""
    store_retry_seconds: float
    """How long it retries a store that fails before it releases the run."""

    @property
    def threads(self) -> NodeThreads:
        """The threads in which plain functions run."""
        ...

    def alive(self) -> bool:
        """Return whether the worker's lease has not expired."""
        ...

    def on_store_outage(self, error: StoreError) -> None:
        """Note that a run was released because the store failed."""
        ...

    def on_paused(self, head: Head) -> None:
        """Note that a run has paused, with this row."""
        ...

    def on_ended(self, head: Head, execution: Execution, status: Status) -> None:
        """Note that a run has ended."""
        ...
