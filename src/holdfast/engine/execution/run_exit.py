"""How a run is let go of: it waits, is handed on, or has ended.

Nothing is let go of before every write of ours is decided; and a run that has ended leaves only
when what it owes to others is paid.
"""

from __future__ import annotations

import msgspec

from holdfast.engine.execution.claimed_run import Hold
from holdfast.engine.execution.waits import limit_ms, reason_of
from holdfast.engine.journal.endings import Outcome
from holdfast.engine.journal.reader import load_journal
from holdfast.engine.runs.children import pay_family
from holdfast.engine.runs.obligations import owes, owes_family, pay
from holdfast.engine.runs.removal import freed_at_ms, remove
from holdfast.engine.runs.session_turns import must_wait
from holdfast.errors import ConditionFailed, StoreError
from holdfast.graph import Graph
from holdfast.model.event import Cancelled, Expired, Failure, Waiting
from holdfast.model.execution import Execution
from holdfast.model.failure import failure_of
from holdfast.model.run import Status
from holdfast.model.signals import Pending, resolved
from holdfast.model.wait import Wait
from holdfast.records import changes
from holdfast.records.head import ENDED, ROW_WAITS_MAX, Context
from holdfast.records.lane import asks_again_ms

__all__ = ["Leaving"]

_STUMBLE_FIRST_MS = 1_000
_STUMBLE_MOST_MS = 300_000


class Leaving:
    """The ways out of one held run."""

    def __init__(self, hold: Hold, graph: Graph) -> None:
        self._hold = hold
        self._graph = graph

    # --- it waits ---------------------------------------------------------------------------------

    async def pause(self, waits: tuple[Wait, ...]) -> None:
        """Let go of a run until one of its waits is over, unless that is so by now."""
        hold = self._hold
        journal = hold.journal
        if journal is None:
            return
        await hold.write_down()
        await journal.flush()
        if await hold.stop_accepting():
            await hold.read_inbox()
        shown = await self._row_waits(waits)
        while True:
            now, signals = hold.now_ms(), hold.free_signals()
            answers = [resolved(wait, signals, (), now) for wait in waits]
            limits = [answer.due_ms for answer in answers if isinstance(answer, Pending)]
            if len(limits) < len(answers):
                return  # an answer is there by now: the node runs again, and finds it
            if hold.head.status == "closing":
                await hold.write((Expired(now),))
                return
            earliest = min((limit for limit in limits if limit is not None), default=None)
            due_ms = hold.head.expires_ms if earliest is None else earliest
            if await self._paused(shown, reason_of(waits), due_ms, journal.context):
                hold.holder.paused(hold.head)
                return
            if await self._was_cancelled() or hold.parking.ask_again():
                return

    async def take_turn(self) -> None:
        """Go back into the queue of the run's session, unless it stands in front there."""
        hold = self._hold
        while hold.execution.ending is None and await hold.patiently(
            lambda: must_wait(hold.kernel, hold.holder.hands, hold.head, hold.execution)
        ):
            if hold.head.status == "closing":
                await hold.write((Expired(hold.now_ms()),))
                return
            due_ms = asks_again_ms(hold.head, hold.now_ms())
            if await self._paused((), "queued", due_ms, hold.context):
                return
            await self._was_cancelled()  # perhaps the one before it has left

    async def _paused(
        self, waits: tuple[Wait, ...], reason: str, due_ms: int, context: Context
    ) -> bool:
        """Let the row say that the run waits; return whether it does.

        Where it does not, something came that we had not seen.
        """
        hold = self._hold
        try:
            await hold.change(
                changes.paused,
                execution=hold.execution,
                waits=waits,
                signals=hold.head.signals,
                inbox=hold.inbox_size(),
                reason=reason,
                due_ms=due_ms,
                retries_left=self._retries_left(),
                context=context,
            )
        except ConditionFailed as failed:
            await hold.look_again(failed)
            return False
        hold.let_go = True
        return True

    async def _was_cancelled(self) -> bool:
        """End a run that is to be cancelled; return whether it is."""
        hold = self._hold
        if hold.head.cancel is None:
            return False
        await hold.write((Cancelled(hold.now_ms(), hold.head.cancel),))
        return True

    async def _row_waits(self, waits: tuple[Wait, ...]) -> tuple[Wait, ...]:
        """Return the waits that the row shows; where it has no room for all, write them down."""
        if len(waits) <= ROW_WAITS_MAX:
            return waits
        hold = self._hold
        unwritten = tuple(wait for wait in waits if wait not in hold.journalled_waits(wait.branch))
        if unwritten:
            await hold.write((Waiting(hold.now_ms(), unwritten),))
        # Whoever sends a signal looks in the row whether any is waited for; whoever extends the
        # run, when it is due.
        soonest = sorted(waits, key=limit_ms)
        heard = next((wait for wait in soonest if wait.signal is not None), None)
        return tuple(sorted(soonest, key=lambda wait: wait is not heard)[:ROW_WAITS_MAX])

    # --- it is handed on --------------------------------------------------------------------------

    async def release(self, reason: str, *, due_ms: int | None = None, failures: int = 0) -> None:
        """Leave a run to whoever comes next, from that time on."""
        hold = self._hold
        await hold.write_down()
        if hold.journal is not None:
            await hold.journal.flush()
            # When its waits began is remembered, or they would begin anew.
            if hold.parking.has_waited:
                shown = await self._row_waits(hold.parking.still_waited(hold.execution))
                hold.head = msgspec.structs.replace(hold.head, waits=shown)
        await hold.change_or_drop(
            changes.released,
            execution=hold.execution,
            due_ms=hold.now_ms() if due_ms is None else due_ms,
            reason=reason,
            retries_left=self._retries_left(),
            context=hold.context,
            resume_failures=failures,
        )
        hold.let_go = True

    async def step_back(self, error: StoreError) -> None:
        """Release a run at once for whom the store can be used, and tell the worker that it cannot.

        What ails the store is not the run's fault, and is not counted.
        """
        hold = self._hold
        hold.holder.cut_off(error)
        if hold.head.status in ENDED:
            await self._postpone(hold.now_ms())
            return
        hold.journal = None
        await self.release("store_unusable", failures=hold.head.resume_failures)

    async def stumble(self, error: Exception) -> None:
        """Put a run aside for a while that cannot be gone on with; at last, for somebody to see."""
        hold = self._hold
        if isinstance(error, StoreError):
            await self.step_back(error)
            return
        failures = hold.head.resume_failures + 1
        if hold.head.status in ENDED:
            await self._postpone(hold.now_ms() + _STUMBLE_MOST_MS)
        elif failures >= hold.holder.resumes_max:
            await self.end("quarantined", failure_of(error))
        else:
            hold.journal = None
            due_ms = hold.now_ms() + _stumble_ms(failures)
            await self.release("resume_failed", due_ms=due_ms, failures=failures)

    async def fall(self, error: Exception) -> None:
        """Put a run aside whose row refuses what it should say: write as little as can be.

        The row stays as it was when the run was claimed, as after a crash. It is quarantined like
        any other run that cannot be resumed.
        """
        hold = self._hold
        hold.journal = None
        failures = hold.head.resume_failures + 1
        quarantined = failures >= hold.holder.resumes_max and hold.head.status not in ENDED
        await hold.change_or_drop(
            changes.fallen,
            # Quarantined, it is due at once: what it owes is paid, and then it leaves the index.
            due_ms=hold.now_ms() + (0 if quarantined else _stumble_ms(failures)),
            resume_failures=failures,
            failure=failure_of(error) if quarantined else None,
            cancel=hold.head.cancel,
        )
        hold.let_go = True
        if quarantined and hold.head.status == "quarantined":
            hold.holder.ended(hold.head, hold.execution, "quarantined")

    def _retries_left(self) -> int:
        """Return how often the node may still fail; of several, the one that may least often."""
        left = [
            node.retry.attempts - 1 - strand.failed_attempts
            for _, strand in self._hold.execution.open()
            if (node := self._graph.nodes.get(strand.node)) is not None
        ]
        return min(left, default=0)

    # --- it has ended -----------------------------------------------------------------------------

    async def end(self, status: Status, failure: Failure | None) -> None:
        """Let the row say how a run ended, pay what it owes, and let go of it."""
        hold = self._hold
        if hold.unwritten is not None and hold.execution.ending == status:
            hold.holder.ended(hold.head, hold.execution, status)
            hold.unwritten.has_ended(Outcome(status, hold.execution.state, failure))
            hold.let_go = True
            return
        await hold.write_down()
        if status == "expired":
            await hold.change_or_drop(changes.closing, status=status)
            hold.holder.ended(hold.head, hold.execution, status)
            await self._pay()
            await self._remove()
            return
        in_journal = hold.execution.ending == status
        if in_journal:
            # It is over once its journal says so; that the row follows, somebody will see to.
            hold.holder.ended(hold.head, hold.execution, status)
            await hold.sleep(0)  # whoever waits for it need not wait for us to make up the row
            await self._pay()
        while not hold.let_go:
            context, cancel = hold.context, hold.head.cancel
            try:
                await hold.change(
                    changes.ended,
                    execution=hold.execution,
                    status=status,
                    failure=None if status == "finished" else failure,
                    # What the journal does not say must be in the row before anybody is told.
                    due_ms=freed_at_ms(hold.head, context)
                    if in_journal or not owes(hold.head)
                    else hold.now_ms(),
                    context=context,
                )
            except ConditionFailed as failed:
                await hold.look_again(failed)
                if not in_journal and hold.head.cancel != cancel:
                    hold.journal = None  # resumed once more, the run is cancelled instead
                    return
            else:
                hold.let_go = True
        if not in_journal:
            hold.holder.ended(hold.head, hold.execution, status)

    async def see_to_ended(self) -> None:
        """Pay what a run owes that has ended, and free what it keeps, if it is time."""
        hold = self._hold
        await self._pay()
        due_ms = freed_at_ms(hold.head, hold.head.context)
        if hold.head.status == "expired" or (due_ms is not None and due_ms <= hold.now_ms()):
            await self._remove()
        else:
            await self._postpone(due_ms)

    async def _pay(self) -> None:
        """Do what the run owes to others, now that it has ended."""
        hold = self._hold
        hands, head = hold.holder.hands, hold.head
        known = None if hold.journal is None else hold.execution
        if owes_family(head):
            await hold.patiently(lambda: pay_family(hold.kernel, hands, head, known))
        if head.draws is not None:
            await hold.patiently(lambda: self._settle_account(known))
        if owes(head):
            await hold.patiently(lambda: pay(hold.kernel, hands, head))

    async def _settle_account(self, known: Execution | None) -> None:
        """Give back what was drawn and not spent; nothing where nobody knows what was spent."""
        hold = self._hold
        if known is None:
            if hold.head.freed or hold.head.status in ("expired", "quarantined"):
                return
            known = (await load_journal(hold.kernel, hold.head)).execution
        await hold.holder.means.accounts.settle(hold.holder.hands, hold.head, known.spent)

    async def _remove(self) -> None:
        """Free what an ended run keeps."""
        hold = self._hold
        await hold.kernel.spools.close(hold.head.key, hold.head.generation)
        await hold.patiently(lambda: remove(hold.kernel, hold.head))
        await hold.change_or_drop(changes.freed)
        hold.let_go = True

    async def _postpone(self, due_ms: int | None) -> None:
        """Leave what is to be done for an ended run for later."""
        await self._hold.change_or_drop(changes.postponed, due_ms=due_ms)
        self._hold.let_go = True


def _stumble_ms(failures: int) -> int:
    """Return for how long a run is put aside after so many failures in a row."""
    return min(_STUMBLE_FIRST_MS * 2**failures, _STUMBLE_MOST_MS)
