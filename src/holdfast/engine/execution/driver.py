"""Drives one run that this worker holds, from the claim until it lets go of it.

The order of the steps is the protocol: a claim is decided in the row, then the journal is read,
then, if the last owner did not let go by itself, a fence is put where it would write next. Only
then is anything performed, and nothing is let go of before every write of ours is decided.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from holdfast.display import log_named
from holdfast.engine.execution.branches import side_by_side
from holdfast.engine.execution.claimed_run import Hold, Overtaken
from holdfast.engine.execution.external_effects import Outside
from holdfast.engine.execution.performer import perform
from holdfast.engine.execution.run_exit import Leaving
from holdfast.engine.execution.visit import Paused, Visit
from holdfast.engine.execution.waits import RETRY
from holdfast.engine.journal.reader import load
from holdfast.engine.journal.writer import Conflict
from holdfast.engine.kernel.kernel import Dropped, Outage
from holdfast.errors import InvalidResult, StoreClosed
from holdfast.graph import Graph
from holdfast.model.decision import Decision, Outcome, Raised, Returned, RunNode, WentStale
from holdfast.model.event import (
    BranchFailed,
    Cancelled,
    Event,
    Expired,
    Failed,
    Failure,
    Fenced,
)
from holdfast.model.execution import Execution, shown_nodes
from holdfast.model.failure import failure_of
from holdfast.model.signals import holds_decision
from holdfast.model.wait import Wait
from holdfast.records.head import ENDED

__all__ = ["Driver"]

_log = log_named("holdfast.worker")

_NEWER_VERSION_MS = 30_000


class Driver:
    """Decides what is done next with one claimed run, and has it done."""

    def __init__(self, hold: Hold, graph: Graph) -> None:
        self.hold = hold
        self.news = asyncio.Event()
        self._holder = hold.holder
        self._graph = graph
        self._outside = Outside(hold)
        self._leaving = Leaving(hold, graph)
        self._task: asyncio.Task[None] | None = None
        # How often the task was cancelled only to leave the node, and is not told so yet.
        self._interruptions = 0
        # One that was only just made is known without being read.
        self._read_before = hold.journal is not None

    async def drive(self) -> None:
        """Go on with the run until it pauses, ends, or is not ours any more."""
        self._task = asyncio.current_task()
        try:
            with suppress(Dropped):
                while not self.hold.let_go:
                    await self._go_on()
        finally:
            self.hold.end()

    async def _go_on(self) -> None:
        try:
            await self._drive()
        except Outage as outage:
            await self._leaving.step_back(outage.error)
        except (Conflict, Overtaken):
            self.hold.journal = None  # what we know is not all there is: read it again
        except asyncio.CancelledError:
            if not self._interruptions or self.hold.undecided or not self.hold.alive():
                raise
        except StoreClosed:
            raise
        except Exception as error:
            await self._stumble(error)
        await self._end_interruptions()

    async def _end_interruptions(self) -> None:
        """Take interruptions back once the node was left, whatever it was left by.

        One that came together with another error may have been lost in it, or may be delivered
        only where the task waits next: either way it must not pass for a cancellation of the run.

        Raises:
            CancelledError: the task was cancelled besides.
        """
        task = self._task
        if task is None or not self._interruptions:
            return
        with suppress(asyncio.CancelledError):
            await self.hold.sleep(0)
        while self._interruptions:
            self._interruptions -= 1
            task.uncancel()
        if task.cancelling():
            raise asyncio.CancelledError

    async def _stumble(self, error: Exception) -> None:
        """Put a run aside that cannot be gone on with, also if its row cannot say all of it."""
        try:
            await self._leaving.stumble(error)
        except StoreClosed:
            raise
        except Exception as refused:
            # An error that comes again each time must not go round for ever: it is counted.
            _log.error("%s: the driver broke", self.hold.head.key.told, exc_info=refused)
            await self._leaving.fall(refused)

    def interrupt(self, *, overtaken: bool) -> None:
        """Leave the node; if the run was overtaken, read its journal again.

        A write is never interrupted: nothing may be let go of before its fate is known.
        """
        if overtaken:
            self.hold.journal = None
        if self.hold.in_node and self._task is not None:
            # Only here: otherwise a later cancellation of the task would pass for an interruption.
            self._interruptions += 1
            self._task.cancel()

    def hear(self) -> None:
        """Hear that a signal came."""
        self.news.set()

    # --- the run ----------------------------------------------------------------------------------

    async def _drive(self) -> None:
        hold = self.hold
        if hold.head.status in ENDED:
            await self._leaving.see_to_ended()
            return
        if hold.head.version > self._graph.version:
            # Left to workers that are up to date: ours may lack the node at which it stands.
            due_ms = hold.now_ms() + _NEWER_VERSION_MS
            failures = hold.head.resume_failures
            await self._leaving.release("newer_version", due_ms=due_ms, failures=failures)
            return
        while not hold.let_go:
            hold.check_alive()
            if hold.journal is None:
                await self._resume()
            elif hold.execution.ending is not None:
                await self._leaving.end(hold.execution.ending, hold.execution.failure)
            elif self._holder.draining:
                await self._leaving.release("draining")
            else:
                await self._advance()

    async def _resume(self) -> None:
        """Read the journal, fence it if need be, and carry out what was asked for meanwhile."""
        hold = self.hold
        if self._read_before:
            await hold.read_row()
        self._read_before = True
        late = await hold.stop_accepting()
        loaded = await hold.patiently(lambda: load(hold.kernel, hold.head))
        if loaded.fence > hold.head.epoch:
            raise Dropped
        hold.take_in(loaded)
        retry = hold.head.retry_owed(hold.execution)
        opens = retry is not None and hold.execution.ending != "cancelled"
        # Only a retry follows an end: where none is owed, no write of a stalled owner fits behind
        # it, and no fence is needed. The row stays torn, so that a later retry writes the fence.
        if hold.head.torn and (opens or hold.execution.ending is None):
            await hold.write((Fenced(hold.now_ms(), hold.head.epoch, hold.worker),))
            # Its fence stands: read again after a conflict, the journal needs no other.
            hold.head = msgspec.structs.replace(hold.head, torn=False)
        if retry is not None and opens:
            await hold.write(
                self._graph.retried(hold.execution, retry.node, retry.id, hold.now_ms())
            )
        if hold.execution.ending is not None:
            return
        if hold.head.cancel is not None:
            await hold.write((Cancelled(hold.now_ms(), hold.head.cancel),))
        elif late and not holds_decision(
            hold.all_waits(), hold.inbox, hold.execution, hold.head.expires_ms
        ):
            await hold.write((Expired(hold.now_ms()),))
        elif self._lost_in_a_row >= self._holder.resumes_max:
            failure = _crash_loop(hold.execution, self._lost_in_a_row)
            await self._leaving.end("quarantined", failure)
            return
        await self._leaving.take_turn()

    @property
    def _lost_in_a_row(self) -> int:
        """How many workers were lost since the run last got on, or was let go of."""
        # The journal knows of the first, the row of the second.
        return min(self.hold.execution.fences, self.hold.head.losses)

    async def _advance(self) -> None:
        """Perform what is outstanding; where all of it waits, pause."""
        hold = self.hold
        hold.parking.stir()
        hold.answered()
        effects = [
            effect
            for effect in self._graph.outstanding(hold.execution)
            if effect.branch not in hold.parking.parked
        ]
        if not effects:
            await self._leaving.pause(hold.parking.waits())
        elif len(effects) == 1 and not hold.parking.parked:
            outcome = await self._performed(effects[0])
            if outcome is not None:
                await self._commit(effects[0].branch, outcome)
        else:
            hold.in_node = True
            try:
                await side_by_side(self, hold, self._graph, effects)
            finally:
                hold.in_node = False

    async def _performed(self, effect: RunNode) -> Outcome | None:
        """Run a branch's node; return what came of it, None where the branch waits."""
        hold = self.hold
        now = hold.now_ms()
        if effect.not_before_ms > now and not await self._await_attempt(effect, now):
            return None
        await hold.relieve()
        hold.check_alive()
        node = self._graph.nodes[effect.node]
        visit = Visit(hold, self._outside, node, effect.branch, self._holder.hold_ms)
        alone, inbox = not hold.in_node, hold.inbox
        hold.in_node = True
        try:
            return await perform(
                self._graph,
                hold.execution,
                visit,
                clock=hold.kernel.clock,
                threads=self._holder.threads,
            )
        except Paused:
            if visit.stale:
                return WentStale()
            hold.parking.park(effect.branch, tuple(visit.pending.values()))
            if hold.inbox is not inbox:  # it knows the inbox as it was when it asked
                hold.parking.stir()
            return None
        finally:
            visit.close()
            if alone:
                hold.in_node = False
                await hold.written()  # what the node left behind

    async def _await_attempt(self, effect: RunNode, now: int) -> bool:
        """Wait for a node's next attempt, here or parked on a timer; return whether it is time."""
        hold = self.hold
        if effect.not_before_ms - now <= self._holder.hold_ms:
            await hold.sleep((effect.not_before_ms - now) / 1000)
            return True
        wait = Wait(
            visit=effect.visit,
            key=RETRY,
            branch=effect.branch,
            since_ms=now,
            until_ms=effect.not_before_ms,
        )
        hold.parking.park(effect.branch, (wait,))
        return False

    async def _commit(
        self, branch: str, outcome: Outcome, *, alone: bool = True
    ) -> Decision | None:
        """Write down what follows; return it unwritten if it ends others that are under way."""
        hold = self.hold
        hold.check_alive()
        decision = self._graph.step(hold.execution, branch, outcome, hold.now_ms())
        if not alone and any(isinstance(event, Failed | BranchFailed) for event in decision.events):
            return decision
        try:
            await hold.write(decision.events, durable=decision.checkpoint)
        except InvalidResult as error:
            strand = hold.execution.strand(branch)
            if not isinstance(outcome, Returned) or strand is None:
                raise
            retry = self._graph.nodes[strand.node].retry
            failed = Raised(failure_of(error), retry.covers(error), outcome.spent_ms)
            return await self._commit(branch, failed, alone=alone)
        return None

    # --- what branches need: see Conductor --------------------------------------------------------

    @property
    def stopping(self) -> bool:
        return self._holder.draining or self.hold.journal is None or not self.hold.alive()

    async def carry_out(self, effect: RunNode) -> Decision | None:
        outcome = await self._performed(effect)
        if outcome is None:
            return None
        return await self.hold.uncut(self._commit(effect.branch, outcome, alone=False))

    async def conclude(self, decision: Decision) -> None:
        await self.hold.uncut(self._conclude(decision.events))

    async def _conclude(self, events: Sequence[Event]) -> None:
        hold = self.hold
        await hold.write(events)
        hold.parking.forget_ended(hold.execution)

    async def look(self) -> None:
        self.news.clear()
        self.hold.check_alive()
        await self.hold.read_inbox()
        await self.hold.relieve()

    async def until_due(self, most_seconds: float) -> None:
        hold = self.hold
        left = (hold.parking.due_ms - hold.now_ms()) / 1000
        await hold.sleep(max(0.001, min(left, most_seconds)))


def _crash_loop(execution: Execution, lost: int) -> Failure:
    return Failure(
        "CrashLoop",
        f"{lost} workers in a row were lost in node {shown_nodes(execution)!r} "
        "before it got anywhere",
    )
