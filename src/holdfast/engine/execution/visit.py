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

from holdfast.engine.effects.call_ids import Lines
from holdfast.engine.effects.calls import Ambiguous
from holdfast.engine.effects.quotas import Later, NotYet, Pass
from holdfast.engine.effects.resources import Means
from holdfast.engine.execution.claimed_run import Hold, Overtaken
from holdfast.engine.execution.external_effects import Outside
from holdfast.engine.execution.node_threads import NodeThreads
from holdfast.engine.history.text_stream import TokenWriter
from holdfast.engine.journal.endings import Outcome
from holdfast.engine.kernel.kernel import Dropped
from holdfast.engine.runs.children import Wanted
from holdfast.engine.runs.starting import Prepared, prepare
from holdfast.errors import NotPausable, ResultTaken, ResultTooLarge, WaitBeyondExpiry
from holdfast.graph import Graph, Node
from holdfast.graph.values import Oversize, durable
from holdfast.model.call import Call, settled_signal
from holdfast.model.child import childs_signal
from holdfast.model.event import ChildStarted, Event, Failure, SignalTaken, TimerFired
from holdfast.model.execution import Strand
from holdfast.model.limits import PayloadLimits
from holdfast.model.quota import Cost, Quota
from holdfast.model.signals import Pending, Signal, Stale, Take, TimeOut, resolved
from holdfast.model.spending import Spending
from holdfast.model.wait import Wait, asking_key, shown_about
from holdfast.records.head import Head
from holdfast.records.keys import RunKey

__all__ = ["Over", "Paused", "Visit"]

T = TypeVar("T")

WAITS_MAX = 1_000
"""How many things a node may wait for at once."""


class Paused(BaseException):
    """The node waits, and its run is to be let go of.

    A BaseException, so that no ``except Exception`` in a node can swallow it.
    """


class Over(Dropped):
    """The node is over of which somebody asked something; that may be another one, by mistake."""

    def __init__(self, visit: Visit) -> None:
        super().__init__(
            f"the ctx of node {visit.node!r} was used when that node was over; "
            "what a node asks for, it asks of the ctx that it is given"
        )
        self.visit = visit


class Visit:
    """The visit of a node, in one of its attempts."""

    def __init__(self, hold: Hold, outside: Outside, node: Node, branch: str, hold_ms: int) -> None:
        self.hold = hold
        self.outside = outside
        self.node = node.name
        self.branch = branch
        self.visit = self._strand_of(hold, branch).visit
        self.lines = Lines()
        self.hold_ms = hold_ms
        """Up to this a wait for a time is waited for in place."""
        self.pending: dict[str, Wait] = {}
        """What the node waits for and has no answer to yet."""
        self.stale = False
        """Whether one of its waits took too long."""
        self.refusal: NotPausable | None = None
        """Why it cannot be let to wait."""
        self._declared = node
        self._began_ms = hold.now_ms()
        self._counts: Counter[str] = Counter()
        self._children = 0
        self._awaiting: dict[str, asyncio.Lock] = {}
        self._closed = False
        self._lost: BaseException | None = None

    def check(self) -> None:
        """See to it that a pause stays one, even if the node swallowed it.

        Raises:
            Paused, Dropped, NotPausable: as one of the node's waits did before.
        """
        if self._lost is not None:
            raise self._lost
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
            raise Over(self)

    @property
    def strand(self) -> Strand:
        """The branch as it stands, or the run itself."""
        return self._strand_of(self.hold, self.branch)

    @staticmethod
    def _strand_of(hold: Hold, branch: str) -> Strand:
        strand = hold.execution.strand(branch)
        if strand is None:  # given up: another branch failed
            raise Dropped
        return strand

    @property
    def key(self) -> str:
        """What names this visit of a node, and no other."""
        where = f"{self.branch}." if self.branch else ""
        return f"{self.hold.head.seed}.{where}{self.visit}"

    @property
    def run(self) -> RunKey:
        """The run in which the node is."""
        return self.hold.head.key

    @property
    def means(self) -> Means:
        """What nodes do something to the world with."""
        return self.outside.means

    def text_writer(self, call: str, name: str) -> TokenWriter:
        """Return what takes in the text of an answer as it comes."""
        # Other visits, and other branches, name calls of their own alike.
        where = f"{self.branch}." if self.branch else ""
        return self.outside.text_writer(f"{where}{self.visit}.{call}", name)

    def now_ms(self) -> int:
        """Return the time."""
        return self.hold.now_ms()

    @property
    def elapsed_ms(self) -> int:
        """For how long this attempt has been going on."""
        return self.now_ms() - self._began_ms

    @property
    def may_wait(self) -> bool:
        """Whether its run may be let go of meanwhile."""
        return self._declared.pausable != "no"

    async def record(
        self, *events: Event, durable: bool, decided: Callable[[], None] | None = None
    ) -> None:
        """Write down what happened, and fold it; see `Hold.record`."""
        self.check_open()
        try:
            await self.hold.record(*events, durable=durable, decided=decided)
        except (Dropped, Overtaken) as lost:
            self._lost = lost
            raise

    async def patiently(self, action: Callable[[], Awaitable[T]], /) -> T:
        """Do something again until the store can be used; see `Hold.patiently`."""
        try:
            return await self.hold.patiently(action)
        except Dropped as lost:
            self._lost = lost
            raise

    # --- waiting ----------------------------------------------------------------------------------

    def next_key(self, name: str) -> str:
        """Return what the next wait for something of that name is known by."""
        self.check_open()
        self._counts[name] += 1
        return f"{name}#{self._counts[name]}"

    async def begin_wait(
        self, key: str, name: str | None, limit_ms: int | None, about: str = ""
    ) -> Wait:
        """Return a wait as it began, which may have been in another process.

        Raises:
            WaitBeyondExpiry: it would outlast the run.
            NotPausable: the node was declared with ``pausable="no"``.
        """
        head, visit = self.hold.head, self.visit
        if not self.may_wait:
            raise NotPausable(f"node {self.node!r} has pausable='no', and so may not wait")
        for wait in self.hold.known_waits(self.branch):
            if (wait.visit, wait.key) == (visit, key):
                return wait
        now = self.now_ms()
        until = None if limit_ms is None else now + limit_ms
        if until is not None and until > head.expires_ms and now < head.expires_ms:
            head = await self._row()
        if until is not None and until > head.expires_ms and now < head.expires_ms:
            raise WaitBeyondExpiry(
                f"node {self.node!r} would wait until {_utc(until)}, but the run expires at "
                f"{_utc(head.expires_ms)}"
            )
        freshness = self._declared.max_pause_ms
        return Wait(
            visit=visit,
            key=key,
            branch=self.branch,
            signal=name,
            since_ms=now,
            until_ms=until,
            stale_ms=None if freshness is None else now + freshness,
            about=shown_about(about),
        )

    async def answer(self, wait: Wait) -> SignalTaken | TimerFired:
        """Return what a wait is answered.

        Raises:
            Paused: there is no answer yet.
        """
        hold = self.hold
        match resolved(wait, hold.free_signals(), (), hold.now_ms()):
            case Take(signal):
                payload = await self._payload_of(signal)
                taken = SignalTaken(
                    hold.now_ms(),
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
                hold.took(signal)
                return taken
            case TimeOut():
                fired = self.fired(wait.key)
                await self.record(fired, durable=True)
                return fired
            case Stale():
                self.stale = True
                raise Paused
            case Pending():
                await self._pend(wait)

    async def _payload_of(self, signal: Signal) -> Any:
        """Return what a signal carries; meanwhile no other wait may take it."""
        parking = self.hold.parking
        parking.take(signal.name, signal.id)
        try:
            payload = await self.hold.payload_of(signal)
            self.check_open()
        except BaseException as error:
            parking.give_back(signal.name, signal.id)
            if isinstance(error, Dropped):
                self._lost = error
            raise
        return payload

    def fired(self, key: str) -> TimerFired:
        """Return the event that a wait for a time is over."""
        return TimerFired(self.now_ms(), self.node, self.visit, key, self.branch)

    async def put_off(self, key: str, until_ms: int, about: str) -> None:
        """Return at that time, or let go of the run until then; nothing of it is written down.

        Whoever runs the node again asks again whether there is anything to wait for.
        """
        span = until_ms - self.now_ms()
        if span <= self.hold_ms or not self.may_wait:
            await self.hold.sleep(max(span, 0) / 1000)
            return
        await self.ask_again(key, until_ms, about)

    async def ask_again(self, key: str, until_ms: int, about: str) -> NoReturn:
        """Let go of the run until that time, or until somebody wakes it."""
        now = self.now_ms()
        await self._pend(
            Wait(
                visit=self.visit,
                key=key,
                branch=self.branch,
                since_ms=now,
                until_ms=until_ms,
                about=shown_about(about),
            )
        )

    async def others_done(self) -> bool:
        """Return when no other call is being made; return whether any was."""
        return await self.lines.others_done()

    async def _pend(self, wait: Wait) -> NoReturn:
        await self.others_done()  # or what they come to would be lost
        if len(self.pending) >= WAITS_MAX:
            self.refusal = NotPausable(
                f"node {self.node!r} waits for more than {WAITS_MAX} things at once"
            )
            raise self.refusal
        self.pending[wait.key] = wait
        raise Paused

    async def _row(self) -> Head:
        """Return the row as it is by now."""
        try:
            await self.hold.refresh_row()
        except Dropped as lost:
            self._lost = lost
            raise
        return self.hold.head

    # --- calls ------------------------------------------------------------------------------------

    @property
    def threads(self) -> NodeThreads:
        """Where plain functions run."""
        return self.outside.threads

    def known_call(self, call: str) -> Call | None:
        """Return what the journal tells of a call."""
        return self.strand.calls.get(call)

    @property
    def limits(self) -> PayloadLimits:
        """How large values may be."""
        return self.hold.kernel.limits

    async def apart(self, work: Callable[..., T], *args: Any) -> T:
        """Return what ``work`` returns, which handles a large state; it is done in a thread."""
        return await self.hold.kernel.heavy.apart(work, *args)

    async def admit_result(self, value: Any) -> None:
        """Check that what a node returned can be encoded; then its state is measured exactly.

        A run that holds more than ``state_bytes_max`` already may go on returning as much.

        Raises:
            ResultTooLarge: it is larger than any state can be.
        """
        try:
            bytes_max = max(self.limits.state_bytes_max, self.hold.weight.bytes)
            await self.hold.kernel.heavy.admitted(value, bytes_max)
        except Oversize as error:
            message = f"what node {self.node!r} returned is too large: {error}"
            raise ResultTooLarge(message, size=error.size, limit=error.limit) from None

    async def durable(self, value: Any) -> Any:
        """Return the durable form of what a call returned; a large one in a thread.

        Raises:
            Oversize: it has more bytes than an answer may have.
            Misfit: it cannot be kept.
        """
        limit, heavy = self.limits.answer_bytes_max, self.hold.kernel.heavy
        size = await heavy.admitted(value, limit)
        return await heavy.run(size, partial(durable, value, bytes_max=limit))

    async def begin_call(self) -> None:
        """Return when everything that came before is durable, and the run is still ours."""
        self.check_open()
        try:
            await self.hold.settled()
        except (Dropped, Overtaken) as lost:
            self._lost = lost
            raise

    def saved(self, spending: Spending) -> None:
        """Count a call that was answered without being made."""
        self.outside.means.savings.add(spending)

    async def admitted(self, call: str, quota: Quota | None, cost: Cost) -> Pass | None:
        """Return the right to begin a call now; let go of the run where it comes later."""
        if quota is None:
            return None

        async def put_off(later: Later) -> None:
            await self.await_quota(call, quota, later.until_ms)

        return await self._admitted(quota, cost, self._told_ms(call), put_off)

    async def admitted_in_place(self, call: str, quota: Quota | None, cost: Cost) -> Pass | None:
        """Return the right to begin a call that is being made, if it comes soon.

        Raises:
            NotYet: it comes later. Until then the call must not be under way: other calls, of this
                node or of other runs, may wait for what it comes to.
        """
        if quota is None:
            return None

        async def stay(later: Later) -> None:
            if later.until_ms - self.now_ms() > self.hold_ms:
                raise NotYet(later, quota)
            await self._sleep_until(later)

        return await self._admitted(quota, cost, self._told_ms(call), stay)

    async def readmitted(self, missed: Pass) -> Pass:
        """Return the right to begin a call that came too late for its moment, not for its turn."""
        return await self._admitted(missed.quota, missed.cost, self.now_ms(), self._sleep_until)

    async def _admitted(
        self,
        quota: Quota,
        cost: Cost,
        told_ms: int | None,
        wait: Callable[[Later], Awaitable[None]],
    ) -> Pass:
        while not isinstance(answer := await self.outside.admit(quota, cost, told_ms), Pass):
            told_ms = answer.until_ms
            await wait(answer)
        return answer

    async def _sleep_until(self, later: Later) -> None:
        await self.hold.sleep(max(later.until_ms - self.now_ms(), 0) / 1000)

    async def await_quota(self, call: str, quota: Quota, until_ms: int) -> None:
        """Return when it is time to ask a quota again, or let go of the run until then."""
        if not await self.others_done():
            await self.put_off(asking_key("quota", call), until_ms, f"quota {quota.name}")

    def _told_ms(self, call: str) -> int | None:
        """Return when a quota said that it has room, where the run was let go of until then."""
        key = asking_key("quota", call)
        waits = self.hold.known_waits(self.branch)
        told = [wait.until_ms for wait in waits if (wait.visit, wait.key) == (self.visit, key)]
        return told[-1] if told else None

    async def set_aside(self, call: str, most: Spending, unknown: str) -> None:
        """Return once it is durable that a call may cost so much; pause the run if it may not."""
        try:
            await self.outside.purse.set_aside(self, call, most, unknown)
        except (Dropped, Overtaken) as lost:
            self._lost = lost
            raise

    async def write_down(self) -> None:
        """Make a run durable that was only in memory so far."""
        self.check_open()
        try:
            await self.hold.write_down_in_node()
        except Dropped as lost:
            self._lost = lost
            raise

    async def ambiguous(self, ambiguous: Ambiguous) -> SignalTaken:
        """Return what a person says of a call; pause the run until somebody has."""
        name = settled_signal(ambiguous.id)
        key = f"{name}#1"
        answer = self.strand.answers.get(key)
        if answer is None:
            about = f"{ambiguous.name} {ambiguous.key}"
            if ambiguous.misfit:
                about += f"; not the result that was said: {ambiguous.misfit}"
            wait = await self.begin_wait(key, name, None, about)
            # It never goes stale: elsewhere the call would be made again, under another key.
            wait = msgspec.structs.replace(wait, stale_ms=None)
            if wait not in self.hold.known_waits(self.branch):
                await self.outside.list_ambiguous(ambiguous, self.node)
            self.lines.end(ambiguous.call)
            answer = await self.answer(wait)
        assert isinstance(answer, SignalTaken)
        await self.begin_call()  # or nobody could say it again
        await self.outside.unlist_ambiguous(ambiguous.id)
        return answer

    # --- children ---------------------------------------------------------------------------------

    def next_child(self) -> int:
        """Return the number of the next child."""
        self.check_open()
        self._children += 1
        return self._children

    async def prepare(self, graph: Graph, input: Any) -> Prepared:
        """Return the input of a child as it is kept."""
        return await prepare(self.hold.kernel, graph, input, None)

    async def start_child(self, wanted: Wanted) -> str:
        """Make a child, unless it is there, and write it down; return its id."""
        try:
            await self.hold.settled()  # its input may be what a call came to
            if wanted.budget is not None:
                await self.outside.purse.grant(self, self.outside.child_id(wanted), wanted.budget)
            id = await self.outside.start_child(wanted)
        except (Dropped, Overtaken) as lost:
            self._lost = lost
            raise
        name, number = wanted.graph.name, wanted.number
        started = ChildStarted(self.now_ms(), self.node, self.visit, number, id, name, self.branch)
        # It need not be durable: it is only so that a node which runs again need not ask.
        await self.record(started, durable=False)
        return id

    async def child_outcome(self, id: str) -> Outcome:
        """Return how a child ended; pause the run until it has.

        Raises:
            NotPausable: the node was declared with ``pausable="no"``.
            RunNotFound: there is no such child, or its result is no longer kept.
            ResultTaken: another visit of a node was told, and nobody retried the child since.
        """
        self.check_open()
        name = childs_signal(id)
        key = f"{name}#1"
        # Whoever awaits it twice at once gets one answer, twice.
        async with self._awaiting.setdefault(id, asyncio.Lock()):
            answer = self.strand.answers.get(key)
            if answer is None:
                wait = await self.begin_wait(key, name, None)
                await self._ask_child(id, wait)
                answer = await self.answer(wait)
        told: dict[str, Any] = answer.payload if isinstance(answer, SignalTaken) else {}
        failure = None if told["failure"] is None else Failure(**told["failure"])
        return Outcome(told["status"], told["state"], failure)

    async def _ask_child(self, id: str, wait: Wait) -> None:
        """Ask for a child's end, unless it lies ready, or we are sure to be told of it."""
        hold, name = self.hold, childs_signal(id)
        waits = wait in hold.known_waits(self.branch)
        if self._lies_ready(name) or (waits and not hold.was_taken(name)):
            return
        try:
            ended = await self.outside.ask_child(id)
        except Dropped as lost:
            self._lost = lost
            raise
        if ended and hold.was_taken(name) and not self._lies_ready(name):
            raise ResultTaken(
                f"run {id!r} has ended, and another visit of a node was told so; what it came to "
                "is passed on in the state"
            )

    def _lies_ready(self, name: str) -> bool:
        return any(signal.name == name for signal in self.hold.free_signals())


def _utc(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="milliseconds")
