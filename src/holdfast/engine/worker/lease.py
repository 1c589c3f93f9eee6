"""A worker's lease: one row that the worker renews, however many runs it drives."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from holdfast.engine.kernel.kernel import ClaimLost, Kernel
from holdfast.errors import ConditionFailed, HoldfastError
from holdfast.records import worker as rows

__all__ = ["HEARTBEATS_PER_LEASE", "Lease"]

HEARTBEATS_PER_LEASE = 4
"""How often a worker renews its lease before it would end."""

# If the wall clock is set back by more than this, it was wrong before: the lease ends earlier.
_CLOCK_SET_BACK_MS = 1_000


class Lease:
    """The right to act under a worker's name, until a time of this process' monotonic clock.

    Other workers compare the row with their wall clocks. If the clocks disagree, they may reap a
    live worker. The fences in the journals keep that worker from harm, and it takes a new name.
    """

    def __init__(
        self,
        kernel: Kernel,
        seconds: float,
        *,
        details: Mapping[str, Any] | None = None,
        load: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """Write ``details`` into the row at registration, and ``load`` with each heartbeat."""
        self._kernel = kernel
        self._seconds = seconds
        self._details = details or {}
        self._load = load
        self._deadline = 0.0
        self._deadline_ms = 0
        # The last error since the last renewal that succeeded, and when the first one came.
        self._error: HoldfastError | None = None
        self._failing_since = 0.0
        self._renewed_at = 0.0
        self.worker_id = ""
        """The name of the worker; empty while it is not registered."""
        self.loss_reason = ""
        """Why the lease was lost, if it was."""

    @property
    def heartbeat_seconds(self) -> float:
        """How long the worker waits between two renewals."""
        return self._seconds / HEARTBEATS_PER_LEASE

    @property
    def age_seconds(self) -> float:
        """How long ago the worker last renewed its lease, or registered."""
        return self._kernel.clock.monotonic() - self._renewed_at

    def is_valid(self) -> bool:
        """Return whether the lease has not ended."""
        return self._kernel.clock.monotonic() < self._deadline

    def remaining_seconds(self) -> float:
        """Return how long the lease is still valid; negative if it has ended."""
        return self._deadline - self._kernel.clock.monotonic()

    async def register(self) -> None:
        """Register the worker under a new name.

        Raises:
            StoreUnavailable, StoreUnusable, OutcomeUnknown: the store does not answer.
        """
        worker = self._kernel.ids.new()
        began, deadline_ms = self._next_deadline()
        about = {
            "host": platform.node()[:100],
            "pid": os.getpid(),
            "release": _release(),
            **self._details,
            **self._load(),
        }
        row = rows.register_write(
            worker,
            lease_ms=round(self._seconds * 1000),
            expires_ms=deadline_ms,
            now_ms=self._kernel.clock.now_ms(),
            details=about,
            token=self._kernel.ids.new(),
        )
        await self._kernel.resolve_write(self._kernel.workers, row)
        self.worker_id, self._renewed_at, self._error = worker, began, None
        self._deadline, self._deadline_ms = began + self._seconds, deadline_ms

    async def renew(self) -> bool:
        """Renew the lease; return whether the worker keeps its name.

        It tries until the lease ends. If it fails or is cancelled, `loss_reason` says why.
        """
        # The clock is read before the write is sent, so that the lease ends here before it ends
        # for the others.
        began, deadline_ms = self._next_deadline()
        late = began - self._deadline
        self.loss_reason = (
            f"the process stalled and sent no renewal until {late:.1f} seconds after the lease had "
            "ended; an async node may have blocked the event loop"
            if late >= 0
            else "the store did not answer the renewal"
        )
        write = rows.heartbeat_write(
            self.worker_id,
            last_expires_ms=self._deadline_ms,
            expires_ms=deadline_ms,
            token=self._kernel.ids.new(),
            load=self._load(),
        )
        try:
            await self._kernel.resolve_write(
                self._kernel.workers, write, alive=self.is_valid, on_error=self._on_renewal_error
            )
        except ClaimLost:
            return False
        except ConditionFailed:
            self.loss_reason = "another worker reaped this one: by its clock the lease had ended"
            return False
        self._deadline, self._deadline_ms = began + self._seconds, deadline_ms
        self._renewed_at, self._error = began, None
        return True

    def _on_renewal_error(self, error: HoldfastError) -> None:
        """Remember the error of a renewal: it is the reason if the lease is lost."""
        now = self._kernel.clock.monotonic()
        if self._error is None:
            self._failing_since = now
        self._error = error
        self.loss_reason = (
            f"last renewed {now - self._renewed_at:.1f} seconds ago, every renewal failed for "
            f"{now - self._failing_since:.1f} seconds, the last with "
            f"{type(error).__name__}: {error}"
        )

    def forget_name(self) -> None:
        """Give up the name, after the lease is lost; the row stays for a reaper."""
        self.worker_id = ""

    async def release(self) -> None:
        """Delete the row of a worker that has released all its runs.

        Raises:
            HoldfastError: the store does not answer; the lease ends by itself.
        """
        self._deadline = 0.0
        await self._kernel.workers.write(
            rows.deregister_write(self.worker_id, due_ms=self._deadline_ms)
        )

    def _next_deadline(self) -> tuple[float, int]:
        clock = self._kernel.clock
        deadline_ms = clock.now_ms() + round(self._seconds * 1000)
        if self._deadline_ms - deadline_ms < _CLOCK_SET_BACK_MS:
            # The index key must be new, even if two heartbeats fall into the same millisecond.
            deadline_ms = max(deadline_ms, self._deadline_ms + 1)
        return clock.monotonic(), deadline_ms


@cache
def _release() -> str:
    """Return the release of Holdfast that this process runs."""
    try:
        return version("holdfast")[:32]
    except PackageNotFoundError:  # it runs from a folder that was not installed
        return "unknown"
