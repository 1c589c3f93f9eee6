"""A worker's lease: one row that it writes now and then, however many runs it holds."""

from __future__ import annotations

import os
import platform

from holdfast.engine.kernel.kernel import Dropped, Kernel
from holdfast.errors import ConditionFailed, HoldfastError
from holdfast.records import worker as rows

__all__ = ["Lease"]

# A wall clock that is set back by more than this was wrong: then the lease ends earlier, too.
_SET_BACK_MS = 1_000


class Lease:
    """The right to act as a worker of some name, until a time on our own monotonic clock.

    Others judge it by the wall clock. Where the clocks disagree, a live worker may be buried; then
    the fences of the journals keep it from doing harm, and it takes a new name.
    """

    def __init__(self, kernel: Kernel, seconds: float) -> None:
        self._kernel = kernel
        self._seconds = seconds
        self._until = 0.0
        self._until_ms = 0
        # The last error of the renewals that failed since one succeeded, and when they began to.
        self._error: HoldfastError | None = None
        self._failing_since = 0.0
        self._renewed = 0.0
        self.worker = ""
        self.loss = ""
        """Why the lease was lost, if it was."""

    def holds(self) -> bool:
        """Return whether the lease still holds."""
        return self._kernel.clock.monotonic() < self._until

    def remaining_seconds(self) -> float:
        """Return for how long it still holds."""
        return self._until - self._kernel.clock.monotonic()

    async def take(self) -> None:
        """Register under a new name.

        Raises:
            StoreUnavailable, StoreUnusable, OutcomeUnknown: the store does not answer.
        """
        worker = self._kernel.ids.new()
        began, until_ms = self._from_now()
        about = {"host": platform.node()[:100], "pid": os.getpid()}
        row = rows.registered(
            worker,
            lease_ms=round(self._seconds * 1000),
            until_ms=until_ms,
            now_ms=self._kernel.clock.now_ms(),
            about=about,
            token=self._kernel.ids.new(),
        )
        await self._kernel.settle(self._kernel.workers, row)
        self.worker, self._renewed, self._error = worker, began, None
        self._until, self._until_ms = began + self._seconds, until_ms

    async def prolong(self) -> bool:
        """Write the row again; return whether we still are who we were.

        It tries for as long as the lease holds. Where it fails, or is cancelled, `loss` says why.
        """
        # The time is taken before the write is sent: others count from what the row says.
        began, until_ms = self._from_now()
        late = began - self._until
        self.loss = (
            f"the process stood still, and sent no renewal until {late:.1f} seconds after its end; "
            "a node that is a coroutine may have blocked the event loop"
            if late >= 0
            else "the store did not answer the renewal"
        )
        write = rows.beat(
            self.worker,
            last_until_ms=self._until_ms,
            until_ms=until_ms,
            token=self._kernel.ids.new(),
        )
        try:
            await self._kernel.settle(
                self._kernel.workers, write, alive=self.holds, failed=self._failed
            )
        except Dropped:
            return False
        except ConditionFailed:
            self.loss = "another worker found the lease lapsed by its own clock, and reaped it"
            return False
        self._until, self._until_ms = began + self._seconds, until_ms
        self._renewed, self._error = began, None
        return True

    def _failed(self, error: HoldfastError) -> None:
        """Keep the error of a renewal: it is why the lease is lost, should it be."""
        now = self._kernel.clock.monotonic()
        if self._error is None:
            self._failing_since = now
        self._error = error
        self.loss = (
            f"renewed {now - self._renewed:.1f} seconds ago for the last time, each try of the "
            f"last {now - self._failing_since:.1f} seconds failed, {type(error).__name__}: {error}"
        )

    async def give_up(self) -> None:
        """Forget the worker, which holds nothing any more."""
        self._until = 0.0
        await self._kernel.workers.write(rows.left(self.worker, due_ms=self._until_ms))

    def _from_now(self) -> tuple[float, int]:
        clock = self._kernel.clock
        until_ms = clock.now_ms() + round(self._seconds * 1000)
        if self._until_ms - until_ms < _SET_BACK_MS:
            # A place of the index must be new, even if two beats fall into one millisecond.
            until_ms = max(until_ms, self._until_ms + 1)
        return clock.monotonic(), until_ms
