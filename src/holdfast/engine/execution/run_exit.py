"""How a run is let go of: it waits, is handed on, or has ended.

Nothing is let go of before every write of ours is decided; and a run that has ended leaves only
when what it owes to others is paid.
"""

from __future__ import annotations

import msgspec

from holdfast.engine.execution.claimed_run import ClaimedRun
from holdfast.engine.execution.waits import pause_reason, wait_deadline_ms
from holdfast.engine.journal.endings import RunOutcome
from holdfast.engine.journal.reader import load_journal
from holdfast.engine.runs.children import settle_family
from holdfast.engine.runs.obligations import (
    has_family_obligations,
    has_obligations,
    settle_obligations,
)
from holdfast.engine.runs.removal import free_run, freed_at_ms
from holdfast.engine.runs.session_turns import needs_turn, prune_earlier, replace_earlier
from holdfast.errors import ConditionFailed, StoreError
from holdfast.graph import Graph
from holdfast.model.event import Cancelled, Expired, Failure, WaitsRecorded
from holdfast.model.execution import Execution
from holdfast.model.failure import failure_of
from holdfast.model.run import Status
from holdfast.model.signals import Pending, resolved_wait
from holdfast.model.wait import Wait
from holdfast.records import run_writes
from holdfast.records.head import ENDED, ROW_WAITS_MAX, JournalExtent
from holdfast.records.session_queue import next_recheck_ms

__all__ = ["RunExit"]

_RESUME_BACKOFF_MS = 1_000
_RESUME_BACKOFF_MS_MAX = 300_000


class RunExit:
    """The ways out of one held run."""

    def __init__(self, claimed: ClaimedRun, graph: Graph) -> None:
        self._claimed = claimed
        self._graph = graph

    # --- it waits ---------------------------------------------------------------------------------

    async def pause(self, waits: tuple[Wait, ...]) -> None:
        """Let go of a run until one of its waits is over, unless that is so by now."""
        claimed = self._claimed
        journal = claimed.journal
        if journal is None:
            return
        await claimed.persist()
        await journal.append(())
        if await claimed.close_inbox_if_expired():
            await claimed.read_inbox()
        shown = await self._store_excess_waits(waits)
        while True:
            now, signals = claimed.now_ms(), claimed.untaken_signals()
            answers = [resolved_wait(wait, signals, (), now) for wait in waits]
            limits = [answer.due_ms for answer in answers if isinstance(answer, Pending)]
            if len(limits) < len(answers):
                return  # an answer is there by now: the node runs again, and finds it
            if claimed.head.status == "closing":
                await claimed.write_events((Expired(now),))
                return
            earliest = min((limit for limit in limits if limit is not None), default=None)
            due_ms = claimed.head.expires_ms if earliest is None else earliest
            if await self._write_pause(shown, pause_reason(waits), due_ms, journal.extent):
                claimed.owner.on_paused(claimed.head)
                return
            if await self._cancel_if_requested() or claimed.waits.resume_polling():
                return

    async def wait_in_session_queue(self) -> None:
        """Go back into the queue of the run's session, unless it stands in front there."""
        claimed = self._claimed
        if not needs_turn(claimed.head, claimed.execution):
            return
        while claimed.execution.ending is None and await claimed.retry_store_errors(
            lambda: prune_earlier(claimed.kernel, claimed.head)
        ):
            await replace_earlier(claimed.kernel, claimed.owner.local_workers, claimed.head)
            if claimed.head.status == "closing":
                await claimed.write_events((Expired(claimed.now_ms()),))
                return
            due_ms = next_recheck_ms(claimed.head, claimed.now_ms())
            if await self._write_pause((), "queued", due_ms, claimed.extent):
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
            await claimed.update_row(
                run_writes.pause_write,
                execution=claimed.execution,
                waits=waits,
                signals=claimed.head.signals,
                inbox=claimed.inbox_size(),
                reason=reason,
                due_ms=due_ms,
                retries_left=self._retries_left(),
                extent=extent,
            )
        except ConditionFailed as failed:
            await claimed.reload_after_conflict(failed)
            return False
        claimed.released = True
        return True

    async def _cancel_if_requested(self) -> bool:
        """End a run that is to be cancelled; return whether it is."""
        claimed = self._claimed
        if claimed.head.cancel is None:
            return False
        await claimed.write_events((Cancelled(claimed.now_ms(), claimed.head.cancel),))
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
            await claimed.write_events((WaitsRecorded(claimed.now_ms(), unjournaled),))
        # Whoever sends a signal looks in the row whether any is waited for; whoever extends the
        # run, when it is due.
        soonest = sorted(waits, key=wait_deadline_ms)
        signal_wait = next((wait for wait in soonest if wait.signal is not None), None)
        return tuple(sorted(soonest, key=lambda wait: wait is not signal_wait)[:ROW_WAITS_MAX])

    # --- it is handed on --------------------------------------------------------------------------

    async def release(self, reason: str, *, due_ms: int | None = None, failures: int = 0) -> None:
        """Leave a run to whoever comes next, from that time on."""
        claimed = self._claimed
        await claimed.persist()
        if claimed.journal is not None:
            await claimed.journal.append(())
            # When its waits began is remembered, or they would begin anew.
            if claimed.waits.has_waited:
                shown = await self._store_excess_waits(claimed.waits.open_waits(claimed.execution))
                claimed.head = msgspec.structs.replace(claimed.head, waits=shown)
        await claimed.retry_row_update(
            run_writes.release_write,
            execution=claimed.execution,
            due_ms=claimed.now_ms() if due_ms is None else due_ms,
            reason=reason,
            retries_left=self._retries_left(),
            extent=claimed.extent,
            resume_failures=failures,
        )
        claimed.released = True

    async def release_on_outage(self, error: StoreError) -> None:
        """Release a run at once for whom the store can be used, and tell the worker that it cannot.

        What ails the store is not the run's fault, and is not counted.
        """
        claimed = self._claimed
        claimed.owner.on_store_outage(error)
        if claimed.head.status in ENDED:
            await self._postpone_cleanup(claimed.now_ms())
            return
        claimed.journal = None
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
            claimed.journal = None
            due_ms = claimed.now_ms() + _resume_backoff_ms(failures)
            await self.release("resume_failed", due_ms=due_ms, failures=failures)

    async def release_minimally(self, error: Exception) -> None:
        """Put a run aside whose row refuses what it should say: write as little as can be.

        The row stays as it was when the run was claimed, as after a crash. It is quarantined like
        any other run that cannot be resumed.
        """
        claimed = self._claimed
        claimed.journal = None
        failures = claimed.head.resume_failures + 1
        quarantined = failures >= claimed.owner.resumes_max and claimed.head.status not in ENDED
        await claimed.retry_row_update(
            run_writes.forced_release_write,
            # Quarantined, it is due at once: what it owes is paid, and then it leaves the index.
            due_ms=claimed.now_ms() + (0 if quarantined else _resume_backoff_ms(failures)),
            resume_failures=failures,
            failure=failure_of(error) if quarantined else None,
            cancel=claimed.head.cancel,
        )
        claimed.released = True
        if quarantined and claimed.head.status == "quarantined":
            claimed.owner.on_ended(claimed.head, claimed.execution, "quarantined")

    def _retries_left(self) -> int:
        """Return how often the node may still fail; of several, the one that may least often."""
        left = [
            node.retry.attempts - 1 - strand.failed_attempts
            for _, strand in self._claimed.execution.runnable_strands()
            if (node := self._graph.nodes.get(strand.node)) is not None
        ]
        return min(left, default=0)

    # --- it has ended -----------------------------------------------------------------------------

    async def end(self, status: Status, failure: Failure | None) -> None:
        """Let the row say how a run ended, pay what it owes, and let go of it."""
        claimed = self._claimed
        if claimed.in_memory is not None and claimed.execution.ending == status:
            claimed.owner.on_ended(claimed.head, claimed.execution, status)
            claimed.in_memory.mark_ended(RunOutcome(status, claimed.execution.state, failure))
            claimed.released = True
            return
        await claimed.persist()
        if status == "expired":
            await claimed.retry_row_update(run_writes.close_write, status=status)
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
        while not claimed.released:
            extent, cancel = claimed.extent, claimed.head.cancel
            try:
                await claimed.update_row(
                    run_writes.end_write,
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
                await claimed.reload_after_conflict(failed)
                if not in_journal and claimed.head.cancel != cancel:
                    claimed.journal = None  # resumed once more, the run is cancelled instead
                    return
            else:
                claimed.released = True
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
        known = None if claimed.journal is None else claimed.execution
        if has_family_obligations(head):
            await claimed.retry_store_errors(
                lambda: settle_family(claimed.kernel, local_workers, head, known)
            )
        if head.payer is not None:
            await claimed.retry_store_errors(lambda: self._settle_account(known))
        if has_obligations(head):
            await claimed.retry_store_errors(
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
        await claimed.retry_store_errors(lambda: free_run(claimed.kernel, claimed.head))
        await claimed.retry_row_update(run_writes.free_write)
        claimed.released = True

    async def _postpone_cleanup(self, due_ms: int | None) -> None:
        """Leave what is to be done for an ended run for later."""
        await self._claimed.retry_row_update(run_writes.postpone_free_write, due_ms=due_ms)
        self._claimed.released = True


def _resume_backoff_ms(failures: int) -> int:
    """Return for how long a run is put aside after so many failures in a row."""
    return min(_RESUME_BACKOFF_MS * 2**failures, _RESUME_BACKOFF_MS_MAX)
