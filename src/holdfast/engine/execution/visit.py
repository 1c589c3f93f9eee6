"""One visit of a node: what it waits for, and what is written of it while it runs.

A wait that has no answer yet ends the node with `Paused`: what it waits for becomes durable, and
the coroutine is gone. When the answer is there the node runs again from its top, and waits that
were answered before answer at once, from the journal.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, NoReturn, TypeVar

import msgspec

from holdfast.engine.effects.call_host import Ambiguous
from holdfast.engine.effects.call_ids import CallIds
from holdfast.engine.effects.quotas import Permit, PermitDelay, PermitUnavailable
from holdfast.engine.effects.resources import Resources
from holdfast.engine.execution.claimed_run import ClaimedRun, JournalConflict
from holdfast.engine.execution.external_effects import ExternalEffects
from holdfast.engine.execution.node_threads import NodeThreads
from holdfast.engine.history.text_stream import TokenWriter
from holdfast.engine.journal.endings import RunOutcome
from holdfast.engine.kernel.kernel import ClaimLost
from holdfast.engine.runs.children import ChildRequest
from holdfast.engine.runs.starting import PreparedInput, prepare_input
from holdfast.errors import NotPausable, ResultTaken, ResultTooLarge, WaitBeyondExpiry
from holdfast.graph import Graph, Node
from holdfast.graph.values import TooLarge, durable
from holdfast.model.call import Call, resolution_signal
from holdfast.model.child import child_signal
from holdfast.model.event import ChildStarted, Event, Failure, SignalTaken, TimerFired
from holdfast.model.execution import Strand
from holdfast.model.payload_limits import PayloadLimits
from holdfast.model.quota import Cost, Quota
from holdfast.model.signals import Pending, Signal, TakeSignal, TimeOut, WaitStale, resolved_wait
from holdfast.model.spending import Spending
from holdfast.model.wait import Wait, recheck_key, truncated_about
from holdfast.records.head import Head
from holdfast.records.keys import RunKey

__all__ = ["Paused", "Visit", "VisitClosed"]

T = TypeVar("T")

WAITS_MAX = 1_000
"""How many things a node may wait for at once."""


class Paused(BaseException):
    """The node waits, and its run is to be let go of.

    A BaseException, so that no ``except Exception`` in a node can swallow it.
    """


class VisitClosed(ClaimLost):
    """The node is over of which somebody asked something; that may be another one, by mistake."""

    def __init__(self, visit: Visit) -> None:
        super().__init__(
            f"the ctx of node {visit.node!r} was used when that node was over; "
            "what a node asks for, it asks of the ctx that it is given"
        )
        self.visit = visit


class Visit:
    """The visit of a node, in one of its attempts."""

    def __init__(
        self, claimed: ClaimedRun, external: ExternalEffects, node: Node, branch: str, hold_ms: int
    ) -> None:
        self.claimed = claimed
        self.external = external
        self.node = node.name
        self.branch = branch
        self.visit = self._strand_of(claimed, branch).visit
        self.call_ids = CallIds()
        self.hold_ms = hold_ms
        """Up to this a wait for a time is waited for in place."""
        self.pending: dict[str, Wait] = {}
        """What the node waits for and has no answer to yet."""
        self.stale = False
        """Whether one of its waits took too long."""
        self.refusal: NotPausable | None = None
        """Why it cannot be let to wait."""
        self._node_spec = node
        self._began_ms = claimed.now_ms()
        self._wait_counts: Counter[str] = Counter()
        self._child_count = 0
        self._child_locks: dict[str, asyncio.Lock] = {}
        self._closed = False
        self._lost_error: BaseException | None = None

    def raise_if_paused(self) -> None:
        """See to it that a pause stays one, even if the node swallowed it.

        Raises:
            Paused, Dropped, NotPausable: as one of the node's waits did before.
        """
        if self._lost_error is not None:
            raise self._lost_error
        if self.refusal is not None:
            raise self.refusal
        if self.stale or self.pending:
            raise Paused

    def close(self) -> None:
        """Let nothing more be asked of it: the node is over, though its thread may go on."""
        self._closed = True

    def check_open(self) -> None:
        """Check that the node is not over.

        Raises:
            Over: it is.
        """
        if self._closed:
            raise VisitClosed(self)

    @property
    def strand(self) -> Strand:
        """The branch as it stands, or the run itself."""
        return self._strand_of(self.claimed, self.branch)

    @staticmethod
    def _strand_of(claimed: ClaimedRun, branch: str) -> Strand:
        strand = claimed.execution.strand(branch)
        if strand is None:  # given up: another branch failed
            raise ClaimLost
        return strand

    @property
    def key(self) -> str:
        """What names this visit of a node, and no other."""
        where = f"{self.branch}." if self.branch else ""
        return f"{self.claimed.head.seed}.{where}{self.visit}"

    @property
    def run(self) -> RunKey:
        """The run in which the node is."""
        return self.claimed.head.key

    @property
    def resources(self) -> Resources:
        """What nodes do something to the world with."""
        return self.external.resources

    def text_writer(self, call: str, name: str) -> TokenWriter:
        """Return what takes in the text of an answer as it comes."""
        # Other visits, and other branches, name calls of their own alike.
        where = f"{self.branch}." if self.branch else ""
        return self.external.text_writer(f"{where}{self.visit}.{call}", name)

    def now_ms(self) -> int:
        """Return the time."""
        return self.claimed.now_ms()

    @property
    def elapsed_ms(self) -> int:
        """For how long this attempt has been going on."""
        return self.now_ms() - self._began_ms

    @property
    def may_wait(self) -> bool:
        """Whether its run may be let go of meanwhile."""
        return self._node_spec.pausable != "no"

    async def record(
        self, *events: Event, durable: bool, on_resolved: Callable[[], None] | None = None
    ) -> None:
        """Write down what happened, and fold it; see `Hold.record`."""
        self.check_open()
        try:
            await self.claimed.record(*events, durable=durable, on_resolved=on_resolved)
        except (ClaimLost, JournalConflict) as lost:
            self._lost_error = lost
            raise

    async def retry_store_errors(self, action: Callable[[], Awaitable[T]], /) -> T:
        """Do something again until the store can be used; see `Hold.patiently`."""
        try:
            return await self.claimed.retry_store_errors(action)
        except ClaimLost as lost:
            self._lost_error = lost
            raise

    # --- waiting ----------------------------------------------------------------------------------

    def next_wait_key(self, name: str) -> str:
        """Return what the next wait for something of that name is known by."""
        self.check_open()
        self._wait_counts[name] += 1
        return f"{name}#{self._wait_counts[name]}"

    async def begin_wait(
        self, key: str, name: str | None, timeout_ms: int | None, about: str = ""
    ) -> Wait:
        """Return a wait as it began, which may have been in another process.

        Raises:
            WaitBeyondExpiry: it would outlast the run.
            NotPausable: the node was declared with ``pausable="no"``.
        """
        head, visit = self.claimed.head, self.visit
        if not self.may_wait:
            raise NotPausable(f"node {self.node!r} has pausable='no', and so may not wait")
        for wait in self.claimed.known_waits(self.branch):
            if (wait.visit, wait.key) == (visit, key):
                return wait
        now = self.now_ms()
        deadline_ms = None if timeout_ms is None else now + timeout_ms
        if deadline_ms is not None and deadline_ms > head.expires_ms and now < head.expires_ms:
            head = await self._refresh_row()
        if deadline_ms is not None and deadline_ms > head.expires_ms and now < head.expires_ms:
            raise WaitBeyondExpiry(
                f"node {self.node!r} would wait until {_utc(deadline_ms)}, but the run expires at "
                f"{_utc(head.expires_ms)}"
            )
        max_pause_ms = self._node_spec.max_pause_ms
        return Wait(
            visit=visit,
            key=key,
            branch=self.branch,
            signal=name,
            since_ms=now,
            until_ms=deadline_ms,
            stale_ms=None if max_pause_ms is None else now + max_pause_ms,
            about=truncated_about(about),
        )

    async def resolve_wait(self, wait: Wait) -> SignalTaken | TimerFired:
        """Return what a wait is answered.

        Raises:
            Paused: there is no answer yet.
        """
        claimed = self.claimed
        match resolved_wait(wait, claimed.untaken_signals(), (), claimed.now_ms()):
            case TakeSignal(signal):
                payload = await self._load_payload(signal)
                taken = SignalTaken(
                    claimed.now_ms(),
                    self.node,
                    wait.visit,
                    wait.key,
                    signal.name,
                    signal.id,
                    payload,
                    self.branch,
                )
                # Like the answer of a call: durable before anything is begun with it.
                await self.record(taken, durable=False)
                claimed.count_taken(signal)
                return taken
            case TimeOut():
                fired = self.timer_fired(wait.key)
                await self.record(fired, durable=True)
                return fired
            case WaitStale():
                self.stale = True
                raise Paused
            case Pending():
                await self._pause_on(wait)

    async def _load_payload(self, signal: Signal) -> Any:
        """Return what a signal carries; meanwhile no other wait may take it."""
        waits = self.claimed.waits
        waits.mark_taking(signal.name, signal.id)
        try:
            payload = await self.claimed.load_payload(signal)
            self.check_open()
        except BaseException as error:
            waits.unmark_taking(signal.name, signal.id)
            if isinstance(error, ClaimLost):
                self._lost_error = error
            raise
        return payload

    def timer_fired(self, key: str) -> TimerFired:
        """Return the event that a wait for a time is over."""
        return TimerFired(self.now_ms(), self.node, self.visit, key, self.branch)

    async def sleep_or_pause(self, key: str, wake_at_ms: int, about: str) -> None:
        """Return at that time, or let go of the run until then; nothing of it is written down.

        Whoever runs the node again asks again whether there is anything to wait for.
        """
        span = wake_at_ms - self.now_ms()
        if span <= self.hold_ms or not self.may_wait:
            await self.claimed.sleep(max(span, 0) / 1000)
            return
        await self.pause_until(key, wake_at_ms, about)

    async def pause_until(self, key: str, until_ms: int, about: str) -> NoReturn:
        """Let go of the run until that time, or until somebody wakes it."""
        now = self.now_ms()
        await self._pause_on(
            Wait(
                visit=self.visit,
                key=key,
                branch=self.branch,
                since_ms=now,
                until_ms=until_ms,
                about=truncated_about(about),
            )
        )

    async def wait_for_other_calls(self) -> bool:
        """Return when no other call is being made; return whether any was."""
        return await self.call_ids.wait_for_others()

    async def _pause_on(self, wait: Wait) -> NoReturn:
        await self.wait_for_other_calls()  # or what they come to would be lost
        if len(self.pending) >= WAITS_MAX:
            self.refusal = NotPausable(
                f"node {self.node!r} waits for more than {WAITS_MAX} things at once"
            )
            raise self.refusal
        self.pending[wait.key] = wait
        raise Paused

    async def _refresh_row(self) -> Head:
        """Return the row as it is by now."""
        try:
            await self.claimed.refresh_row()
        except ClaimLost as lost:
            self._lost_error = lost
            raise
        return self.claimed.head

    # --- calls ------------------------------------------------------------------------------------

    @property
    def threads(self) -> NodeThreads:
        """Where plain functions run."""
        return self.external.threads

    def known_call(self, call: str) -> Call | None:
        """Return what the journal tells of a call."""
        return self.strand.calls.get(call)

    @property
    def limits(self) -> PayloadLimits:
        """How large values may be."""
        return self.claimed.kernel.limits

    async def run_in_thread(self, work: Callable[..., T], *args: Any) -> T:
        """Return what ``work`` returns, which handles a large state; it is done in a thread."""
        return await self.claimed.kernel.offload.run_in_thread(work, *args)

    async def check_result_size(self, value: Any) -> None:
        """Check that what a node returned can be encoded; then its state is measured exactly.

        A run that holds more than ``state_bytes_max`` already may go on returning as much.

        Raises:
            ResultTooLarge: it is larger than any state can be.
        """
        try:
            bytes_max = max(self.limits.state_bytes_max, self.claimed.memory.bytes)
            await self.claimed.kernel.offload.measure(value, bytes_max)
        except TooLarge as error:
            message = f"what node {self.node!r} returned is too large: {error}"
            raise ResultTooLarge(message, size=error.size, limit=error.limit) from None

    async def to_durable(self, value: Any) -> Any:
        """Return the durable form of what a call returned; a large one in a thread.

        Raises:
            Oversize: it has more bytes than an answer may have.
            Misfit: it cannot be kept.
        """
        limit, heavy = self.limits.answer_bytes_max, self.claimed.kernel.offload
        size = await heavy.measure(value, limit)
        return await heavy.run(size, partial(durable, value, bytes_max=limit))

    async def flush_before_call(self) -> None:
        """Return when everything that came before is durable, and the run is still ours."""
        self.check_open()
        try:
            await self.claimed.wait_durable()
        except (ClaimLost, JournalConflict) as lost:
            self._lost_error = lost
            raise

    def count_savings(self, spending: Spending) -> None:
        """Count a call that was answered without being made."""
        self.external.resources.savings.add(spending)

    async def acquire_permit(self, call: str, quota: Quota | None, cost: Cost) -> Permit | None:
        """Return the right to begin a call now; let go of the run where it comes later."""
        if quota is None:
            return None

        async def put_off(later: PermitDelay) -> None:
            await self.wait_for_quota(call, quota, later.retry_at_ms)

        return await self._acquire_permit(quota, cost, self._promised_ms(call), put_off)

    async def acquire_permit_in_place(
        self, call: str, quota: Quota | None, cost: Cost
    ) -> Permit | None:
        """Return the right to begin a call that is being made, if it comes soon.

        Raises:
            NotYet: it comes later. Until then the call must not be under way: other calls, of this
                node or of other runs, may wait for what it comes to.
        """
        if quota is None:
            return None

        async def stay(later: PermitDelay) -> None:
            if later.retry_at_ms - self.now_ms() > self.hold_ms:
                raise PermitUnavailable(later, quota)
            await self._sleep_until(later)

        return await self._acquire_permit(quota, cost, self._promised_ms(call), stay)

    async def reacquire_permit(self, missed: Permit) -> Permit:
        """Return the right to begin a call that came too late for its moment, not for its turn."""
        return await self._acquire_permit(
            missed.quota, missed.cost, self.now_ms(), self._sleep_until
        )

    async def _acquire_permit(
        self,
        quota: Quota,
        cost: Cost,
        promised_ms: int | None,
        wait: Callable[[PermitDelay], Awaitable[None]],
    ) -> Permit:
        while not isinstance(
            answer := await self.external.acquire_permit(quota, cost, promised_ms), Permit
        ):
            promised_ms = answer.retry_at_ms
            await wait(answer)
        return answer

    async def _sleep_until(self, later: PermitDelay) -> None:
        await self.claimed.sleep(max(later.retry_at_ms - self.now_ms(), 0) / 1000)

    async def wait_for_quota(self, call: str, quota: Quota, retry_at_ms: int) -> None:
        """Return when it is time to ask a quota again, or let go of the run until then."""
        if not await self.wait_for_other_calls():
            await self.sleep_or_pause(
                recheck_key("quota", call), retry_at_ms, f"quota {quota.name}"
            )

    def _promised_ms(self, call: str) -> int | None:
        """Return when a quota said that it has room, where the run was let go of until then."""
        key = recheck_key("quota", call)
        waits = self.claimed.known_waits(self.branch)
        report = [wait.until_ms for wait in waits if (wait.visit, wait.key) == (self.visit, key)]
        return report[-1] if report else None

    async def reserve_budget(self, call: str, max_spending: Spending, unknown_reason: str) -> None:
        """Return once it is durable that a call may cost so much; pause the run if it may not."""
        try:
            await self.external.budget_guard.reserve(self, call, max_spending, unknown_reason)
        except (ClaimLost, JournalConflict) as lost:
            self._lost_error = lost
            raise

    async def persist_run(self) -> None:
        """Make a run durable that was only in memory so far."""
        self.check_open()
        try:
            await self.claimed.persist_in_node()
        except ClaimLost as lost:
            self._lost_error = lost
            raise

    async def await_resolution(self, ambiguous: Ambiguous) -> SignalTaken:
        """Return what a person says of a call; pause the run until somebody has."""
        name = resolution_signal(ambiguous.id)
        key = f"{name}#1"
        answer = self.strand.answers.get(key)
        if answer is None:
            about = f"{ambiguous.name} {ambiguous.key}"
            if ambiguous.mismatch:
                about += f"; not the result that was said: {ambiguous.mismatch}"
            wait = await self.begin_wait(key, name, None, about)
            # It never goes stale: elsewhere the call would be made again, under another key.
            wait = msgspec.structs.replace(wait, stale_ms=None)
            if wait not in self.claimed.known_waits(self.branch):
                await self.external.add_ambiguous_call(ambiguous, self.node)
            self.call_ids.mark_done(ambiguous.call)
            answer = await self.resolve_wait(wait)
        assert isinstance(answer, SignalTaken)
        await self.flush_before_call()  # or nobody could say it again
        await self.external.remove_ambiguous_call(ambiguous.id)
        return answer

    # --- children ---------------------------------------------------------------------------------

    def next_child_number(self) -> int:
        """Return the number of the next child."""
        self.check_open()
        self._child_count += 1
        return self._child_count

    async def prepare_input(self, graph: Graph, input: Any) -> PreparedInput:
        """Return the input of a child as it is kept."""
        return await prepare_input(self.claimed.kernel, graph, input, None)

    async def start_child(self, wanted: ChildRequest) -> str:
        """Make a child, unless it is there, and write it down; return its id."""
        try:
            await self.claimed.wait_durable()  # its input may be what a call came to
            if wanted.budget is not None:
                await self.external.budget_guard.grant_child_budget(
                    self, self.external.child_id(wanted), wanted.budget
                )
            id = await self.external.start_child(wanted)
        except (ClaimLost, JournalConflict) as lost:
            self._lost_error = lost
            raise
        name, number = wanted.graph.name, wanted.number
        started = ChildStarted(self.now_ms(), self.node, self.visit, number, id, name, self.branch)
        # It need not be durable: it is only so that a node which runs again need not ask.
        await self.record(started, durable=False)
        return id

    async def wait_for_child(self, id: str) -> RunOutcome:
        """Return how a child ended; pause the run until it has.

        Raises:
            NotPausable: the node was declared with ``pausable="no"``.
            RunNotFound: there is no such child, or its result is no longer kept.
            ResultTaken: another visit of a node was told, and nobody retried the child since.
        """
        self.check_open()
        name = child_signal(id)
        key = f"{name}#1"
        # Whoever awaits it twice at once gets one answer, twice.
        async with self._child_locks.setdefault(id, asyncio.Lock()):
            answer = self.strand.answers.get(key)
            if answer is None:
                wait = await self.begin_wait(key, name, None)
                await self._deliver_child_end(id, wait)
                answer = await self.resolve_wait(wait)
        report: dict[str, Any] = answer.payload if isinstance(answer, SignalTaken) else {}
        failure = None if report["failure"] is None else Failure(**report["failure"])
        return RunOutcome(report["status"], report["state"], failure)

    async def _deliver_child_end(self, id: str, wait: Wait) -> None:
        """Ask for a child's end, unless it lies ready, or we are sure to be told of it."""
        claimed, name = self.claimed, child_signal(id)
        waits = wait in claimed.known_waits(self.branch)
        if self._has_signal(name) or (waits and not claimed.was_taken(name)):
            return
        try:
            ended = await self.external.deliver_child_end(id)
        except ClaimLost as lost:
            self._lost_error = lost
            raise
        if ended and claimed.was_taken(name) and not self._has_signal(name):
            raise ResultTaken(
                f"run {id!r} has ended, and another visit of a node was told so; what it came to "
                "is passed on in the state"
            )

    def _has_signal(self, name: str) -> bool:
        return any(signal.name == name for signal in self.claimed.untaken_signals())


def _utc(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="milliseconds")
