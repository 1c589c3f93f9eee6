"""What a node reaches beyond its own run: quotas, children, money, people, readers of its text."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from holdfast.engine.effects.call_host import Ambiguous
from holdfast.engine.effects.quotas import Permit, PermitDelay
from holdfast.engine.effects.resources import Resources
from holdfast.engine.execution.budget_guard import BudgetGuard
from holdfast.engine.execution.claimed_run import ClaimedRun, JournalConflict
from holdfast.engine.execution.node_threads import NodeThreads
from holdfast.engine.history.text_stream import TokenWriter
from holdfast.engine.journal.writer import PositionTaken
from holdfast.engine.runs.children import ChildRequest, child_id, deliver_child_end, start_child
from holdfast.model.child import child_signal
from holdfast.model.quota import Cost, Quota
from holdfast.records import ambiguous_call
from holdfast.records.head import Head

__all__ = ["ExternalEffects"]


class ExternalEffects:
    """What the visits of one held run ask of others."""

    def __init__(self, claimed: ClaimedRun) -> None:
        self._claimed = claimed
        self.budget_guard = BudgetGuard(claimed, claimed.owner.resources.accounts)

    @property
    def resources(self) -> Resources:
        """What nodes do something to the world with."""
        return self._claimed.owner.resources

    @property
    def threads(self) -> NodeThreads:
        """Where plain functions run."""
        return self._claimed.owner.threads

    def text_writer(self, call: str, name: str) -> TokenWriter:
        """Return what takes in the text of an answer as it comes."""
        claimed = self._claimed
        return TokenWriter(
            claimed.kernel,
            claimed.head,
            is_claimed=claimed.alive,
            is_lost=claimed.is_lost,
            call=call,
            name=name,
        )

    async def acquire_permit(
        self, quota: Quota, cost: Cost, promised_ms: int | None
    ) -> Permit | PermitDelay:
        """Ask for what a quota gives; see `QuotaDesk.admit`."""
        claimed, desk = self._claimed, self.resources.quota_limiter
        tenant = claimed.head.key.tenant
        claimed.check_alive()
        admission = await claimed.retry_store_errors(
            lambda: desk.acquire(quota, tenant, cost=cost, retry_at_ms=promised_ms)
        )
        if isinstance(admission, Permit) and not claimed.alive():
            admission.cancel()
        claimed.check_alive()
        return admission

    # --- people -----------------------------------------------------------------------------------

    async def add_ambiguous_call(self, ambiguous: Ambiguous, node: str) -> None:
        """Let people find a call that may have been made."""
        claimed = self._claimed
        write = ambiguous_call.list_call_write(
            claimed.head,
            id=ambiguous.id,
            node=node,
            name=ambiguous.name,
            key=ambiguous.key,
            now_ms=claimed.now_ms(),
            token=claimed.kernel.ids.new(),
        )
        await claimed.kernel.resolve_write(claimed.kernel.lists, write, alive=claimed.alive)

    async def remove_ambiguous_call(self, id: str) -> None:
        """Let people find it no more."""
        claimed = self._claimed
        write = ambiguous_call.unlist_call_write(claimed.head, id)
        await claimed.kernel.resolve_write(claimed.kernel.lists, write, alive=claimed.alive)

    # --- children ---------------------------------------------------------------------------------

    def child_id(self, wanted: ChildRequest) -> str:
        """Return the id that a child has, or will have."""
        return child_id(self._claimed.head, wanted, self._claimed.execution.retried)

    async def start_child(self, wanted: ChildRequest) -> str:
        """Make a run that is a child of this one, unless it is there; return its id.

        Raises:
            Dropped: the run is no longer ours.
            Overtaken: it is to be cancelled.
        """
        claimed = self._claimed
        claimed.check_alive()
        draws = await claimed.retry_store_errors(self.budget_guard.open_shared_account)

        def started() -> Coroutine[Any, Any, Head]:
            return start_child(
                claimed.kernel,
                claimed.owner.local_workers,
                claimed.head,
                wanted,
                retried=claimed.execution.retried,
                payer=draws,
                mark_has_children=claimed.mark_as_parent,
            )

        try:
            # As one, so that nothing of it follows once the run has ended.
            head = await claimed.shield_write(claimed.retry_store_errors(started))
        except PositionTaken:
            raise JournalConflict from None
        return head.key.id

    async def deliver_child_end(self, id: str) -> bool:
        """Return whether a child has ended; if so, its end is in the inbox then.

        Raises:
            Dropped: the run is no longer ours.
        """
        claimed = self._claimed
        claimed.check_alive()
        # Told once, it is not told again: then it must be known for sure whether it goes on.
        consistent = claimed.was_taken(child_signal(id))
        ended = await claimed.retry_store_errors(
            lambda: deliver_child_end(
                claimed.kernel,
                claimed.owner.local_workers,
                claimed.head,
                id,
                read_journal=consistent,
            )
        )
        if ended:
            await claimed.read_inbox()
        return ended
