"""Effects of nodes outside of their run: permits, budgets, children, and streamed text."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from holdfast.engine.effects.call_host import Ambiguous
from holdfast.engine.effects.quotas import Permit, PermitDelay
from holdfast.engine.effects.resources import Resources
from holdfast.engine.execution.budget_guard import BudgetGuard
from holdfast.engine.execution.claimed_run import ClaimedRun
from holdfast.engine.execution.journal_session import JournalConflict
from holdfast.engine.execution.node_threads import NodeThreads
from holdfast.engine.history.text_stream import ProgressWriter, TokenWriter
from holdfast.engine.journal.writer import PositionTaken
from holdfast.engine.runs.children import ChildRequest, child_id, deliver_child_end, start_child
from holdfast.engine.runs.map_chunks import read_map
from holdfast.engine.runs.map_lanes import deliver_map_end
from holdfast.engine.runs.map_results import MapPlace
from holdfast.engine.runs.map_starting import MapRequest, start_map
from holdfast.model.arguments import Arguments
from holdfast.model.child import child_signal
from holdfast.model.map import MapSpec
from holdfast.model.needs import Needs
from holdfast.model.program import Program
from holdfast.model.quota import Cost, Quota
from holdfast.records import ambiguous_call
from holdfast.records.head import Head

__all__ = ["ExternalEffects"]


class ExternalEffects:
    """Performs what the visits of one claimed run need outside of the run."""

    def __init__(self, claimed: ClaimedRun, program: Program) -> None:
        self._claimed = claimed
        self.program = program
        self.budget_guard = BudgetGuard(claimed, claimed.owner.resources.accounts)

    @property
    def resources(self) -> Resources:
        """Models, quotas, accounts and shared answers of the worker."""
        return self._claimed.owner.resources

    @property
    def needs(self) -> Needs:
        """What the program of the run declares to use."""
        return self.program.needs

    @property
    def threads(self) -> NodeThreads:
        """The threads in which plain functions run."""
        return self._claimed.owner.threads

    def text_writer(self, call: str, name: str) -> TokenWriter:
        """Return the writer of a model's text as it arrives."""
        claimed = self._claimed
        return TokenWriter(
            claimed.kernel,
            claimed.head,
            is_claimed=claimed.claim.alive,
            is_lost=claimed.claim.is_lost,
            call=call,
            name=name,
        )

    def progress_writer(self, path: str, node: str) -> ProgressWriter:
        """Return the writer of a visit's progress, for followers in other processes."""
        claimed = self._claimed
        return ProgressWriter(
            claimed.kernel,
            claimed.head,
            is_claimed=claimed.claim.alive,
            is_lost=claimed.claim.is_lost,
            path=path,
            node=node,
        )

    async def acquire_permit(
        self, quota: Quota, cost: Cost, promised_ms: int | None
    ) -> Permit | PermitDelay:
        """Ask a quota for a permit, and cancel it if the run was lost meanwhile."""
        claimed, limiter = self._claimed, self.resources.quota_limiter
        tenant = claimed.head.key.tenant
        claimed.claim.check_alive()
        admission = await claimed.claim.retry_store_errors(
            lambda: limiter.acquire(quota, tenant, cost=cost, retry_at_ms=promised_ms)
        )
        if isinstance(admission, Permit) and not claimed.claim.alive():
            admission.cancel()
        claimed.claim.check_alive()
        return admission

    # --- people -----------------------------------------------------------------------------------

    async def add_ambiguous_call(self, ambiguous: Ambiguous, node: str) -> None:
        """List a call that may have been made, for a person to resolve."""
        claimed, recorded = self._claimed, ambiguous.arguments
        write = ambiguous_call.list_call_write(
            claimed.head,
            id=ambiguous.id,
            node=node,
            name=ambiguous.name,
            key=ambiguous.key,
            arguments=bytes(recorded.values) if isinstance(recorded, Arguments) else None,
            now_ms=claimed.now_ms(),
            token=claimed.kernel.ids.new(),
        )
        await claimed.kernel.resolve_write(claimed.kernel.lists, write, alive=claimed.claim.alive)

    async def remove_ambiguous_call(self, id: str) -> None:
        """Remove a call from the list, after it was resolved."""
        claimed = self._claimed
        write = ambiguous_call.unlist_call_write(claimed.head, id)
        await claimed.kernel.resolve_write(claimed.kernel.lists, write, alive=claimed.claim.alive)

    # --- children ---------------------------------------------------------------------------------

    def child_id(self, wanted: ChildRequest) -> str:
        """Return the id of a child, whether it exists yet or not."""
        return child_id(self._claimed.head, wanted, self._claimed.execution.retried)

    async def start_child(self, wanted: ChildRequest) -> str:
        """Start a child of the run, unless it exists, and return its id.

        Raises:
            ClaimLost: this worker no longer owns the run.
            JournalConflict: a caller cancelled the run.
        """
        claimed = self._claimed
        claimed.claim.check_alive()
        payer = None
        if wanted.budget is None:
            payer = await claimed.claim.retry_store_errors(self.budget_guard.open_shared_account)

        def start() -> Coroutine[Any, Any, Head]:
            return start_child(
                claimed.kernel,
                claimed.owner.local_workers,
                claimed.head,
                wanted,
                retried=claimed.execution.retried,
                payer=payer,
                mark_has_children=claimed.mark_as_parent,
            )

        try:
            # One write: the driver waits for it before it ends the run, so no child comes later.
            head = await claimed.journal.shield_write(claimed.claim.retry_store_errors(start))
        except PositionTaken:
            raise JournalConflict from None
        return head.key.id

    async def start_map(self, request: MapRequest) -> MapSpec:
        """Begin a map of the run, or continue it; return it as it is recorded.

        Raises:
            ClaimLost: this worker no longer owns the run.
            JournalConflict: a caller cancelled the run.
        """
        claimed = self._claimed
        claimed.claim.check_alive()
        payer = await claimed.claim.retry_store_errors(self.budget_guard.open_shared_account)

        def start() -> Coroutine[Any, Any, MapSpec]:
            return start_map(
                claimed.kernel,
                claimed.owner.local_workers,
                request,
                retried=claimed.execution.retried,
                payer=payer,
                mark_has_maps=lambda: claimed.mark_as_parent(maps=True),
            )

        try:
            # One write: the driver waits for it before it ends the run, so no chunk comes later.
            return await claimed.journal.shield_write(claimed.claim.retry_store_errors(start))
        except PositionTaken:
            raise JournalConflict from None

    async def deliver_map_end(self, map: str) -> bool:
        """Deliver the end of a map to the inbox, if it has ended; return whether it has.

        Raises:
            ClaimLost: this worker no longer owns the run.
        """
        claimed = self._claimed
        head, kernel = claimed.head, claimed.kernel

        async def deliver() -> bool:
            spec = await read_map(kernel, head.key, head.generation, map)
            if spec is None:
                return False
            place = MapPlace(head.key, head.generation, spec)
            return await deliver_map_end(kernel, claimed.owner.local_workers, place)

        claimed.claim.check_alive()
        ended = await claimed.claim.retry_store_errors(deliver)
        if ended:
            await claimed.inbox.read()
        return ended

    async def deliver_child_end(self, id: str) -> bool:
        """Deliver the end of a child to the inbox, if it has ended; return whether it has.

        Raises:
            ClaimLost: this worker no longer owns the run.
        """
        claimed = self._claimed
        claimed.claim.check_alive()
        # A child reports its end only once. After that only its journal tells whether it goes on.
        consistent = claimed.inbox.was_taken(child_signal(id))
        ended = await claimed.claim.retry_store_errors(
            lambda: deliver_child_end(
                claimed.kernel,
                claimed.owner.local_workers,
                claimed.head,
                id,
                read_journal=consistent,
            )
        )
        if ended:
            await claimed.inbox.read()
        return ended
