"""Drives one claimed run, from the claim until this worker releases the run.

The order of the steps is the protocol. The row decides the claim. Then the driver reads the
journal. If the last owner did not release the run, the driver writes a fence at the position where
that owner would write next. Only then does it perform effects. It releases the run after the
outcome of each of its own writes is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from holdfast.display import get_logger
from holdfast.engine.execution.branches import run_branches
from holdfast.engine.execution.claimed_run import ClaimedRun
from holdfast.engine.execution.external_effects import ExternalEffects
from holdfast.engine.execution.failure_report import failure_report
from holdfast.engine.execution.journal_session import JournalConflict
from holdfast.engine.execution.live_reports import report_node_started, report_resumed
from holdfast.engine.execution.performer import perform
from holdfast.engine.execution.run_ending import RunEnding
from holdfast.engine.execution.run_exit import RunExit
from holdfast.engine.execution.run_spans import RunSpans, spans_of
from holdfast.engine.execution.visit import Paused, Visit
from holdfast.engine.journal.reader import load_run
from holdfast.engine.journal.writer import PositionTaken
from holdfast.engine.kernel.kernel import ClaimLost, StoreOutage
from holdfast.errors import InvalidResult, StoreClosed
from holdfast.log_context import RUN_SCOPE, RunScope
from holdfast.model.decision import Decision, Outcome, Raised, Returned, WentStale
from holdfast.model.event import (
    Event,
    Failure,
    Fenced,
    Rerouted,
)
from holdfast.model.execution import Execution, nodes_summary
from holdfast.model.failure import failure_of
from holdfast.model.program import Effect, Program
from holdfast.model.signals import continues_past_expiry
from holdfast.model.wait import BackoffWait, Wait
from holdfast.records.head import ENDED, RetryRequest

__all__ = ["Driver"]

_log = get_logger("holdfast.worker")

_NEWER_VERSION_BACKOFF_MS = 30_000


class Driver:
    """Drives one claimed run: reads it, performs its effects, and releases it."""

    def __init__(self, claimed: ClaimedRun, program: Program) -> None:
        self.claimed = claimed
        self.signal_arrived = asyncio.Event()
        self._owner = claimed.owner
        self._program = program
        self._external = ExternalEffects(claimed, program)
        self._ending = RunEnding(claimed, program)
        self._exit = RunExit(claimed, program, self._ending)
        self._task: asyncio.Task[None] | None = None
        # None without telemetry.
        self._spans: RunSpans | None = None
        # Cancellations of the task that only interrupt an effect, and are not taken back yet.
        self._interruptions = 0
        # The row of a run that this process just started need not be read.
        self._read_before = claimed.journal.is_loaded

    async def drive(self) -> None:
        """Drive the run until it pauses or ends, or this worker loses it."""
        self._task = asyncio.current_task()
        head = self.claimed.head
        # It needs no reset: the task has a context of its own.
        RUN_SCOPE.set(
            RunScope(head.key.tenant, head.key.id, head.generation, span=f"segment {head.epoch}")
        )
        self._spans = spans_of(self.claimed)
        if self.claimed.kernel.live.is_followed(self.claimed.head.key):
            report_resumed(self.claimed)
        try:
            with suppress(ClaimLost):
                while not self.claimed.claim.released:
                    await self._drive_guarded()
        finally:
            if self._spans is not None:
                self._spans.end_segment()
            self.claimed.stop()

    async def _drive_guarded(self) -> None:
        try:
            await self._run_steps()
        except StoreOutage as outage:
            await self._exit.release_on_outage(outage.error)
        except (PositionTaken, JournalConflict):
            self.claimed.journal.invalidate()  # another process wrote: read the journal again
        except asyncio.CancelledError:
            if (
                not self._interruptions
                or self.claimed.journal.has_unresolved_write
                or not self.claimed.claim.alive()
            ):
                raise
        except StoreClosed:
            raise
        except Exception as error:
            await self._release_on_error(error)
        await self._clear_interruptions()

    async def _clear_interruptions(self) -> None:
        """Take interruptions back after the effect has stopped.

        An interruption that came together with another error may be lost, or delivered at the next
        await of the task. In both cases it must not look like a cancellation of the task.

        Raises:
            asyncio.CancelledError: the task was also cancelled from outside.
        """
        task = self._task
        if task is None or not self._interruptions:
            return
        with suppress(asyncio.CancelledError):
            await self.claimed.sleep(0)
        while self._interruptions:
            self._interruptions -= 1
            task.uncancel()
        if task.cancelling():
            raise asyncio.CancelledError

    async def _release_on_error(self, error: Exception) -> None:
        """Release a run that cannot continue, also if its row refuses the full report."""
        try:
            await self._exit.release_on_error(error)
        except StoreClosed:
            raise
        except Exception as refused:
            # This release counts the failure, so that a lasting error ends in quarantine.
            _log.error("%s: the driver broke", self.claimed.head.key.log_name, exc_info=refused)
            await self._exit.release_minimally(refused)

    def interrupt(self, *, journal_changed: bool) -> None:
        """Interrupt the running effect; with ``journal_changed``, read the journal again.

        A write is never interrupted: its outcome must be known before the run is released.
        """
        if journal_changed:
            self.claimed.journal.invalidate()
        if self.claimed.claim.in_node and self._task is not None:
            # Only here: elsewhere a later cancellation of the task would look like this one.
            self._interruptions += 1
            self._task.cancel()

    def on_signal(self) -> None:
        """Note that this process delivered a signal to the run."""
        self.signal_arrived.set()

    # --- the run ----------------------------------------------------------------------------------

    async def _run_steps(self) -> None:
        claimed = self.claimed
        if claimed.head.status in ENDED:
            await self._ending.clean_up()
            return
        if claimed.head.version > self._program.version:
            # A newer worker continues it: this version may lack the node.
            due_ms = claimed.now_ms() + _NEWER_VERSION_BACKOFF_MS
            failures = claimed.head.resume_failures
            await self._exit.release("newer_version", due_ms=due_ms, failures=failures)
            return
        while not claimed.claim.released:
            claimed.claim.check_alive()
            if not claimed.journal.is_loaded:
                await self._resume()
            elif claimed.execution.ending is not None:
                await self._ending.end(claimed.execution.ending, claimed.execution.failure)
            elif self._owner.draining:
                await self._exit.release("draining")
            else:
                await self._advance()

    async def _resume(self) -> None:
        """Read the journal, fence it if needed, and carry out a pending retry, cancel or expiry."""
        claimed = self.claimed
        if self._spans is not None:
            self._spans.drop()
        if self._read_before:
            await claimed.row.read()
        self._read_before = True
        late = await claimed.inbox.close_if_expired()
        loaded = await claimed.claim.retry_store_errors(
            lambda: load_run(claimed.kernel, claimed.head)
        )
        if loaded.fence > claimed.head.epoch:
            raise ClaimLost
        claimed.apply_loaded(loaded)
        retry = claimed.head.pending_retry(claimed.execution)
        opens = retry is not None and claimed.execution.ending != "cancelled"
        # Only a retry follows an end. Without one, no write of a stalled owner fits behind the end,
        # and no fence is needed. The row keeps needs_fence, so that a later retry writes the fence.
        if claimed.head.needs_fence and (opens or claimed.execution.ending is None):
            await claimed.journal.write(
                (Fenced(claimed.now_ms(), claimed.head.epoch, claimed.claim.worker_id),)
            )
            # The fence stands: after a conflict the journal needs no other.
            claimed.row.mark_fenced()
            self._log_loss()
        if retry is not None and opens:
            await self._write_retry(retry)
        if claimed.execution.ending is not None:
            return
        if claimed.head.cancel is not None:
            await self._ending.write_cancelled(claimed.head.cancel)
        elif late and not continues_past_expiry(
            claimed.stored_waits(),
            claimed.inbox.signals,
            claimed.execution,
            claimed.head.expires_ms,
        ):
            await self._ending.write_expired()
        elif self._consecutive_losses >= self._owner.resumes_max:
            failure = _crash_loop_failure(claimed.execution, self._consecutive_losses)
            await self._ending.end("quarantined", failure)
            return
        await self._exit.wait_in_session_queue()

    async def _write_retry(self, retry: RetryRequest) -> None:
        events = self._retry_events(retry)
        report = failure_report(self.claimed, self._program, branch="", events=events)
        await self.claimed.journal.write(events)
        if report is not None:  # it cannot continue there
            report.announce()

    def _retry_events(self, retry: RetryRequest) -> tuple[Event, ...]:
        """Return the program's events for a retry; waits ask again unless the request says no."""
        claimed = self.claimed
        events = self._program.retried(claimed.execution, retry.node, retry.id, claimed.now_ms())
        if retry.keep_answers:
            return events
        return tuple(
            msgspec.structs.replace(event, asks_again=True)
            if isinstance(event, Rerouted)
            else event
            for event in events
        )

    def _log_loss(self) -> None:
        """Log at which node the last owner was lost; the quarantine is logged when it comes."""
        lost, lost_max = self._consecutive_losses, self._owner.resumes_max
        if 0 < lost < lost_max:
            _log.warning(
                "%s: its worker was lost at node %r; after %d in a row without progress the run "
                "is quarantined, this is number %d",
                self.claimed.head.key.log_name,
                nodes_summary(self.claimed.execution),
                lost_max,
                lost,
            )

    @property
    def _consecutive_losses(self) -> int:
        """How many workers were lost since the run last made progress or was released."""
        # The journal shows progress, the row shows releases.
        return min(self.claimed.execution.fences, self.claimed.head.losses)

    async def _advance(self) -> None:
        """Perform the outstanding effects; pause the run if all of them wait."""
        claimed = self.claimed
        claimed.waits.mark_changed()
        claimed.pop_answered()
        effects = [
            effect
            for effect in self._program.outstanding(claimed.execution)
            if effect.branch not in claimed.waits.waiting
        ]
        if not effects:
            await self._exit.pause(claimed.waits.pending())
        elif len(effects) == 1 and not claimed.waits.waiting:
            outcome = await self._perform(effects[0])
            if outcome is not None:
                await self._commit(effects[0].branch, outcome)
        else:
            claimed.claim.enter_node()
            try:
                await run_branches(self, claimed, self._program, effects)
            finally:
                claimed.claim.leave_node()

    async def _perform(self, effect: Effect) -> Outcome | None:
        """Perform a branch's effect; return its outcome, or None if the branch waits."""
        claimed = self.claimed
        now = claimed.now_ms()
        if effect.not_before_ms > now and not await self._wait_for_attempt(effect, now):
            return None
        await claimed.inbox.update_size()
        claimed.claim.check_alive()
        visit = Visit(claimed, self._external, effect, self._owner.hold_ms)
        alone, signals = not claimed.claim.in_node, claimed.inbox.signals
        if alone:
            claimed.claim.enter_node()
        if claimed.kernel.live.is_followed(claimed.head.key):
            report_node_started(visit)
        token = RUN_SCOPE.set(visit)
        try:
            if self._spans is None:
                return await perform(effect, self._program, claimed.execution, visit)
            with self._spans.enter_node(visit):
                return await perform(effect, self._program, claimed.execution, visit)
        except Paused:
            if visit.stale:
                return WentStale()
            claimed.set_waiting(effect.branch, visit.pending)
            if claimed.inbox.signals is not signals:  # the effect saw an older inbox
                claimed.waits.mark_changed()
            return None
        finally:
            RUN_SCOPE.reset(token)
            visit.close()
            if alone:
                claimed.claim.leave_node()
                await claimed.journal.wait_for_writes()  # those that the effect began

    async def _wait_for_attempt(self, effect: Effect, now: int) -> bool:
        """Wait in place or pause until an effect may be performed; return whether it is time."""
        claimed = self.claimed
        if effect.not_before_ms - now <= self._owner.hold_ms:
            await claimed.sleep((effect.not_before_ms - now) / 1000)
            return True
        wait = Wait.of(
            BackoffWait(),
            visit=effect.visit,
            branch=effect.branch,
            since_ms=now,
            deadline_ms=effect.not_before_ms,
        )
        claimed.set_waiting(effect.branch, (wait,))
        return False

    async def _commit(
        self, branch: str, outcome: Outcome, *, alone: bool = True
    ) -> Decision | None:
        """Write what the program decides; return it unwritten if it ends other running branches."""
        claimed = self.claimed
        claimed.claim.check_alive()
        decision = self._program.step(claimed.execution, branch, outcome, claimed.now_ms())
        if not alone and decision.ended_strand(branch) is not None:
            return decision
        report = failure_report(claimed, self._program, branch=branch, events=decision.events)
        try:
            await claimed.journal.write(decision.events, durable=decision.checkpoint)
        except InvalidResult as error:
            if not isinstance(outcome, Returned) or claimed.execution.strand(branch) is None:
                raise
            failed = Raised(failure_of(error), error, outcome.spent_ms)
            return await self._commit(branch, failed, alone=alone)
        if report is not None:
            report.announce()
        if self._spans is not None:
            error = outcome.failure.type if isinstance(outcome, Raised) else ""
            self._spans.record_node(branch, error=error)
        return None

    # --- what branches need: see BranchDriver -----------------------------------------------------

    @property
    def stopping(self) -> bool:
        return (
            self._owner.draining
            or not self.claimed.journal.is_loaded
            or not self.claimed.claim.alive()
        )

    async def run_branch(self, effect: Effect) -> Decision | None:
        outcome = await self._perform(effect)
        if outcome is None:
            return None
        return await self.claimed.journal.shield_write(
            self._commit(effect.branch, outcome, alone=False)
        )

    async def write_ending(self, branch: str, decision: Decision) -> None:
        await self.claimed.journal.shield_write(self._write_ending(branch, decision.events))

    async def _write_ending(self, branch: str, events: Sequence[Event]) -> None:
        claimed = self.claimed
        report = failure_report(claimed, self._program, branch=branch, events=events)
        await claimed.journal.write(events)
        claimed.waits.forget_ended(claimed.execution)
        if report is not None:
            report.announce()
        if self._spans is not None:
            failure = claimed.execution.failure
            self._spans.record_node(branch, error="" if failure is None else failure.type)

    async def poll_inbox(self) -> None:
        self.signal_arrived.clear()
        self.claimed.claim.check_alive()
        await self.claimed.inbox.read()
        await self.claimed.inbox.update_size()

    async def sleep_until_due(self, max_seconds: float) -> None:
        claimed = self.claimed
        left = (claimed.waits.due_ms - claimed.now_ms()) / 1000
        await claimed.sleep(max(0.001, min(left, max_seconds)))


def _crash_loop_failure(execution: Execution, lost: int) -> Failure:
    return Failure(
        "CrashLoop",
        f"{lost} workers in a row were lost at node {nodes_summary(execution)!r}, "
        "and the run made no progress",
    )
