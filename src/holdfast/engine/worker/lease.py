"""A worker's lease: one row that it writes now and then, however many runs it holds."""

from __future__ import annotations

import os
import platform

from holdfast.engine.kernel.kernel import ClaimLost, Kernel
from holdfast.errors import ConditionFailed, HoldfastError
from holdfast.records import worker as rows

__all__ = ["Lease"]

# A wall clock that is set back by more than this was wrong: then the lease ends earlier, too.
_CLOCK_SET_BACK_MS = 1_000


class Lease:
    """The right to act as a worker of some name, until a time on our own monotonic clock.

    Others judge it by the wall clock. Where the clocks disagree, a live worker may be buried; then
    the fences of the journals keep it from doing harm, and it takes a new name.
    """

    def __init__(self, kernel: Kernel, seconds: float) -> None:
        self._kernel = kernel
        self._seconds = seconds
        self._deadline = 0.0
        self._deadline_ms = 0
        # The last error of the renewals that failed since one succeeded, and when they began to.
        self._error: HoldfastError | None = None
        self._failing_since = 0.0
        self._renewed_at = 0.0
        self.worker_id = ""
        self.loss_reason = ""
        """Why the lease was lost, if it was."""

    def is_valid(self) -> bool:
        """Return whether the lease still holds."""
        return self._kernel.clock.monotonic() < self._deadline

    def remaining_seconds(self) -> float:
        """Return for how long it still holds."""
        return self._deadline - self._kernel.clock.monotonic()

    async def register(self) -> None:
        """Register under a new name.

        Raises:
            StoreUnavailable, StoreUnusable, OutcomeUnknown: the store does not answer.
        """
        worker = self._kernel.ids.new()
        began, deadline_ms = self._next_deadline()
        about = {"host": platform.node()[:100], "pid": os.getpid()}
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
        """Write the row again; return whether we still are who we were.

        It tries for as long as the lease holds. Where it fails, or is cancelled, `loss` says why.
        """
        # The time is taken before the write is sent: others count from what the row says.
        began, deadline_ms = self._next_deadline()
        late = began - self._deadline
        self.loss_reason = (
            f"the process stood still, and sent no renewal until {late:.1f} seconds after its end; "
            "a node that is a coroutine may have blocked the event loop"
            if late >= 0
            else "the store did not answer the renewal"
        )
        write = rows.heartbeat_write(
            self.worker_id,
            last_expires_ms=self._deadline_ms,
            expires_ms=deadline_ms,
            token=self._kernel.ids.new(),
        )
        try:
            await self._kernel.resolve_write(
                self._kernel.workers, write, alive=self.is_valid, on_error=self._on_renewal_error
            )
        except ClaimLost:
            return False
        except ConditionFailed:
            self.loss_reason = (
                "another worker found the lease lapsed by its own clock, and reaped it"
            )
            return False
        self._deadline, self._deadline_ms = began + self._seconds, deadline_ms
        self._renewed_at, self._error = began, None
        return True

    def _on_renewal_error(self, error: HoldfastError) -> None:
        """Keep the error of a renewal: it is why the lease is lost, should it be."""
        now = self._kernel.clock.monotonic()
        if self._error is None:
            self._failing_since = now
        self._error = error
        self.loss_reason = (
            f"renewed {now - self._renewed_at:.1f} seconds ago for the last time, each try of the "
            f"last {now - self._failing_since:.1f} seconds failed, {type(error).__name__}: {error}"
        )

    async def release(self) -> None:
        """Forget the worker, which holds nothing any more."""
        self._deadline = 0.0
        await self._kernel.workers.write(
            rows.deregister_write(self.worker_id, due_ms=self._deadline_ms)
        )

    def _next_deadline(self) -> tuple[float, int]:
        clock = self._kernel.clock
        deadline_ms = clock.now_ms() + round(self._seconds * 1000)
        if self._deadline_ms - deadline_ms < _CLOCK_SET_BACK_MS:
            # A place of the index must be new, even if two beats fall into one millisecond.
            deadline_ms = max(deadline_ms, self._deadline_ms + 1)
        return clock.monotonic(), deadline_ms
