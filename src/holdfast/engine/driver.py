"""Drives one run that this worker holds, from the claim until it lets go of it.

The order of the steps is the protocol: a claim is decided in the row, then the journal is read,
then, if the last owner did not let go by itself, a fence is put where it would write next. Only
then is anything performed, and nothing is let go of before every write of ours is decided.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from holdfast.engine.context import Context, Overtaken, Paused
from holdfast.engine.debts import owes, pay
from holdfast.engine.hands import Hands
from holdfast.engine.kernel import Dropped, Kernel
from holdfast.engine.ledger import Conflict, Journal, Loaded, load, read_inbox
from holdfast.engine.performer import perform
from holdfast.engine.removal import freed_at_ms, remove
from holdfast.engine.turns import must_wait
from holdfast.errors import ConditionFailed, InvalidResult, StoreUnavailable, StoreUnusable
from holdfast.graph import Graph
from holdfast.model.decision import Outcome, Raised, Returned, RunNode, WentStale
from holdfast.model.event import Cancelled, Event, Expired, Failure, Fenced, Rerouted
from holdfast.model.execution import Execution, folded
from holdfast.model.failure import failure_of
from holdfast.model.run import Status
from holdfast.model.signals import Pending, Signal, Wait, holds_decision, resolved
from holdfast.records import changes
from holdfast.records.head import ENDED, Head, head_of
from holdfast.records.head import Context as JournalContext
from holdfast.records.lane import asks_again_ms
from holdfast.storage import Update

__all__ = ["Driver", "Holder"]

RETRY = "retry"
"""The key of the wait for a node's next attempt."""
_STUMBLE_FIRST_MS = 1_000
_STUMBLE_MOST_MS = 300_000
_NEWER_VERSION_MS = 30_000


class Holder(Protocol):
    """What a driver needs of the worker that holds the run."""

    id: str
    draining: bool
    hold_ms: int
    """Up to this a sleep is waited for in place."""
    resumes_max: int
    """After so many failed resumes in a row a run is quarantined."""
    hands: Hands
    """All workers of this process."""

    @property
    def threads(self) -> Executor:
        """Where nodes that are plain functions run."""
        ...

    def alive(self) -> bool:
        """Return whether the worker's lease still holds."""
        ...

    def paused(self, head: Head) -> None:
        """Hear that a run waits, and how its row looks."""
        ...

    def ended(self, head: Head, execution: Execution, status: Status) -> None:
        """Hear that a run has ended."""
        ...


class Driver:
    """One claimed run."""

    def __init__(
        self,
        kernel: Kernel,
        holder: Holder,
        graph: Graph,
        head: Head,
        loaded: Loaded | None = None,
    ) -> None:
        """Take a run over; ``loaded`` is what is known of one that was only just made."""
        self.head = head
        self.execution = _as_far_as_known(head)
        self.inbox: list[Signal] = []
        self._kernel = kernel
        self._holder = holder
        # As it was when the run was claimed: a worker that takes a new name holds nothing of it.
        self._worker = holder.id
        self._graph = graph
        self._journal: Journal | None = None
        self._task: asyncio.Task[None] | None = None
        self._in_node = False
        self._interrupted = False
        self._let_go = False
        self._writing: set[asyncio.Future[None]] = set()
        if loaded is not None:
            self._take_in(loaded)

    @property
    def let_go(self) -> bool:
        """Whether the row says that the run is not ours any more."""
        return self._let_go

    async def drive(self) -> None:
        """Go on with the run until it pauses, ends, or is not ours any more."""
        self._task = asyncio.current_task()
        with suppress(Dropped):
            while not self._let_go:
                await self._go_on()

    async def _go_on(self) -> None:
        try:
            await self._drive()
        except (Conflict, Overtaken):
            self._journal = None  # what we know is not all there is: read it again
        except asyncio.CancelledError:
            undecided = self._writing or (self._journal is not None and self._journal.undecided)
            if not self._interrupted or undecided or not self._alive():
                raise
            assert self._task is not None
            self._task.uncancel()
        except Exception as error:
            await self._stumbled(error)
        self._interrupted = False

    def interrupt(self, *, overtaken: bool) -> None:
        """Leave the node; if the run was overtaken, read its journal again.

        A write is never interrupted: nothing may be let go of before its fate is known.
        """
        if overtaken:
            self._journal = None
        self._interrupted = True
        if self._in_node and self._task is not None:
            self._task.cancel()

    # --- what a context needs: see Host -----------------------------------------------------------

    def now_ms(self) -> int:
        return self._kernel.clock.now_ms()

    async def record(self, event: Event, *, durable: bool) -> None:
        self._check_alive()
        # In a task of its own: a timeout that cancels the node must not cut a write short, whose
        # fate would then be unknown.
        writing = asyncio.ensure_future(self._write((event,), durable=durable))
        self._writing.add(writing)
        writing.add_done_callback(self._written)
        try:
            await asyncio.shield(writing)
        except Conflict:
            raise Overtaken from None

    def _written(self, writing: asyncio.Future[None]) -> None:
        self._writing.discard(writing)
        # Nobody may be left to hear of it, where the node was cancelled.
        if not writing.cancelled() and isinstance(writing.exception(), Conflict):
            self._journal = None

    async def sleep(self, seconds: float) -> None:
        await self._kernel.clock.sleep(seconds)

    # --- the run ----------------------------------------------------------------------------------

    async def _drive(self) -> None:
        if self.head.status in ENDED:
            await self._see_to_ended()
            return
        if self.head.version > self._graph.version:
            # Left to workers that are up to date: ours may lack the node at which it stands.
            due_ms = self.now_ms() + _NEWER_VERSION_MS
            failures = self.head.resume_failures
            await self._release("newer_version", due_ms=due_ms, failures=failures)
            return
        while not self._let_go:
            self._check_alive()
            if self._journal is None:
                await self._resume()
            elif self.execution.ending is not None:
                await self._end(self.execution.ending, self.execution.failure)
            elif self._holder.draining:
                await self._release("draining")
            else:
                await self._advance()

    async def _resume(self) -> None:
        """Read the journal, fence it if need be, and carry out what was asked for meanwhile."""
        late = self.now_ms() >= self.head.expires_ms
        if late:
            await self._stop_accepting()
        loaded = await self._kernel.patiently(
            lambda: load(self._kernel, self.head, keep_events=True), self._alive
        )
        if any(isinstance(e, Fenced) and e.epoch > self.head.epoch for e in loaded.events):
            raise Dropped
        self._take_in(loaded)
        if self.head.torn:
            await self._write((Fenced(self.now_ms(), self.head.epoch, self._worker),))
            # Its fence stands: read again after a conflict, the journal needs no other.
            self.head = msgspec.structs.replace(self.head, torn=False)
            if self.execution.fences >= self._holder.resumes_max:
                await self._end("quarantined", _crash_loop(self.execution))
                return
        retry = self.head.retry_owed(self.execution)
        if retry is not None and self.execution.ending != "cancelled":
            await self._write((Rerouted(self.now_ms(), retry.node, "retried", retry.id),))
        if self.execution.ending is not None:
            return
        if self.head.cancel is not None:
            await self._write((Cancelled(self.now_ms(), self.head.cancel),))
        elif late and not holds_decision(
            self.head.waits, self.inbox, self.execution, self.head.expires_ms
        ):
            await self._write((Expired(self.now_ms()),))
        await self._take_turn()

    async def _take_turn(self) -> None:
        """Go back into the queue of the run's session, unless it stands in front there."""
        while self.execution.ending is None and await self._kernel.patiently(
            lambda: must_wait(self._kernel, self._holder.hands, self.head, self.execution),
            self._alive,
        ):
            if self.head.status == "closing":
                await self._write((Expired(self.now_ms()),))
                return
            try:
                await self._change(
                    changes.paused,
                    execution=self.execution,
                    waits=(),
                    signals=self.head.signals,
                    reason="queued",
                    due_ms=asks_again_ms(self.head, self.now_ms()),
                    retries_left=self._retries_left(),
                    context=self._journal_context(),
                )
            except ConditionFailed as failed:
                await self._look_again(failed)  # perhaps the one before it has left
                if self.head.cancel is not None:
                    await self._write((Cancelled(self.now_ms(), self.head.cancel),))
            else:
                self._let_go = True
                return

    async def _advance(self) -> None:
        effect = self._graph.outstanding(self.execution)[0]
        now = self.now_ms()
        if effect.not_before_ms > now and not await self._await_attempt(effect, now):
            return
        context = Context(self, self._graph.nodes[effect.node], self._holder.hold_ms)
        outcome: Outcome | None = None
        self._in_node = True
        try:
            outcome = await perform(
                self._graph,
                self.execution,
                context,
                clock=self._kernel.clock,
                threads=self._holder.threads,
            )
        except Paused:
            if context.stale:
                outcome = WentStale()
        finally:
            self._in_node = False
            context.close()
            if self._writing:  # what the node left behind
                await asyncio.wait(self._writing)
        self._check_alive()
        if outcome is None:
            await self._pause(tuple(context.pending.values()))
        else:
            await self._commit(outcome)

    async def _await_attempt(self, effect: RunNode, now: int) -> bool:
        """Wait for a node's next attempt, here or parked on a timer; return whether it is time."""
        if effect.not_before_ms - now <= self._holder.hold_ms:
            await self.sleep((effect.not_before_ms - now) / 1000)
            return True
        wait = Wait(visit=effect.visit, key=RETRY, since_ms=now, until_ms=effect.not_before_ms)
        await self._pause((wait,))
        return False

    async def _commit(self, outcome: Outcome) -> None:
        decision = self._graph.step(self.execution, outcome, self.now_ms())
        try:
            await self._write(decision.events, durable=decision.checkpoint)
        except InvalidResult as error:
            if not isinstance(outcome, Returned):
                raise
            retry = self._graph.nodes[self.execution.node].retry
            failed = Raised(failure_of(error), retry.covers(error), outcome.spent_ms)
            await self._commit(failed)

    async def _write(self, events: Sequence[Event], *, durable: bool = True) -> None:
        journal = self._journal
        if journal is None:  # interrupted: somebody else wrote into it
            raise Conflict
        if durable:
            await journal.append(events)
        else:
            journal.hold(events)
        self.execution = folded(self.execution, events)

    # --- letting go -------------------------------------------------------------------------------

    async def _pause(self, waits: tuple[Wait, ...]) -> None:
        journal = self._journal
        if journal is None:
            return
        await journal.flush()
        if self.now_ms() >= self.head.expires_ms:
            await self._stop_accepting()
            await self._read_inbox()
        while True:
            now = self.now_ms()
            answers = [resolved(wait, self.inbox, self.execution.taken, now) for wait in waits]
            limits = [answer.due_ms for answer in answers if isinstance(answer, Pending)]
            if len(limits) < len(answers):
                # An answer is there by now: the node runs again, and finds it. When the waits began
                # is remembered, or a short one would begin anew each time.
                self.head = msgspec.structs.replace(self.head, waits=waits)
                return
            if self.head.status == "closing":
                await self._write((Expired(now),))
                return
            earliest = min((limit for limit in limits if limit is not None), default=None)
            try:
                await self._change(
                    changes.paused,
                    execution=self.execution,
                    waits=waits,
                    signals=self.head.signals,
                    reason=_reason(waits),
                    due_ms=self.head.expires_ms if earliest is None else earliest,
                    retries_left=self._retries_left(),
                    context=journal.context,
                )
            except ConditionFailed as failed:
                await self._look_again(failed)  # something came that we have not seen
            else:
                self._let_go = True
                self._holder.paused(self.head)
                return
            if self.head.cancel is not None:
                await self._write((Cancelled(self.now_ms(), self.head.cancel),))
                return

    async def _stop_accepting(self) -> None:
        """Take no signal any more; whoever reads the inbox after this misses none."""
        if self.head.status != "closing":
            await self._change_or_drop(changes.closing, status="closing")

    async def _look_again(self, failed: ConditionFailed) -> None:
        """Take in what the row says by now, if the run is still ours, and read the inbox."""
        standing = None if failed.item is None else head_of(failed.item)
        if (
            standing is None
            or standing.generation != self.head.generation
            or standing.epoch != self.head.epoch
        ):
            raise Dropped
        self.head = msgspec.structs.replace(standing, torn=self.head.torn)
        await self._read_inbox()

    async def _read_inbox(self) -> None:
        self.inbox = await self._kernel.patiently(
            lambda: read_inbox(self._kernel, self.head), self._alive
        )

    async def _release(self, reason: str, *, due_ms: int | None = None, failures: int = 0) -> None:
        if self._journal is not None:
            await self._journal.flush()
        await self._change_or_drop(
            changes.released,
            execution=self.execution,
            due_ms=self.now_ms() if due_ms is None else due_ms,
            reason=reason,
            retries_left=self._retries_left(),
            context=self._journal_context(),
            resume_failures=failures,
        )
        self._let_go = True

    async def _end(self, status: Status, failure: Failure | None) -> None:
        if status == "expired":
            await self._change_or_drop(changes.closing, status=status)
            self._holder.ended(self.head, self.execution, status)
            await self._pay()
            await self._remove()
            return
        in_journal = self.execution.ending == status
        if in_journal:
            # It is over once its journal says so; that the row follows, somebody will see to.
            self._holder.ended(self.head, self.execution, status)
            await self._pay()
        while not self._let_go:
            context = self._journal_context()
            try:
                await self._change(
                    changes.ended,
                    execution=self.execution,
                    status=status,
                    failure=None if status == "finished" else failure,
                    # What the journal does not say must be in the row before anybody is told.
                    due_ms=freed_at_ms(self.head, context)
                    if in_journal or not owes(self.head)
                    else self.now_ms(),
                    context=context,
                )
            except ConditionFailed as failed:
                await self._look_again(failed)
            else:
                self._let_go = True
        if not in_journal:
            self._holder.ended(self.head, self.execution, status)

    async def _pay(self) -> None:
        """Do what the run owes to others, now that it has ended."""
        if owes(self.head):
            await self._kernel.patiently(
                lambda: pay(self._kernel, self._holder.hands, self.head), self._alive
            )

    async def _see_to_ended(self) -> None:
        """Pay what a run owes that has ended, and free what it keeps, if it is time."""
        await self._pay()
        due_ms = freed_at_ms(self.head, self.head.context)
        if self.head.status == "expired" or (due_ms is not None and due_ms <= self.now_ms()):
            await self._remove()
        else:
            await self._change_or_drop(changes.postponed, due_ms=due_ms)
            self._let_go = True

    async def _remove(self) -> None:
        """Free what an ended run keeps."""
        await self._kernel.patiently(lambda: remove(self._kernel, self.head), self._alive)
        await self._change_or_drop(changes.freed)
        self._let_go = True

    async def _stumbled(self, error: Exception) -> None:
        """Put a run aside for a while that cannot be gone on with; at last, for somebody to see."""
        # What is wrong with the store is not the run's fault.
        faultless = isinstance(error, StoreUnusable | StoreUnavailable)
        failures = self.head.resume_failures + (not faultless)
        if self.head.status in ENDED:
            await self._change_or_drop(changes.postponed, due_ms=self.now_ms() + _STUMBLE_MOST_MS)
            self._let_go = True
        elif failures >= self._holder.resumes_max and not faultless:
            await self._end("quarantined", failure_of(error))
        else:
            self._journal = None
            pause_ms = min(_STUMBLE_FIRST_MS * 2 ** max(failures, 1), _STUMBLE_MOST_MS)
            due_ms = self.now_ms() + pause_ms
            await self._release("resume_failed", due_ms=due_ms, failures=failures)

    # --- the row ----------------------------------------------------------------------------------

    async def _change(self, change: Callable[..., Update], **values: Any) -> None:
        """Change the row of the run that we hold.

        Raises:
            ConditionFailed: it was not changed.
            Dropped: our lease ended before we knew.
        """
        head = self.head
        write = change(head, now_ms=self.now_ms(), token=self._kernel.ids.new(), **values)
        item = await self._kernel.settle(
            self._kernel.heads,
            write,
            alive=self._alive,
            stands=lambda standing: _stands(write, head, standing),
        )
        self.head = msgspec.structs.replace(head_of(item), torn=head.torn)

    async def _change_or_drop(self, change: Callable[..., Update], **values: Any) -> None:
        try:
            await self._change(change, **values)
        except ConditionFailed:
            raise Dropped from None

    def _journal_context(self) -> JournalContext:
        return self.head.context if self._journal is None else self._journal.context

    def _retries_left(self) -> int:
        node = self._graph.nodes.get(self.execution.node)
        return 0 if node is None else node.retry.attempts - 1 - self.execution.failed_attempts

    def _take_in(self, loaded: Loaded) -> None:
        self.execution = loaded.execution
        self.inbox = loaded.inbox
        self._journal = Journal(
            self._kernel,
            self.head,
            loaded.context,
            alive=self._alive,
        )

    def _alive(self) -> bool:
        return self._holder.id == self._worker and self._holder.alive()

    def _check_alive(self) -> None:
        if not self._alive():
            raise Dropped


def _stands(write: Update, head: Head, standing: dict[str, Any]) -> bool:
    """Return whether our write was carried out, though somebody changed the row since."""
    epoch = write.set.get("epoch", head.epoch)
    if standing.get("generation") != head.generation or standing.get("epoch") != epoch:
        return False
    if epoch == head.epoch:
        return standing.get("status") == write.set["status"]
    return standing.get("torn", False) == head.torn


def _reason(waits: Sequence[Wait]) -> str:
    """Return why a run pauses, in a word."""
    if any(wait.key == RETRY for wait in waits):
        return "retry"
    return "signal" if any(wait.signal is not None for wait in waits) else "timer"


def _as_far_as_known(head: Head) -> Execution:
    return Execution(
        seed=head.generation,
        state={},
        node=head.node,
        nodes_run=head.nodes_run,
        spent_ms=head.spent_ms,
    )


def _crash_loop(execution: Execution) -> Failure:
    return Failure(
        "CrashLoop",
        f"{execution.fences} workers in a row were lost in node {execution.node!r} "
        "before it got anywhere",
    )
