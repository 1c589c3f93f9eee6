"""What a node reaches beyond its own run: quotas, children, money, people, readers of its text."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from holdfast.engine.effects.calls import Ambiguous
from holdfast.engine.effects.quotas import Later, Pass
from holdfast.engine.effects.resources import Means
from holdfast.engine.execution.budget_guard import Purse
from holdfast.engine.execution.claimed_run import Hold, Overtaken
from holdfast.engine.execution.node_threads import NodeThreads
from holdfast.engine.history.text_stream import TokenWriter
from holdfast.engine.journal.writer import Conflict
from holdfast.engine.runs.children import Wanted, ask_child, id_of, start_child
from holdfast.model.child import childs_signal
from holdfast.model.quota import Cost, Quota
from holdfast.records import ambiguity
from holdfast.records.head import Head

__all__ = ["Outside"]


class Outside:
    """What the visits of one held run ask of others."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self.purse = Purse(hold, hold.holder.means.accounts)

    @property
    def means(self) -> Means:
        """What nodes do something to the world with."""
        return self._hold.holder.means

    @property
    def threads(self) -> NodeThreads:
        """Where plain functions run."""
        return self._hold.holder.threads

    def text_writer(self, call: str, name: str) -> TokenWriter:
        """Return what takes in the text of an answer as it comes."""
        hold = self._hold
        return TokenWriter(
            hold.kernel, hold.head, alive=hold.alive, lost=hold.lost, call=call, name=name
        )

    async def admit(self, quota: Quota, cost: Cost, told_ms: int | None) -> Pass | Later:
        """Ask for what a quota gives; see `QuotaDesk.admit`."""
        hold, desk = self._hold, self.means.desk
        tenant = hold.head.key.tenant
        hold.check_alive()
        admission = await hold.patiently(
            lambda: desk.admit(quota, tenant, cost=cost, told_ms=told_ms)
        )
        if isinstance(admission, Pass) and not hold.alive():
            admission.give_back()
        hold.check_alive()
        return admission

    # --- people -----------------------------------------------------------------------------------

    async def list_ambiguous(self, ambiguous: Ambiguous, node: str) -> None:
        """Let people find a call that may have been made."""
        hold = self._hold
        write = ambiguity.listed(
            hold.head,
            id=ambiguous.id,
            node=node,
            name=ambiguous.name,
            key=ambiguous.key,
            now_ms=hold.now_ms(),
            token=hold.kernel.ids.new(),
        )
        await hold.kernel.settle(hold.kernel.lists, write, alive=hold.alive)

    async def unlist_ambiguous(self, id: str) -> None:
        """Let people find it no more."""
        hold = self._hold
        write = ambiguity.unlisted(hold.head, id)
        await hold.kernel.settle(hold.kernel.lists, write, alive=hold.alive)

    # --- children ---------------------------------------------------------------------------------

    def child_id(self, wanted: Wanted) -> str:
        """Return the id that a child has, or will have."""
        return id_of(self._hold.head, wanted, self._hold.execution.retried)

    async def start_child(self, wanted: Wanted) -> str:
        """Make a run that is a child of this one, unless it is there; return its id.

        Raises:
            Dropped: the run is no longer ours.
            Overtaken: it is to be cancelled.
        """
        hold = self._hold
        hold.check_alive()
        draws = await hold.patiently(self.purse.shared)

        def started() -> Coroutine[Any, Any, Head]:
            return start_child(
                hold.kernel,
                hold.holder.hands,
                hold.head,
                wanted,
                retried=hold.execution.retried,
                draws=draws,
                parenting=hold.as_parent,
            )

        try:
            # As one, so that nothing of it follows once the run has ended.
            head = await hold.uncut(hold.patiently(started))
        except Conflict:
            raise Overtaken from None
        return head.key.id

    async def ask_child(self, id: str) -> bool:
        """Return whether a child has ended; if so, its end is in the inbox then.

        Raises:
            Dropped: the run is no longer ours.
        """
        hold = self._hold
        hold.check_alive()
        # Told once, it is not told again: then it must be known for sure whether it goes on.
        closely = hold.was_taken(childs_signal(id))
        ended = await hold.patiently(
            lambda: ask_child(hold.kernel, hold.holder.hands, hold.head, id, closely=closely)
        )
        if ended:
            await hold.read_inbox()
        return ended
