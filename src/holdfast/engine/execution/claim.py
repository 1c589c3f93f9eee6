"""A worker's claim on one run: whether the worker may still write, and what its driver is doing."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.engine.execution.owner import Owner
from holdfast.engine.kernel.kernel import ClaimLost, Kernel, StoreOutage

__all__ = ["Claim", "ClaimState"]

T = TypeVar("T")


class ClaimState(enum.Enum):
    """What the driver of a claimed run is doing."""

    BETWEEN_NODES = enum.auto()
    """It reads, decides or writes; no node of the run is running."""
    IN_NODE = enum.auto()
    """At least one node is running: nodes may write, and the driver may be interrupted."""
    RELEASED = enum.auto()
    """The row no longer names this worker; the driver is about to return."""
    FINISHED = enum.auto()
    """The driver has returned, and the run was released."""
    ABANDONED = enum.auto()
    """The driver has returned without releasing the run: the row may still name this worker."""


class Claim:
    """The claim of one worker on one run."""

    def __init__(self, kernel: Kernel, owner: Owner) -> None:
        self.kernel = kernel
        self.owner = owner
        # A worker that loses its lease registers under a new id, and owns none of its old runs.
        self.worker_id = owner.id
        self._state = ClaimState.BETWEEN_NODES
        self._outage: StoreOutage | None = None

    # --- what the driver does ---------------------------------------------------------------------

    @property
    def in_node(self) -> bool:
        """Whether at least one node is running."""
        return self._state is ClaimState.IN_NODE

    @property
    def released(self) -> bool:
        """Whether the row says that this worker no longer owns the run."""
        return self._state in (ClaimState.RELEASED, ClaimState.FINISHED)

    @property
    def stopped(self) -> bool:
        """Whether the driver has returned."""
        return self._state in (ClaimState.FINISHED, ClaimState.ABANDONED)

    @property
    def outage(self) -> StoreOutage | None:
        """The outage in which an event was lost; the driver then releases the run."""
        return self._outage

    def enter_node(self) -> None:
        """Note that nodes run from now on: they may write, and the driver may be interrupted."""
        assert self._state is ClaimState.BETWEEN_NODES, self._state
        self._state = ClaimState.IN_NODE

    def leave_node(self) -> None:
        """Note that no node runs any more: a task that a node left behind must not write."""
        assert self._state is ClaimState.IN_NODE, self._state
        self._state = ClaimState.BETWEEN_NODES

    def mark_released(self) -> None:
        """Note that the row no longer names this worker."""
        assert self._state in (ClaimState.BETWEEN_NODES, ClaimState.RELEASED), self._state
        self._state = ClaimState.RELEASED

    def mark_stopped(self) -> None:
        """Note that the driver has returned. Nothing changes the state after this."""
        self._state = ClaimState.FINISHED if self.released else ClaimState.ABANDONED

    def mark_outage(self, outage: StoreOutage) -> None:
        """Note that an event could not be written in time and is lost.

        The run must not continue without the event: `check_alive` raises from now on. The worker
        that claims the run next reads its journal and starts from there.
        """
        self._outage = outage

    # --- whether the run is still ours ------------------------------------------------------------

    def alive(self) -> bool:
        """Return whether this worker may write into the run, as far as its lease tells."""
        return self.owner.id == self.worker_id and self.owner.alive()

    def is_lost(self) -> bool:
        """Return whether this worker can never write into the run again.

        A claim that is not alive may come alive again: if the process stood still, the answer to a
        lease renewal may arrive late although the renewal itself was in time.
        """
        return self.stopped or self.owner.id != self.worker_id

    def check_alive(self) -> None:
        """Check that this worker may write into the run.

        Raises:
            ClaimLost: this worker no longer owns the run.
            StoreOutage: it owns the run, but an event was lost in an outage.
        """
        if not self.alive():
            raise ClaimLost
        if self._outage is not None:
            raise self._outage

    async def retry_store_errors(self, action: Callable[[], Awaitable[T]]) -> T:
        """Repeat an action until the store answers, while this worker owns the run.

        Raises:
            StoreOutage: the store failed for longer than the worker retries.
            ClaimLost: this worker no longer owns the run.
        """
        return await self.kernel.retry_store_errors(
            action, self.alive, seconds_max=self.owner.store_retry_seconds
        )
