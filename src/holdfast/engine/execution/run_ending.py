"""How a run ends: its row says so, its obligations are settled, and its storage is freed.

The worker keeps an ended run until its obligations to other runs are settled.
"""

from __future__ import annotations

from holdfast.engine.execution.claimed_run import ClaimedRun
from holdfast.engine.journal.endings import RunOutcome
from holdfast.engine.journal.reader import load_journal
from holdfast.engine.runs.children import settle_family
from holdfast.engine.runs.obligations import (
    has_family_obligations,
    has_obligations,
    settle_obligations,
)
from holdfast.engine.runs.removal import free_run, freed_at_ms
from holdfast.errors import ConditionFailed
from holdfast.model.event import Cancelled, Expired, Failure
from holdfast.model.execution import Execution
from holdfast.model.fold import folded
from holdfast.model.program import Program
from holdfast.model.run import Status
from holdfast.records import owner_writes
from holdfast.records.head import TROUBLED

__all__ = ["RunEnding"]


class RunEnding:
    """Ends one claimed run."""

    def __init__(self, claimed: ClaimedRun, program: Program) -> None:
        self._claimed = claimed
        self._program = program

    async def write_cancelled(self, reason: str) -> None:
        """Write into the journal that the run was cancelled; `end` follows."""
        claimed = self._claimed
        await claimed.journal.write((Cancelled(claimed.now_ms(), reason),))

    async def write_expired(self) -> None:
        """Write into the journal that the run has expired; `end` follows."""
        claimed = self._claimed
        await claimed.journal.write((Expired(claimed.now_ms()),))

    async def end(self, status: Status, failure: Failure | None) -> None:
        """Write into the row how the run ended, settle its obligations, and release it.

        A run is quarantined by its row alone. If a caller cancels it first, nothing is written: the
        driver reads the journal again and cancels the run instead.
        """
        claimed = self._claimed
        in_memory = claimed.persistence.in_memory
        if in_memory is not None and claimed.execution.ending == status:
            claimed.owner.on_ended(claimed.head, claimed.execution, status)
            state, node = claimed.execution.state, claimed.execution.ending_node
            wrapped = claimed.head.wrapped
            in_memory.mark_ended(RunOutcome(status, state, failure, node, wrapped))
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
            # The journal decides that a run has ended. If we crash now, the worker that claims the
            # run next writes the row.
            claimed.owner.on_ended(claimed.head, claimed.execution, status)
            await claimed.sleep(0)  # callers that wait for the result go first
            await self._settle_obligations()
        while not claimed.claim.released:
            extent, cancel = claimed.journal.extent, claimed.head.cancel
            try:
                await claimed.row.update(
                    owner_writes.end_write,
                    execution=claimed.execution,
                    status=status,
                    failure=None if status == "finished" else failure,
                    retries_left=self._retries_after_retry() if status == "failed" else None,
                    # An end that is not in the journal must be in the row before its obligations
                    # are settled: then the run is due at once, to settle them.
                    due_ms=freed_at_ms(claimed.head, extent)
                    if in_journal or not has_obligations(claimed.head)
                    else claimed.now_ms(),
                    extent=extent,
                )
            except ConditionFailed as failed:
                await claimed.inbox.reload_after_conflict(failed)
                if not in_journal and claimed.head.cancel != cancel:
                    claimed.journal.invalidate()
                    return
            else:
                claimed.claim.mark_released()
        if not in_journal:
            claimed.owner.on_ended(claimed.head, claimed.execution, status)

    def _retries_after_retry(self) -> int:
        """Return how many failures the failed run survives if a caller retries it."""
        execution, now = self._claimed.execution, self._claimed.now_ms()
        reopened = folded(execution, self._program.retried(execution, None, "", now))
        return self._program.retries_left(reopened)

    async def clean_up(self) -> None:
        """Settle the obligations of an ended run, and free its storage when it is time."""
        claimed = self._claimed
        await self._settle_obligations()
        if claimed.head.status in TROUBLED and self._is_due_to_be_freed():
            await claimed.row.read()  # a caller may have extended the run
        due_ms = freed_at_ms(claimed.head, claimed.head.extent)
        if claimed.head.status == "expired" or self._is_due_to_be_freed():
            await self._free_storage()
        else:
            await self.postpone_cleanup(due_ms)

    def _is_due_to_be_freed(self) -> bool:
        due_ms = freed_at_ms(self._claimed.head, self._claimed.head.extent)
        return due_ms is not None and due_ms <= self._claimed.now_ms()

    async def postpone_cleanup(self, due_ms: int | None) -> None:
        """Release an ended run until that time; for good where it is None."""
        await self._claimed.row.retry_update(owner_writes.postpone_free_write, due_ms=due_ms)
        self._claimed.claim.mark_released()

    async def _settle_obligations(self) -> None:
        """Settle what an ended run owes to its parent, its children, its payer and its session."""
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
        """Return what was drawn and not spent; nothing where it is unknown what was spent."""
        claimed = self._claimed
        if known is None:
            if claimed.head.freed or claimed.head.status in ("expired", "quarantined"):
                return
            known = (await load_journal(claimed.kernel, claimed.head)).execution
        await claimed.owner.resources.accounts.release_unspent(
            claimed.owner.local_workers, claimed.head, known.spent
        )

    async def _free_storage(self) -> None:
        claimed = self._claimed
        await claimed.kernel.spools.close(claimed.head.key, claimed.head.generation)
        await claimed.claim.retry_store_errors(lambda: free_run(claimed.kernel, claimed.head))
        await claimed.row.retry_update(owner_writes.free_write)
        claimed.claim.mark_released()
