"""Drives one run that this worker holds, from the claim until it lets go of it.

The order of the steps is the protocol: a claim is decided in the row, then the journal is read,
then, if the last owner did not let go by itself, a fence is put where it would write next. Only
then is anything performed, and nothing is let go of before every write of ours is decided.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import msgspec

from holdfast.engine.accounts import Accounts
from holdfast.engine.branches import side_by_side
from holdfast.engine.calls import Ambiguous
from holdfast.engine.children import Wanted, ask_child, id_of, pay_family, start_child
from holdfast.engine.debts import owes, owes_family, pay
from holdfast.engine.endings import Outcome as RunOutcome
from holdfast.engine.flusher import Flusher
from holdfast.engine.hands import Hands
from holdfast.engine.kernel import Dropped, Kernel
from holdfast.engine.ledger import Conflict, Journal, Loaded, load, read_inbox
from holdfast.engine.means import Means
from holdfast.engine.parking import RETRY, Parking, limit_ms, reason_of
from holdfast.engine.performer import perform
from holdfast.engine.purse import Purse
from holdfast.engine.quotas import Later, Pass
from holdfast.engine.removal import freed_at_ms, remove
from holdfast.engine.starting import made, with_input
from holdfast.engine.threads import NodeThreads
from holdfast.engine.tokens import TokenWriter
from holdfast.engine.turns import must_wait
from holdfast.engine.unwritten import Stood
from holdfast.engine.visit import Overtaken, Paused, Visit
from holdfast.errors import (
    ConditionFailed,
    InvalidInput,
    InvalidResult,
    StoreUnavailable,
    StoreUnusable,
)
from holdfast.graph import Graph
from holdfast.model.child import childs_signal
from holdfast.model.decision import Decision, Outcome, Raised, Returned, RunNode, WentStale
from holdfast.model.event import (
    BranchFailed,
    CallFinished,
    Cancelled,
    Event,
    Expired,
    Failed,
    Failure,
    Fenced,
    SignalTaken,
    Waiting,
)
from holdfast.model.execution import Execution, folded, shown_nodes
from holdfast.model.failure import failure_of
from holdfast.model.quota import Cost, Quota
from holdfast.model.run import Status
from holdfast.model.signals import Pending, Signal, holds_decision, resolved
from holdfast.model.spending import Spending
from holdfast.model.wait import Wait
from holdfast.records import ambiguity, changes
from holdfast.records.head import ENDED, OPEN, ROW_WAITS_MAX, Head, Parent, head_of
from holdfast.records.head import Context as JournalContext
from holdfast.records.lane import asks_again_ms
from holdfast.storage import Update

__all__ = ["Driver", "Holder"]

T = TypeVar("T")

_STUMBLE_FIRST_MS = 1_000
_STUMBLE_MOST_MS = 300_000
_NEWER_VERSION_MS = 30_000
# What a node may act on: nothing is begun before it is durable.
_PRESSING = (CallFinished, SignalTaken)


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
    flusher: Flusher
    """Sees to it that nothing is held back for long."""
    means: Means
    """What nodes do something to the world with."""

    @property
    def threads(self) -> NodeThreads:
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
        self._read_before = loaded is not None
        self._writing: set[asyncio.Future[Any]] = set()
        self._over = False
        self.purse = Purse(self)
        self._parking = Parking()
        self.news = asyncio.Event()
        self._parenting = asyncio.Lock()
        self._begun = None if loaded is None else loaded.unwritten
        self._unwritten = self._begun
        if loaded is not None:
            self._take_in(loaded)

    @property
    def let_go(self) -> bool:
        """Whether the row says that the run is not ours any more."""
        return self._let_go

    async def drive(self) -> None:
        """Go on with the run until it pauses, ends, or is not ours any more."""
        self._task = asyncio.current_task()
        try:
            with suppress(Dropped):
                while not self._let_go:
                    await self._go_on()
        finally:
            self._over = True

    def is_over(self) -> None:
        """Tell whoever started a run in memory what became of it, if nobody did so before."""
        if self._begun is not None and self._unwritten is None:
            self._begun.is_written()
        elif self._begun is not None:
            self._begun.is_lost()

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

    def hear(self) -> None:
        """Hear that a signal came."""
        self.news.set()

    # --- what a context needs: see Host -----------------------------------------------------------

    def free_signals(self) -> list[Signal]:
        return self._parking.free(self.inbox, self.execution)

    def was_taken(self, name: str) -> bool:
        return self._parking.was_taken(name, self.execution)

    def known_waits(self, branch: str) -> list[Wait]:
        strand = self.execution.strand(branch)
        journalled = () if strand is None else strand.waits
        known = [*self._parking.waited(branch), *self.head.waits, *journalled]
        return [wait for wait in known if wait.branch == branch]

    def now_ms(self) -> int:
        return self._kernel.clock.now_ms()

    @property
    def threads(self) -> NodeThreads:
        return self._holder.threads

    @property
    def means(self) -> Means:
        return self._holder.means

    @property
    def accounts(self) -> Accounts:
        return self.means.accounts

    def text_writer(self, call: str, name: str) -> TokenWriter:
        return TokenWriter(self._kernel, self.head, call=call, name=name)

    async def admit(self, quota: Quota, cost: Cost, told_ms: int | None) -> Pass | Later:
        self._check_alive()
        desk, tenant = self.means.desk, self.head.key.tenant
        admission = await self._kernel.patiently(
            lambda: desk.admit(quota, tenant, cost=cost, told_ms=told_ms), self._alive
        )
        self._check_alive()
        return admission

    async def draw(self, known: Spending, need: Spending) -> Spending:
        self._check_alive()
        key = self.head.key
        draws = self.head.draws or Parent(key.id, self.head.generation)
        accounts = self.accounts
        return await self._kernel.patiently(
            lambda: accounts.draw(key, draws, known, need), self._alive
        )

    async def record(self, *events: Event, durable: bool) -> None:
        self._check_alive()
        if not self._in_node:
            raise Dropped  # the node is over, though something that it began goes on
        journal, pressing = self._journal, any(isinstance(event, _PRESSING) for event in events)
        taken = [event for event in events if isinstance(event, SignalTaken)]
        for event in taken:
            self._parking.take(event.name, event.id)
        if not durable and journal is not None and journal.hold(events, pressing=pressing):
            self._fold(events)
            if journal.presses:
                self._holder.flusher.soon(self)
            return
        try:
            await self._safely(self._write(events))
        except Conflict:
            raise Overtaken from None
        except InvalidResult:
            for event in taken:
                self._parking.give_back(event.name, event.id)
            raise

    def flush_held(self) -> None:
        journal = self._journal
        # What is on its way already needs nobody to send it.
        if not self._over and journal is not None and journal.presses and journal.holds_back:
            journal.begin_flush()

    async def settled(self) -> None:
        self._check_alive()
        journal = self._journal
        if journal is None:
            raise Overtaken
        if journal.presses:
            try:
                await journal.flushed()
            except Conflict:
                self._check_alive()
                raise Overtaken from None
            self._check_alive()

    async def write_down(self) -> None:
        self._check_alive()
        async with self._parenting:
            await self._safely(self._write_down())

    async def list_ambiguous(self, ambiguous: Ambiguous, node: str) -> None:
        write = ambiguity.listed(
            self.head,
            id=ambiguous.id,
            node=node,
            name=ambiguous.name,
            key=ambiguous.key,
            now_ms=self.now_ms(),
            token=self._kernel.ids.new(),
        )
        await self._kernel.settle(self._kernel.lists, write, alive=self._alive)

    async def unlist_ambiguous(self, id: str) -> None:
        write = ambiguity.unlisted(self.head, id)
        await self._kernel.settle(self._kernel.lists, write, alive=self._alive)

    async def _safely(self, write: Coroutine[Any, Any, T]) -> T:
        """Write in a task of its own.

        What cancels a node must not cut a write short, whose fate would then be unknown.
        """
        return await asyncio.shield(self._begin_writing(write))

    def _begin_writing(self, write: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        writing = asyncio.ensure_future(write)
        self._writing.add(writing)
        writing.add_done_callback(self._was_written)
        return writing

    def _was_written(self, writing: asyncio.Future[Any]) -> None:
        self._writing.discard(writing)
        # Nobody may be left to hear of it, where the node was cancelled.
        if not writing.cancelled() and isinstance(writing.exception(), Conflict):
            self._journal = None

    async def read_row(self) -> None:
        if self._unwritten is not None:
            return
        signals = self.head.signals
        await self._read_row()
        # The inbox was not read: what came since is still unseen, and a pause must say so.
        self.head = msgspec.structs.replace(self.head, signals=signals)

    def child_id(self, wanted: Wanted) -> str:
        return id_of(self.head, wanted, self.execution.retried)

    async def start_child(self, wanted: Wanted) -> str:
        self._check_alive()
        draws = await self._kernel.patiently(self.purse.shared, self._alive)

        def started() -> Coroutine[Any, Any, Head]:
            return start_child(
                self._kernel,
                self._holder.hands,
                self.head,
                wanted,
                retried=self.execution.retried,
                draws=draws,
                parenting=self._as_parent,
            )

        try:
            # As one, so that nothing of it follows once the run has ended.
            head = await self._safely(self._kernel.patiently(started, self._alive))
        except Conflict:
            raise Overtaken from None
        return head.key.id

    async def _as_parent(self) -> Head:
        """Return the row once it says that the run has children."""
        async with self._parenting:
            self._check_alive()
            if not self.head.children:
                await self._write_down()
                signals = self.head.signals
                await self._change_or_drop(changes.parenting)
                # The inbox was not read: what came since is still unseen, and a pause must say so.
                self.head = msgspec.structs.replace(self.head, signals=signals)
            return self.head

    async def ask_child(self, id: str) -> bool:
        self._check_alive()
        hands = self._holder.hands
        # Told once, it is not told again: then it must be known for sure whether it goes on.
        closely = self.was_taken(childs_signal(id))
        ended = await self._kernel.patiently(
            lambda: ask_child(self._kernel, hands, self.head, id, closely=closely), self._alive
        )
        if ended:
            await self._read_inbox()
        return ended

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
        if self._read_before:
            await self._read_row()
        self._read_before = True
        late = await self._stop_accepting()
        loaded = await self._kernel.patiently(lambda: load(self._kernel, self.head), self._alive)
        if loaded.fence > self.head.epoch:
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
            await self._write(
                self._graph.retried(self.execution, retry.node, retry.id, self.now_ms())
            )
        if self.execution.ending is not None:
            return
        if self.head.cancel is not None:
            await self._write((Cancelled(self.now_ms(), self.head.cancel),))
        elif late and not holds_decision(
            self._all_waits(), self.inbox, self.execution, self.head.expires_ms
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
        """Perform what is outstanding; where all of it waits, pause."""
        self._parking.stir()
        self.answered()
        effects = [
            effect
            for effect in self._graph.outstanding(self.execution)
            if effect.branch not in self.parked
        ]
        if not effects:
            await self._pause(self._parking.waits())
        elif len(effects) == 1 and not self.parked:
            outcome = await self._performed(effects[0])
            if outcome is not None:
                await self._commit(effects[0].branch, outcome)
        else:
            self._in_node = True
            try:
                await side_by_side(self, self._graph, effects)
            finally:
                self._in_node = False

    async def _performed(self, effect: RunNode) -> Outcome | None:
        """Run a branch's node; return what came of it, None where the branch waits."""
        now = self.now_ms()
        if effect.not_before_ms > now and not await self._await_attempt(effect, now):
            return None
        self._check_alive()
        node = self._graph.nodes[effect.node]
        visit = Visit(self, node, effect.branch, self._holder.hold_ms)
        alone, inbox = not self._in_node, self.inbox
        self._in_node = True
        try:
            return await perform(
                self._graph,
                self.execution,
                visit,
                clock=self._kernel.clock,
                threads=self._holder.threads,
            )
        except Paused:
            if visit.stale:
                return WentStale()
            self._parking.park(effect.branch, tuple(visit.pending.values()))
            if self.inbox is not inbox:  # it knows the inbox as it was when it asked
                self._parking.stir()
            return None
        finally:
            visit.close()
            if alone:
                self._in_node = False
                await self.written()  # what the node left behind

    async def _await_attempt(self, effect: RunNode, now: int) -> bool:
        """Wait for a node's next attempt, here or parked on a timer; return whether it is time."""
        if effect.not_before_ms - now <= self._holder.hold_ms:
            await self.sleep((effect.not_before_ms - now) / 1000)
            return True
        wait = Wait(
            visit=effect.visit,
            key=RETRY,
            branch=effect.branch,
            since_ms=now,
            until_ms=effect.not_before_ms,
        )
        self._parking.park(effect.branch, (wait,))
        return False

    async def _commit(
        self, branch: str, outcome: Outcome, *, alone: bool = True
    ) -> Decision | None:
        """Write down what follows; return it unwritten if it ends others that are under way."""
        self._check_alive()
        decision = self._graph.step(self.execution, branch, outcome, self.now_ms())
        if not alone and any(isinstance(event, Failed | BranchFailed) for event in decision.events):
            return decision
        try:
            await self._write(decision.events, durable=decision.checkpoint)
        except InvalidResult as error:
            strand = self.execution.strand(branch)
            if not isinstance(outcome, Returned) or strand is None:
                raise
            retry = self._graph.nodes[strand.node].retry
            failed = Raised(failure_of(error), retry.covers(error), outcome.spent_ms)
            return await self._commit(branch, failed, alone=alone)
        return None

    # --- what branches need: see Conductor --------------------------------------------------------

    @property
    def parked(self) -> Mapping[str, tuple[Wait, ...]]:
        return self._parking.parked

    @property
    def stopping(self) -> bool:
        return self._holder.draining or self._journal is None or not self._alive()

    async def carry_out(self, effect: RunNode) -> Decision | None:
        outcome = await self._performed(effect)
        if outcome is None:
            return None
        return await self._safely(self._commit(effect.branch, outcome, alone=False))

    async def conclude(self, decision: Decision) -> None:
        await self._safely(self._conclude(decision.events))

    async def _conclude(self, events: Sequence[Event]) -> None:
        await self._write(events)
        self._parking.forget_ended(self.execution)

    async def written(self) -> None:
        if self._writing:
            await asyncio.wait(self._writing)

    async def look(self) -> None:
        self.news.clear()
        self._check_alive()
        await self._read_inbox()

    def answered(self) -> list[str]:
        return self._parking.answered(self.inbox, self.execution, self.now_ms())

    async def until_due(self, most_seconds: float) -> None:
        left = (self._parking.due_ms - self.now_ms()) / 1000
        await self.sleep(max(0.001, min(left, most_seconds)))

    async def _write(self, events: Sequence[Event], *, durable: bool = True) -> None:
        journal = self._journal
        if journal is None:  # interrupted: somebody else wrote into it
            raise Conflict
        if durable or not journal.hold(events):
            await journal.append(events)
        self._fold(events)

    def _fold(self, events: Sequence[Event]) -> None:
        before, self.execution = self.execution, folded(self.execution, events)
        if self.execution.spent != before.spent:
            self._parking.relent()

    # --- letting go -------------------------------------------------------------------------------

    async def _pause(self, waits: tuple[Wait, ...]) -> None:
        journal = self._journal
        if journal is None:
            return
        await self._write_down()
        await journal.flush()
        if await self._stop_accepting():
            await self._read_inbox()
        shown = await self._row_waits(waits)
        while True:
            now, signals = self.now_ms(), self.free_signals()
            answers = [resolved(wait, signals, (), now) for wait in waits]
            limits = [answer.due_ms for answer in answers if isinstance(answer, Pending)]
            if len(limits) < len(answers):
                return  # an answer is there by now: the node runs again, and finds it
            if self.head.status == "closing":
                await self._write((Expired(now),))
                return
            earliest = min((limit for limit in limits if limit is not None), default=None)
            try:
                await self._change(
                    changes.paused,
                    execution=self.execution,
                    waits=shown,
                    signals=self.head.signals,
                    reason=reason_of(waits),
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
            if self._parking.ask_again():
                return

    async def _row_waits(self, waits: tuple[Wait, ...]) -> tuple[Wait, ...]:
        """Return the waits that the row shows; where it has no room for all, write them down."""
        if len(waits) <= ROW_WAITS_MAX:
            return waits
        unwritten = tuple(wait for wait in waits if wait not in self._journalled(wait.branch))
        if unwritten:
            await self._write((Waiting(self.now_ms(), unwritten),))
        # Whoever sends a signal looks in the row whether any is waited for; whoever extends the
        # run, when it is due.
        soonest = sorted(waits, key=limit_ms)
        heard = next((wait for wait in soonest if wait.signal is not None), None)
        return tuple(sorted(soonest, key=lambda wait: wait is not heard)[:ROW_WAITS_MAX])

    def _journalled(self, branch: str) -> tuple[Wait, ...]:
        strand = self.execution.strand(branch)
        return () if strand is None else strand.waits

    async def _stop_accepting(self) -> bool:
        """Take no signal any more if the run is past its expiry; return whether it is.

        Whoever reads the inbox after this misses none.
        """
        while self.now_ms() >= self.head.expires_ms:
            if self.head.status not in OPEN:
                return True
            try:
                await self._change(changes.closing, status="closing")
            except ConditionFailed as failed:
                await self._look_again(failed)  # it may have been extended
        return False

    async def _look_again(self, failed: ConditionFailed) -> None:
        """Take in what the row says by now, if the run is still ours, and read the inbox."""
        self._take_row(failed.item)
        await self._read_inbox()

    async def _read_row(self) -> None:
        """Read the row again: what is new in the journal may be so there, too."""
        key = self.head.key.head
        self._take_row(
            await self._kernel.patiently(lambda: self._kernel.heads.get(key), self._alive)
        )

    def _take_row(self, item: Mapping[str, Any] | None) -> None:
        standing = None if item is None else head_of(item)
        if (
            standing is None
            or standing.generation != self.head.generation
            or standing.epoch != self.head.epoch
        ):
            raise Dropped
        self.head = msgspec.structs.replace(
            standing,
            torn=self.head.torn,
            # When its waits began we may know better: the row hears of it at the next pause.
            waits=self.head.waits,
            # What was read may be older than what another branch wrote since.
            children=standing.children or self.head.children,
        )

    async def _read_inbox(self) -> None:
        self.inbox = await self._kernel.patiently(
            lambda: read_inbox(self._kernel, self.head), self._alive
        )
        self._parking.stir()

    async def _release(self, reason: str, *, due_ms: int | None = None, failures: int = 0) -> None:
        await self._write_down()
        if self._journal is not None:
            await self._journal.flush()
            # When its waits began is remembered, or they would begin anew.
            if self._parking.has_waited:
                shown = await self._row_waits(self._parking.still_waited(self.execution))
                self.head = msgspec.structs.replace(self.head, waits=shown)
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

    async def _write_down(self) -> None:
        """Make a run durable that was only in memory so far: its journal first, then its row."""
        unwritten, journal = self._unwritten, self._journal
        if unwritten is None or journal is None:
            return
        try:
            # Its generation is as old as what it names, so that nobody sweeps that away.
            generation = self._kernel.ids.new()
            head = msgspec.structs.replace(self.head, generation=generation)
            head = await with_input(self._kernel, head, unwritten.packed)
            await journal.write_down(head, self.execution)
            context = msgspec.structs.replace(
                journal.context,
                size=journal.context.size + head.context.size,
                blobs=journal.context.blobs or head.context.blobs,
            )
            head = msgspec.structs.replace(head, context=context)
            # Until it is known: done anew, it would be another generation's.
            self.head = await made(self._kernel, head, alive=self._alive)
        except (Stood, InvalidInput, InvalidResult) as error:
            unwritten.is_refused(error)
            raise Dropped from None
        self._unwritten = None

    async def _end(self, status: Status, failure: Failure | None) -> None:
        if self._unwritten is not None and self.execution.ending == status:
            self._holder.ended(self.head, self.execution, status)
            self._unwritten.has_ended(RunOutcome(status, self.execution.state, failure))
            self._let_go = True
            return
        await self._write_down()
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
            await self.sleep(0)  # whoever waits for it need not wait for us to make up the row
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
        hands, head = self._holder.hands, self.head
        known = None if self._journal is None else self.execution
        if owes_family(head):
            await self._kernel.patiently(
                lambda: pay_family(self._kernel, hands, head, known), self._alive
            )
        if head.draws is not None:
            await self._kernel.patiently(lambda: self._settle_account(known), self._alive)
        if owes(head):
            await self._kernel.patiently(lambda: pay(self._kernel, hands, head), self._alive)

    async def _settle_account(self, known: Execution | None) -> None:
        """Give back what was drawn and not spent; nothing where nobody knows what was spent."""
        if known is None:
            if self.head.freed or self.head.status in ("expired", "quarantined"):
                return
            known = (await load(self._kernel, self.head)).execution
        await self.accounts.settle(self._holder.hands, self.head, known.spent)

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
        while True:
            ttl, expires_ms = self.head.ttl, self.head.expires_ms
            try:
                await self._change(change, **values)
                return
            except ConditionFailed as failed:
                await self._look_again(failed)
                if (self.head.ttl, self.head.expires_ms) == (ttl, expires_ms):
                    raise Dropped from None  # it was not extended: what else is against it stays

    def _journal_context(self) -> JournalContext:
        return self.head.context if self._journal is None else self._journal.context

    def _retries_left(self) -> int:
        """Return how often the node may still fail; of several, the one that may least often."""
        left = [
            node.retry.attempts - 1 - strand.failed_attempts
            for _, strand in self.execution.open()
            if (node := self._graph.nodes.get(strand.node)) is not None
        ]
        return min(left, default=0)

    def _all_waits(self) -> list[Wait]:
        journalled = [wait for _, strand in self.execution.open() for wait in strand.waits]
        return [*self.head.waits, *journalled]

    def _take_in(self, loaded: Loaded) -> None:
        self.execution = loaded.execution
        self.inbox = loaded.inbox
        self._parking.begin(self.execution, self._all_waits())
        self.answered()
        self._journal = Journal(
            self._kernel,
            self.head,
            loaded,
            alive=self._alive,
            apart=self._begin_writing,
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
        wanted = {name: value for name, value in write.set.items() if name != "updated_ms"}
        return wanted.items() <= standing.items()
    return standing.get("torn", False) == head.torn


def _as_far_as_known(head: Head) -> Execution:
    return Execution(
        seed=head.seed,
        state={},
        node=head.node,
        nodes_run=head.nodes_run,
        spent_ms=head.spent_ms,
    )


def _crash_loop(execution: Execution) -> Failure:
    return Failure(
        "CrashLoop",
        f"{execution.fences} workers in a row were lost in node {shown_nodes(execution)!r} "
        "before it got anywhere",
    )
