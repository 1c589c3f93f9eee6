"""What holds runs: all that whoever drives one needs of the worker that claimed it."""

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
    """What a driver needs of the worker that holds the run."""

    id: str
    draining: bool
    hold_ms: int
    """Up to this a sleep is waited for in place."""
    resumes_max: int
    """After so many failed resumes in a row a run is quarantined."""
    local_workers: LocalWorkers
    """All workers of this process."""
    flusher: Flusher
    """Sees to it that nothing is held back for long."""
    resources: Resources
    """What nodes do something to the world with."""
    store_retry_seconds: float
    """How long it holds a run whose store cannot be used, before it releases the run."""

    @property
    def threads(self) -> NodeThreads:
        """Where nodes that are plain functions run."""
        ...

    def alive(self) -> bool:
        """Return whether the worker's lease still holds."""
        ...

    def on_store_outage(self, error: StoreError) -> None:
        """Hear that a run was released because the store could not be used."""
        ...

    def on_paused(self, head: Head) -> None:
        """Hear that a run waits, and how its row looks."""
        ...

    def on_ended(self, head: Head, execution: Execution, status: Status) -> None:
        """Hear that a run has ended."""
        ...
