"""How a run is let go of: it waits, is handed on, or has ended.

Nothing is let go of before every write of ours is decided; and a run that has ended leaves only
when what it owes to others is paid.
"""

from __future__ import annotations

from holdfast.engine.execution.claimed_run import ClaimedRun
from holdfast.engine.execution.waits import wait_due_ms
from holdfast.engine.journal.endings import RunOutcome
from holdfast.engine.journal.reader import load_journal
from holdfast.engine.runs.children import settle_family
from holdfast.engine.runs.obligations import (
    has_family_obligations,
    has_obligations,
    settle_obligations,
)
from holdfast.engine.runs.removal import free_run, freed_at_ms
from holdfast.engine.runs.session_turns import defer_to_earlier
from holdfast.errors import ConditionFailed, StoreError
from holdfast.model.event import Cancelled, Expired, Failure, WaitsRecorded
from holdfast.model.execution import Execution
from holdfast.model.failure import failure_of
from holdfast.model.program import Program
from holdfast.model.run import Status
from holdfast.model.signals import all_pending
from holdfast.model.wait import Wait, pause_reason
from holdfast.records import owner_writes
from holdfast.records.head import ENDED, ROW_WAITS_MAX, JournalExtent
from holdfast.records.session_queue import next_recheck_ms

__all__ = ["RunExit"]

_RESUME_BACKOFF_MS = 1_000
_RESUME_BACKOFF_MS_MAX = 300_000


class RunExit:
    """The ways out of one held run."""

    def __init__(self, claimed: ClaimedRun, program: Program) -> None:
        self._claimed = claimed
        self._program = program

    # --- it waits ---------------------------------------------------------------------------------

    async def pause(self, waits: tuple[Wait, ...]) -> None:
        """Let go of a run until one of its waits is over, unless that is so by now."""
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
            pending = all_pending(waits, signals, now)
            if pending is None:
                return  # an answer is there by now: the node runs again, and finds it
            if claimed.head.status == "closing":
                await claimed.journal.write((Expired(now),))
                return
            due_ms = claimed.head.expires_ms if pending.due_ms is None else pending.due_ms
            if await self._write_pause(shown, pause_reason(waits), due_ms, writer.extent):
                claimed.owner.on_paused(claimed.head)
                return
            if await self._cancel_if_requested() or claimed.waits.resume_polling():
                return

    async def wait_in_session_queue(self) -> None:
        """Go back into the queue of the run's session, unless it stands in front there."""
        claimed = self._claimed
        while claimed.execution.ending is None and await claimed.claim.retry_store_errors(
            lambda: defer_to_earlier(
                claimed.kernel, claimed.owner.local_workers, claimed.head, claimed.execution
            )
        ):
            if claimed.head.status == "closing":
                await claimed.journal.write((Expired(claimed.now_ms()),))
                return
            due_ms = next_recheck_ms(claimed.head, claimed.now_ms())
            if await self._write_pause((), "queued", due_ms, claimed.journal.extent):
                return
            await self._cancel_if_requested()  # perhaps the one before it has left

    async def _write_pause(
        self, waits: tuple[Wait, ...], reason: str, due_ms: int, extent: JournalExtent
    ) -> bool:
        """Let the row say that the run waits; return whether it does.

        Where it does not, something came that we had not seen.
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

    async def _cancel_if_requested(self) -> bool:
        """End a run that is to be cancelled; return whether it is."""
        claimed = self._claimed
        if claimed.head.cancel is None:
            return False
        await claimed.journal.write((Cancelled(claimed.now_ms(), claimed.head.cancel),))
        return True

    async def _store_excess_waits(self, waits: tuple[Wait, ...]) -> tuple[Wait, ...]:
        """Return the waits that the row shows; where it has no room for all, write them down."""
        if len(waits) <= ROW_WAITS_MAX:
            return waits
        claimed = self._claimed
        unjournaled = tuple(
            wait for wait in waits if wait not in claimed.journaled_waits(wait.branch)
        )
        if unjournaled:
            await claimed.journal.write((WaitsRecorded(claimed.now_ms(), unjournaled),))
        # Whoever sends a signal looks in the row whether any is waited for; whoever extends the
        # run, when it is due.
        soonest = sorted(waits, key=wait_due_ms)
        signal_wait = next((wait for wait in soonest if wait.signal is not None), None)
        return tuple(sorted(soonest, key=lambda wait: wait is not signal_wait)[:ROW_WAITS_MAX])

    # --- it is handed on --------------------------------------------------------------------------

    async def release(self, reason: str, *, due_ms: int | None = None, failures: int = 0) -> None:
        """Leave a run to whoever comes next, from that time on."""
        claimed = self._claimed
        await claimed.persistence.store()
        writer = claimed.journal.writer
        if writer is not None:
            await writer.append(())
            # When its waits began is remembered, or they would begin anew.
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
        )
        claimed.claim.mark_released()

    async def release_on_outage(self, error: StoreError) -> None:
        """Release a run at once for whom the store can be used, and tell the worker that it cannot.

        What ails the store is not the run's fault, and is not counted.
        """
        claimed = self._claimed
        claimed.owner.on_store_outage(error)
        if claimed.head.status in ENDED:
            await self._postpone_cleanup(claimed.now_ms())
            return
        claimed.journal.invalidate()
        await self.release("store_unusable", failures=claimed.head.resume_failures)

    async def release_on_error(self, error: Exception) -> None:
        """Put a run aside for a while that cannot be gone on with; at last, for somebody to see."""
        claimed = self._claimed
        if isinstance(error, StoreError):
            await self.release_on_outage(error)
            return
        failures = claimed.head.resume_failures + 1
        if claimed.head.status in ENDED:
            await self._postpone_cleanup(claimed.now_ms() + _RESUME_BACKOFF_MS_MAX)
        elif failures >= claimed.owner.resumes_max:
            await self.end("quarantined", failure_of(error))
        else:
            claimed.journal.invalidate()
            due_ms = claimed.now_ms() + _resume_backoff_ms(failures)
            await self.release("resume_failed", due_ms=due_ms, failures=failures)

    async def release_minimally(self, error: Exception) -> None:
        """Put a run aside whose row refuses what it should say: write as little as can be.

        The row stays as it was when the run was claimed, as after a crash. It is quarantined like
        any other run that cannot be resumed.
        """
        claimed = self._claimed
        claimed.journal.invalidate()
        failures = claimed.head.resume_failures + 1
        quarantined = failures >= claimed.owner.resumes_max and claimed.head.status not in ENDED
        await claimed.row.retry_update(
            owner_writes.forced_release_write,
            # Quarantined, it is due at once: what it owes is paid, and then it leaves the index.
            due_ms=claimed.now_ms() + (0 if quarantined else _resume_backoff_ms(failures)),
            resume_failures=failures,
            failure=failure_of(error) if quarantined else None,
            cancel=claimed.head.cancel,
        )
        claimed.claim.mark_released()
        if quarantined and claimed.head.status == "quarantined":
            claimed.owner.on_ended(claimed.head, claimed.execution, "quarantined")

    # --- it has ended -----------------------------------------------------------------------------

    async def end(self, status: Status, failure: Failure | None) -> None:
        """Let the row say how a run ended, pay what it owes, and let go of it."""
        claimed = self._claimed
        if claimed.persistence.in_memory is not None and claimed.execution.ending == status:
            claimed.owner.on_ended(claimed.head, claimed.execution, status)
            claimed.persistence.in_memory.mark_ended(
                RunOutcome(status, claimed.execution.state, failure)
            )
            claimed.claim.mark_released()
            return
        await claimed.persistence.store()
        if status == "expired":
            await claimed.row.retry_update(owner_writes.close_write, status=status)
            claimed.owner.on_ended(claimed.head, claimed.execution, status)
            await self._settle_obligations()
            await self._free_storage()
            return
        in_journal = claimed.execution.ending == status
        if in_journal:
            # It is over once its journal says so; that the row follows, somebody will see to.
            claimed.owner.on_ended(claimed.head, claimed.execution, status)
            await claimed.sleep(0)  # whoever waits for it need not wait for us to make up the row
            await self._settle_obligations()
        while not claimed.claim.released:
            extent, cancel = claimed.journal.extent, claimed.head.cancel
            try:
                await claimed.row.update(
                    owner_writes.end_write,
                    execution=claimed.execution,
                    status=status,
                    failure=None if status == "finished" else failure,
                    # What the journal does not say must be in the row before anybody is told.
                    due_ms=freed_at_ms(claimed.head, extent)
                    if in_journal or not has_obligations(claimed.head)
                    else claimed.now_ms(),
                    extent=extent,
                )
            except ConditionFailed as failed:
                await claimed.inbox.reload_after_conflict(failed)
                if not in_journal and claimed.head.cancel != cancel:
                    claimed.journal.invalidate()  # resumed once more, the run is cancelled instead
                    return
            else:
                claimed.claim.mark_released()
        if not in_journal:
            claimed.owner.on_ended(claimed.head, claimed.execution, status)

    async def clean_up_ended(self) -> None:
        """Pay what a run owes that has ended, and free what it keeps, if it is time."""
        claimed = self._claimed
        await self._settle_obligations()
        due_ms = freed_at_ms(claimed.head, claimed.head.extent)
        if claimed.head.status == "expired" or (due_ms is not None and due_ms <= claimed.now_ms()):
            await self._free_storage()
        else:
            await self._postpone_cleanup(due_ms)

    async def _settle_obligations(self) -> None:
        """Do what the run owes to others, now that it has ended."""
        claimed = self._claimed
        local_workers, head = claimed.owner.local_workers, claimed.head
        known = claimed.execution if claimed.journal.is_loaded else None
        if has_family_obligations(head):
            await claimed.claim.retry_store_errors(
                lambda: settle_family(claimed.kernel, local_workers, head, known)
            )
        if head.payer is not None:
            await claimed.claim.retry_store_errors(lambda: self._settle_account(known))
        if has_obligations(head):
            await claimed.claim.retry_store_errors(
                lambda: settle_obligations(claimed.kernel, local_workers, head)
            )

    async def _settle_account(self, known: Execution | None) -> None:
        """Give back what was drawn and not spent; nothing where nobody knows what was spent."""
        claimed = self._claimed
        if known is None:
            if claimed.head.freed or claimed.head.status in ("expired", "quarantined"):
                return
            known = (await load_journal(claimed.kernel, claimed.head)).execution
        await claimed.owner.resources.accounts.release_unspent(
            claimed.owner.local_workers, claimed.head, known.spent
        )

    async def _free_storage(self) -> None:
        """Free what an ended run keeps."""
        claimed = self._claimed
        await claimed.kernel.spools.close(claimed.head.key, claimed.head.generation)
        await claimed.claim.retry_store_errors(lambda: free_run(claimed.kernel, claimed.head))
        await claimed.row.retry_update(owner_writes.free_write)
        claimed.claim.mark_released()

    async def _postpone_cleanup(self, due_ms: int | None) -> None:
        """Leave what is to be done for an ended run for later."""
        await self._claimed.row.retry_update(owner_writes.postpone_free_write, due_ms=due_ms)
        self._claimed.claim.mark_released()


def _resume_backoff_ms(failures: int) -> int:
    """Return for how long a run is put aside after so many failures in a row."""
    return min(_RESUME_BACKOFF_MS * 2**failures, _RESUME_BACKOFF_MS_MAX)
