"""What a node is handed besides the state: who it is, and how it waits.

A wait that has no answer yet ends the node with `Paused`: what it waits for becomes durable, and
the coroutine is gone. When the answer is there the node runs again from its top, and waits that
were answered before answer at once, from the journal.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from holdfast.engine.children import Wanted
from holdfast.engine.endings import Outcome, result_of
from holdfast.engine.kernel import Dropped
from holdfast.engine.starting import prepare
from holdfast.errors import (
    InvalidRequest,
    NotPausable,
    ResultTaken,
    WaitBeyondExpiry,
    WaitTimedOut,
)
from holdfast.graph import Graph, Node
from holdfast.model.child import childs_signal
from holdfast.model.durations import Duration, milliseconds_of
from holdfast.model.event import (
    BranchFailed,
    ChildStarted,
    Event,
    Failure,
    SignalTaken,
    TimerFired,
)
from holdfast.model.execution import Execution, Strand
from holdfast.model.signals import (
    Pending,
    Signal,
    SignalName,
    Stale,
    Take,
    TimeOut,
    resolved,
)
from holdfast.model.wait import Wait
from holdfast.records.head import Head
from holdfast.records.names import admit_labels, admit_name

__all__ = ["BlockingChild", "BlockingContext", "Child", "Context", "Host", "Overtaken", "Paused"]

T = TypeVar("T")

WAITS_MAX = 1_000
"""How many things a node may wait for at once."""


class Paused(BaseException):
    """The node waits, and its run is to be let go of.

    A BaseException, so that no ``except Exception`` in a node can swallow it.
    """


class Overtaken(BaseException):
    """Somebody else wrote into the journal: what the node is about may no longer be wanted."""


class Host(Protocol):
    """What a context needs of whoever drives the run."""

    head: Head
    execution: Execution

    def free_signals(self) -> list[Signal]:
        """Return the signals in the inbox that were not taken, nor are about to be."""
        ...

    def was_taken(self, name: str) -> bool:
        """Return whether a signal of that name was taken, or is about to be."""
        ...

    def known_waits(self, branch: str) -> Iterable[Wait]:
        """Return what a branch is known to wait for, as it began."""
        ...

    def now_ms(self) -> int:
        """Return the time."""
        ...

    async def record(self, event: Event, *, durable: bool) -> None:
        """Write down what happened inside the node, and fold it."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait without letting go of the run."""
        ...

    async def start_child(self, wanted: Wanted) -> str:
        """Make a run that is a child of this one, unless it is there; return its id.

        Raises:
            Dropped: the run is no longer ours.
            Overtaken: it is to be cancelled.
        """
        ...

    async def ask_child(self, id: str) -> bool:
        """Return whether a child has ended; if so, its end is in the inbox then.

        Raises:
            Dropped: the run is no longer ours.
        """
        ...

    async def read_row(self) -> None:
        """Read the run's row again: somebody may have extended it.

        Raises:
            Dropped: the run is no longer ours.
        """
        ...


class Context:
    """The run, as one of its nodes sees it."""

    def __init__(self, host: Host, node: Node, branch: str, hold_ms: int) -> None:
        self._host = host
        self._node = node
        self._branch = branch
        self._hold_ms = hold_ms
        self._counts: Counter[str] = Counter()
        self._children = 0
        self._awaiting: dict[str, asyncio.Lock] = {}
        self._closed = False
        self._visit = self._strand.visit
        self._lost: BaseException | None = None
        self.pending: dict[str, Wait] = {}
        """What the node waits for and has no answer to yet."""
        self.stale = False
        """Whether one of its waits took too long."""
        self.refusal: NotPausable | None = None
        """Why it cannot be let to wait."""

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

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._host.head.key.id

    @property
    def tenant(self) -> str:
        """Whose run it is."""
        return self._host.head.key.tenant

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels with which the run was started."""
        return dict(self._host.head.labels)

    @property
    def node(self) -> str:
        """The name of the node."""
        return self._node.name

    @property
    def branch(self) -> str:
        """Which branch of the run the node is in; empty where the run has not forked."""
        return self._branch

    @property
    def visit(self) -> int:
        """Which visit of a node this is, counted over the branch: the same after a resume."""
        return self._visit

    @property
    def attempt(self) -> int:
        """Which attempt of this visit this is, from 1 on."""
        return self._strand.failed_attempts + 1

    @property
    def key(self) -> str:
        """What names this visit of a node, and no other: an idempotency key for what it does."""
        where = f"{self._branch}." if self._branch else ""
        return f"{self._host.head.seed}.{where}{self.visit}"

    @property
    def failures(self) -> tuple[BranchFailed, ...]:
        """The branches that failed before this join, and were to spare the others."""
        return self._strand.failures

    @property
    def expires_at(self) -> datetime:
        """When the run expires."""
        return datetime.fromtimestamp(self._host.head.expires_ms / 1000, UTC)

    async def wait(self, condition: SignalName, *, max_wait: Duration | None = None) -> Any:
        """Return the payload of the next signal of that name; pause the run until there is one.

        Raises:
            WaitTimedOut: none came within ``max_wait``.
            WaitBeyondExpiry: ``max_wait`` would outlast the run.
            NotPausable: the node was declared with ``pausable="no"``.
        """
        if not isinstance(condition, SignalName):
            raise InvalidRequest(f'wait takes signal("name"), not {condition!r:.80}')
        name = admit_name(condition.name, "a signal's name")
        key = self._next_key(name)
        limit = None if max_wait is None else milliseconds_of(max_wait, "max_wait")
        answer = self._strand.answers.get(key)
        if answer is None:
            answer = await self._answer(await self._wait(key, name, limit))
        if isinstance(answer, TimerFired):
            raise WaitTimedOut(f"no signal {name!r} came in time")
        return answer.payload

    async def sleep(self, duration: Duration) -> None:
        """Return after that time; the run is let go of meanwhile, unless it is short.

        Raises:
            WaitBeyondExpiry: the run would have expired by then.
            NotPausable: it is not short, and the node was declared with ``pausable="no"``.
        """
        key = self._next_key("")
        span = milliseconds_of(duration, "sleep")
        if key in self._strand.answers:
            return
        if span <= self._hold_ms:
            await self._host.sleep(span / 1000)
            await self._record(self._fired(key), durable=False)
            return
        await self._answer(await self._wait(key, None, span))

    async def start(
        self,
        graph: Graph,
        input: Any = None,
        *,
        id: str | None = None,
        labels: Mapping[str, str] | None = None,
        pool: str | None = None,
    ) -> Child:
        """Start a run that is a child of this one, and return a handle to await its result.

        A node that runs again finds the child that it started before. A child has the tenant and
        the user of this run, expires with it, and is cancelled if this run ends before it. Without
        an ``id`` it gets one of its own.

        Raises:
            InvalidInput: the input does not fit the graph's state.
            InvalidGraph: the graph cannot be run.
            InvalidName: the id, the pool or a label cannot be one.
            AlreadyExists: there is a run of this id, which is no child of this one.
        """
        if self._closed:
            raise Dropped
        if not isinstance(graph, Graph):
            raise InvalidRequest(f"a graph is started, not {graph!r:.80}", field="graph")
        self._children += 1
        number, strand = self._children, self._strand
        if number in strand.children:
            return Child(self, strand.children[number], graph)
        graph.check()
        wanted = Wanted(
            graph=graph,
            prepared=prepare(graph, {} if input is None else input, "", None),
            branch=self._branch,
            visit=self._visit,
            number=number,
            id=None if id is None else admit_name(id, "id"),
            labels=admit_labels(labels, pool=pool),
        )
        try:
            id = await self._host.start_child(wanted)
        except (Dropped, Overtaken) as lost:
            self._lost = lost
            raise
        now = self._host.now_ms()
        started = ChildStarted(now, self.node, self._visit, number, id, graph.name, self._branch)
        # It need not be durable: it is only so that a node which runs again need not ask.
        await self._record(started, durable=False)
        return Child(self, id, graph)

    async def run(
        self,
        graph: Graph,
        input: Any = None,
        *,
        id: str | None = None,
        labels: Mapping[str, str] | None = None,
        pool: str | None = None,
    ) -> Any:
        """Start a child and return its result; see `start` and `Child.result`."""
        child = await self.start(graph, input, id=id, labels=labels, pool=pool)
        return await child.result()

    def child(self, id: str, graph: Graph | None = None) -> Child:
        """Return a handle on a child that an earlier node started.

        Raises:
            InvalidName: that cannot be an id.
        """
        return Child(self, admit_name(id, "id"), graph)

    async def child_outcome(self, id: str) -> Outcome:
        """Return how a child ended; pause the run until it has.

        Raises:
            NotPausable: the node was declared with ``pausable="no"``.
            RunNotFound: there is no such child, or its result is no longer kept.
            ResultTaken: another visit of a node was told, and nobody retried the child since.
        """
        if self._closed:
            raise Dropped
        name = childs_signal(id)
        key = f"{name}#1"
        # Whoever awaits it twice at once gets one answer, twice.
        async with self._awaiting.setdefault(id, asyncio.Lock()):
            answer = self._strand.answers.get(key)
            if answer is None:
                wait = await self._wait(key, name, None)
                await self._ask_child(id, wait)
                answer = await self._answer(wait)
        told: dict[str, Any] = answer.payload if isinstance(answer, SignalTaken) else {}
        failure = None if told["failure"] is None else Failure(**told["failure"])
        return Outcome(told["status"], told["state"], failure)

    async def _ask_child(self, id: str, wait: Wait) -> None:
        """Ask for a child's end, unless it lies ready, or we are sure to be told of it."""
        host, name = self._host, childs_signal(id)
        waits = wait in host.known_waits(self._branch)
        if self._lies_ready(name) or (waits and not host.was_taken(name)):
            return
        try:
            ended = await host.ask_child(id)
        except Dropped as lost:
            self._lost = lost
            raise
        if ended and host.was_taken(name) and not self._lies_ready(name):
            raise ResultTaken(
                f"run {id!r} has ended, and another visit of a node was told so; what it came to "
                "is passed on in the state"
            )

    def _lies_ready(self, name: str) -> bool:
        return any(signal.name == name for signal in self._host.free_signals())

    async def _record(self, event: Event, *, durable: bool) -> None:
        if self._closed:
            raise Dropped
        try:
            await self._host.record(event, durable=durable)
        except (Dropped, Overtaken) as lost:
            self._lost = lost
            raise

    def _next_key(self, name: str) -> str:
        if self._closed:
            raise Dropped
        self._counts[name] += 1
        return f"{name}#{self._counts[name]}"

    async def _wait(self, key: str, name: str | None, limit: int | None) -> Wait:
        """Return the wait as it began, which may have been in another process."""
        head, visit = self._host.head, self._visit
        if self._node.pausable == "no":
            raise NotPausable(f"node {self._node.name!r} has pausable='no', and so may not wait")
        for wait in self._host.known_waits(self._branch):
            if (wait.visit, wait.key) == (visit, key):
                return wait
        now = self._host.now_ms()
        until = None if limit is None else now + limit
        if until is not None and until > head.expires_ms and now < head.expires_ms:
            head = await self._row()
        if until is not None and until > head.expires_ms and now < head.expires_ms:
            raise WaitBeyondExpiry(
                f"node {self._node.name!r} would wait until {_utc(until)}, but the run expires at "
                f"{_utc(head.expires_ms)}"
            )
        freshness = self._node.max_pause_ms
        return Wait(
            visit=visit,
            key=key,
            branch=self._branch,
            signal=name,
            since_ms=now,
            until_ms=until,
            stale_ms=None if freshness is None else now + freshness,
        )

    async def _row(self) -> Head:
        """Return the row as it is by now."""
        try:
            await self._host.read_row()
        except Dropped as lost:
            self._lost = lost
            raise
        return self._host.head

    async def _answer(self, wait: Wait) -> SignalTaken | TimerFired:
        host = self._host
        match resolved(wait, host.free_signals(), (), host.now_ms()):
            case Take(signal):
                taken = SignalTaken(
                    host.now_ms(),
                    self._node.name,
                    wait.visit,
                    wait.key,
                    signal.name,
                    signal.id,
                    signal.payload,
                    self._branch,
                )
                # Durable before the node sees it: another time another signal might be the first.
                await self._record(taken, durable=True)
                return taken
            case TimeOut():
                fired = self._fired(wait.key)
                await self._record(fired, durable=True)
                return fired
            case Stale():
                self.stale = True
            case Pending() if len(self.pending) < WAITS_MAX:
                self.pending[wait.key] = wait
            case Pending():
                self.refusal = NotPausable(
                    f"node {self._node.name!r} waits for more than {WAITS_MAX} things at once"
                )
                raise self.refusal
        raise Paused

    def _fired(self, key: str) -> TimerFired:
        return TimerFired(self._host.now_ms(), self._node.name, self._visit, key, self._branch)

    @property
    def _strand(self) -> Strand:
        strand = self._host.execution.strand(self._branch)
        if strand is None:  # given up: another branch failed
            raise Dropped
        return strand


class Child:
    """A run that a node started."""

    def __init__(self, context: Context, id: str, graph: Graph | None) -> None:
        self._context = context
        self._graph = graph
        self.id = id
        """The id of the run."""

    async def result(self) -> Any:
        """Return the child's state once it has finished; pause this run until it has ended.

        Raises:
            RunFailed, RunCancelled, RunExpired, RunQuarantined: it ended otherwise.
            NotPausable: the node was declared with ``pausable="no"``.
            RunNotFound: there is no such child, or its result is no longer kept.
            ResultTaken: another visit of a node was told, and nobody retried the child since.
        """
        return result_of(self.id, await self._context.child_outcome(self.id), self._graph)

    def __repr__(self) -> str:
        return f"<child {self.id!r}>"


class BlockingContext:
    """The context of a node that is a plain function: the same, but its waits block its thread."""

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def wait(self, condition: SignalName, *, max_wait: Duration | None = None) -> Any:
        """Do as `Context.wait` does."""
        return self._blocking(self._context.wait(condition, max_wait=max_wait))

    def sleep(self, duration: Duration) -> None:
        """Do as `Context.sleep` does."""
        return self._blocking(self._context.sleep(duration))

    def start(
        self,
        graph: Graph,
        input: Any = None,
        *,
        id: str | None = None,
        labels: Mapping[str, str] | None = None,
        pool: str | None = None,
    ) -> BlockingChild:
        """Do as `Context.start` does."""
        start = self._context.start(graph, input, id=id, labels=labels, pool=pool)
        return BlockingChild(self, self._blocking(start))

    def run(
        self,
        graph: Graph,
        input: Any = None,
        *,
        id: str | None = None,
        labels: Mapping[str, str] | None = None,
        pool: str | None = None,
    ) -> Any:
        """Do as `Context.run` does."""
        return self.start(graph, input, id=id, labels=labels, pool=pool).result()

    def child(self, id: str, graph: Graph | None = None) -> BlockingChild:
        """Do as `Context.child` does."""
        return BlockingChild(self, self._context.child(id, graph))

    def result_of(self, child: Child) -> Any:
        """Wait for the end of a child."""
        return self._blocking(child.result())

    def _blocking(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


class BlockingChild:
    """A run that a plain function started."""

    def __init__(self, context: BlockingContext, child: Child) -> None:
        self._context = context
        self._child = child
        self.id = child.id
        """The id of the run."""

    def result(self) -> Any:
        """Do as `Child.result` does."""
        return self._context.result_of(self._child)


def _utc(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="milliseconds")
