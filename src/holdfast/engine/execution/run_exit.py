"""How a worker releases a run that has not ended: the run pauses, or another worker takes it over.

No run is released before the result of every write is known.
"""

from __future__ import annotations

from holdfast.display import get_logger
from holdfast.engine.execution.claimed_run import ClaimedRun
from holdfast.engine.execution.run_ending import RunEnding
from holdfast.engine.execution.waits import wait_due_ms
from holdfast.engine.runs.session_turns import needs_turn, prune_earlier, replace_earlier
from holdfast.errors import ConditionFailed, HoldfastError, StoreError
from holdfast.model.event import Failure, WaitsRecorded
from holdfast.model.failure import failure_of
from holdfast.model.program import Program
from holdfast.model.signals import all_pending
from holdfast.model.wait import Wait, pause_reason
from holdfast.model.wait_texts import with_limited_about
from holdfast.records import owner_writes
from holdfast.records.head import (
    ENDED,
    ROW_ABOUT_BYTES_MAX,
    ROW_WAITS_MAX,
    JournalExtent,
)
from holdfast.records.session_queue import next_recheck_ms

__all__ = ["RunExit"]

_log = get_logger("holdfast.worker")

_RESUME_BACKOFF_MS = 1_000
_RESUME_BACKOFF_MS_MAX = 300_000


class RunExit:
    """Pauses or releases one claimed run."""

    def __init__(self, claimed: ClaimedRun, program: Program, ending: RunEnding) -> None:
        self._claimed = claimed
        self._program = program
        self._ending = ending

    # --- pausing ----------------------------------------------------------------------------------

    async def pause(self, waits: tuple[Wait, ...]) -> None:
        """Pause the run until one of its waits is answered, unless one is answered by now."""
        claimed = self._claimed
        writer = claimed.journal.writer
        if writer is None:
            return
        await claimed.persistence.store()
        await writer.append(())
        if await claimed.inbox.close_if_expired():
            await claimed.inbox.read()
        shown = await self._store_excess_waits(waits)
        while True:
            now, signals = claimed.now_ms(), claimed.inbox.untaken()
            pending = all_pending(waits, signals, now, expires_ms=claimed.head.expires_ms)
            if pending is None:
                return  # a wait is answered: the driver runs the node again
            if claimed.head.status == "closing":
                await self._ending.write_expired()
                return
            due_ms = claimed.head.expires_ms if pending.due_ms is None else pending.due_ms
            if await self._write_pause(shown, pause_reason(waits), due_ms, writer.extent):
                claimed.owner.on_paused(claimed.head)
                return
            if claimed.head.cancel is not None:
                await self._ending.write_cancelled(claimed.head.cancel)
                return
            polling = claimed.waits.polling_branches()
            if polling:
                claimed.waits.resume(polling)
                return

    async def wait_in_session_queue(self) -> None:
        """Pause the run while earlier runs of its session are not finished."""
        claimed = self._claimed
        if not needs_turn(claimed.head, claimed.execution):
            return
        while claimed.execution.ending is None and await claimed.claim.retry_store_errors(
            lambda: prune_earlier(claimed.kernel, claimed.head)
        ):
            await claimed.claim.retry_store_errors(
                lambda: replace_earlier(claimed.kernel, claimed.owner.local_workers, claimed.head)
            )
            if claimed.head.status == "closing":
                await self._ending.write_expired()
                return
            due_ms = next_recheck_ms(claimed.head, claimed.now_ms())
            if await self._write_pause((), "queued", due_ms, claimed.journal.extent):
                return
            # The row has changed: a caller cancelled the run, or the run before it has left.
            if claimed.head.cancel is not None:
                await self._ending.write_cancelled(claimed.head.cancel)

    async def _write_pause(
        self, waits: tuple[Wait, ...], reason: str, due_ms: int, extent: JournalExtent
    ) -> bool:
        """Write into the row that the run waits; return whether it was written.

        If not, a caller changed the row or sent a signal: both were read again.
        """
        claimed = self._claimed
        try:
            await claimed.row.update(
                owner_writes.pause_write,
                execution=claimed.execution,
                waits=waits,
                signals=claimed.head.signals,
                inbox=claimed.inbox.size(),
                reason=reason,
                due_ms=due_ms,
                retries_left=self._program.retries_left(claimed.execution),
                extent=extent,
            )
        except ConditionFailed as failed:
            await claimed.inbox.reload_after_conflict(failed)
            return False
        claimed.claim.mark_released()
        return True

    async def _store_excess_waits(self, waits: tuple[Wait, ...]) -> tuple[Wait, ...]:
        """Write waits into the journal if the row has no room for all; return those of the row."""
        shown = with_limited_about(self._first_waits(waits), ROW_ABOUT_BYTES_MAX)
        if shown == waits:
            return waits
        claimed = self._claimed
        unjournaled = tuple(
            wait for wait in waits if wait not in claimed.journaled_waits(wait.branch)
        )
        if unjournaled:
            await claimed.journal.write((WaitsRecorded(claimed.now_ms(), unjournaled),))
        return shown

    def _first_waits(self, waits: tuple[Wait, ...]) -> tuple[Wait, ...]:
        """Return the waits that the row has room for."""
        if len(waits) <= ROW_WAITS_MAX:
            return waits
        # Senders of signals read in the row whether the run waits for any; a caller that extends
        # the run reads when it is due.
        expires_ms = self._claimed.head.expires_ms
        soonest = sorted(waits, key=lambda wait: wait_due_ms(wait, expires_ms))
        signal_wait = next((wait for wait in soonest if wait.signal is not None), None)
        return tuple(sorted(soonest, key=lambda wait: wait is not signal_wait)[:ROW_WAITS_MAX])

    # --- releasing --------------------------------------------------------------------------------

    async def release(
        self,
        reason: str,
        *,
        due_ms: int | None = None,
        failures: int = 0,
        failure: Failure | None = None,
    ) -> None:
        """Release the run for any worker to claim from that time on, or at once."""
        claimed = self._claimed
        await claimed.persistence.store()
        writer = claimed.journal.writer
        if writer is not None:
            await writer.append(())
            # Without them in the row, the waits would start again in the next worker.
            if claimed.waits.has_waited:
                shown = await self._store_excess_waits(claimed.waits.open_waits(claimed.execution))
                claimed.row.remember_waits(shown)
        await claimed.row.retry_update(
            owner_writes.release_write,
            execution=claimed.execution,
            due_ms=claimed.now_ms() if due_ms is None else due_ms,
            reason=reason,
            retries_left=self._program.retries_left(claimed.execution),
            extent=claimed.journal.extent,
            resume_failures=failures,
            failure=failure,
        )
        claimed.claim.mark_released()

    async def release_on_outage(self, error: StoreError) -> None:
        """Release the run for workers that can use the store, and tell ours that it cannot.

        An outage does not count as a failed resume of the run.
        """
        claimed = self._claimed
        claimed.owner.on_store_outage(error)
        if claimed.head.status in ENDED:
            await self._ending.postpone_cleanup(claimed.now_ms())
            return
        claimed.journal.invalidate()
        await self.release("store_unusable", failures=claimed.head.resume_failures)

    async def release_on_error(self, error: Exception) -> None:
        """Release a run that cannot be resumed, with a backoff; after too many, quarantine it."""
        claimed = self._claimed
        if isinstance(error, StoreError):
            await self.release_on_outage(error)
            return
        failures = claimed.head.resume_failures + 1
        claimed.owner.figures.resume_failures += 1
        if claimed.head.status in ENDED:
            await self._ending.postpone_cleanup(claimed.now_ms() + _RESUME_BACKOFF_MS_MAX)
        elif failures >= claimed.owner.resumes_max:
            await self._ending.end("quarantined", failure_of(error, engine_frames=True))
        else:
            claimed.journal.invalidate()
            backoff_ms = _resume_backoff_ms(failures)
            due_ms = claimed.now_ms() + backoff_ms
            failure = failure_of(error)
            await self.release("resume_failed", due_ms=due_ms, failures=failures, failure=failure)
            self._log_resume_failure(error, failures, backoff_ms)

    def _log_resume_failure(self, error: Exception, failures: int, backoff_ms: int) -> None:
        """Log why the run could not be resumed; the quarantine is logged when it comes."""
        _log.warning(
            "%s: it could not be resumed and is tried again in %d seconds; after %d failures in a "
            "row the run is quarantined, this is number %d: %s: %s",
            self._claimed.head.key.log_name,
            backoff_ms // 1000,
            self._claimed.owner.resumes_max,
            failures,
            type(error).__name__,
            error,
            # Errors of Holdfast say what is wrong; of others only the place tells.
            exc_info=None if isinstance(error, HoldfastError) else error,
        )

    async def release_minimally(self, error: Exception) -> None:
        """Release a run with as small a write as possible, because its row refused a larger one.

        The rest of the row stays as it was when the run was claimed, as after a crash. Too many
        failures quarantine the run, as in `release_on_error`.
        """
        claimed = self._claimed
        claimed.journal.invalidate()
        failures = claimed.head.resume_failures + 1
        quarantined = failures >= claimed.owner.resumes_max and claimed.head.status not in ENDED
        await claimed.row.retry_update(
            owner_writes.forced_release_write,
            # A quarantined run is due at once: its obligations are settled, then it leaves the
            # index.
            due_ms=claimed.now_ms() + (0 if quarantined else _resume_backoff_ms(failures)),
            resume_failures=failures,
            failure=failure_of(error, engine_frames=True) if quarantined else None,
            cancel=claimed.head.cancel,
        )
        claimed.claim.mark_released()
        if quarantined and claimed.head.status == "quarantined":
            claimed.owner.on_ended(claimed.head, claimed.execution, "quarantined")


def _resume_backoff_ms(failures: int) -> int:
    """Return the backoff after that many failed resumes in a row."""
    return min(_RESUME_BACKOFF_MS * 2**failures, _RESUME_BACKOFF_MS_MAX)
