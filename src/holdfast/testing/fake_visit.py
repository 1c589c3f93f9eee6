"""A visit of a node that no run stands behind, with what the test provides.

The context of a node is real: it checks arguments, converts results, repeats failed calls and asks
models as in a run. Only what it asks of the engine is replaced here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace, TracebackType
from typing import Any, NoReturn, Self, TypeVar, cast

import msgspec

from holdfast.engine.effects.argument_recorder import ArgumentRecorder
from holdfast.engine.effects.begun_requests import BegunRequests
from holdfast.engine.effects.call_host import Ambiguous, CallRequest
from holdfast.engine.effects.call_ids import CallIds
from holdfast.engine.effects.charges import CallPrice
from holdfast.engine.effects.model_usage import ModelUsageCounter
from holdfast.engine.effects.token_estimates import TokenEstimates
from holdfast.engine.execution.node_threads import NodeThreads
from holdfast.engine.execution.visit import ItemFacts, Visit
from holdfast.engine.execution.visit_children import VisitChildren
from holdfast.engine.execution.visit_waits import GroupRequest, VisitWaits
from holdfast.engine.journal.endings import RunOutcome
from holdfast.engine.runs.children import ChildRequest
from holdfast.errors import NotPausable
from holdfast.graph.signal_types import SignalType
from holdfast.graph.values import durable
from holdfast.model.call import Call
from holdfast.model.event import ChildStarted, Event, SignalTaken, TimerFired
from holdfast.model.execution import Execution
from holdfast.model.failure import failure_of
from holdfast.model.fold import folded
from holdfast.model.function_state import RESULT
from holdfast.model.invocation import Model
from holdfast.model.needs import Needs
from holdfast.model.payload_limits import PayloadLimits
from holdfast.model.program import Program
from holdfast.model.quota import Cost, Quota
from holdfast.model.spending import Spending
from holdfast.model.wait import ChildWait, SignalWait, TimerWait, Wait, WaitKind
from holdfast.records.keys import RunKey
from holdfast.testing.answers import NotProvided, TimedOut, give_answer

__all__ = [
    "AskedWait",
    "FakeCallHost",
    "FakeChildren",
    "FakeVisit",
    "FakeWaits",
    "Provided",
    "StartedChild",
]

T = TypeVar("T")

_THREADS_MAX = 8
_FAKE_CHILD = "child"


class AskedWait(msgspec.Struct, frozen=True):
    """A wait that a node began."""

    names: tuple[str, ...]
    """The signals and children that it waits for; empty for a timer alone."""
    about: Any = None
    max_wait_seconds: float | None = None


class StartedChild(msgspec.Struct, frozen=True):
    """A child that a node started."""

    program: str
    input: Any
    id: str


class Provided(msgspec.Struct):
    """What a test provides, and what a node asked for."""

    now_ms: int
    signals: dict[str, Any]
    models: dict[str, Model]
    children: dict[str, Any]
    waits: list[AskedWait]
    sleeps: list[float]
    started: list[StartedChild]
    missing: NotProvided | None = None

    def refuse(self, message: str) -> NotProvided:
        """Return the error for something that is not provided, and remember it.

        The code of a node may catch it.
        """
        self.missing = self.missing or NotProvided(message)
        return self.missing


class FakeVisit:
    """Implements what a context uses of `Visit`."""

    def __init__(self, provided: Provided, about: Any, program: Program | None, node: str) -> None:
        self.provided = provided
        self.node = node
        self.branch = ""
        self.visit = 1
        self.path = "1"
        self.key = f"{about.run_id}.1"
        self.call_ids = CallIds()
        self.requests = BegunRequests(self.call_ids)
        self.hold_ms = 1 << 62
        self.may_wait = True
        self.finds_timeouts = False
        """Whether a timeout around a wait is one of the node's own code."""
        self.execution = Execution(
            state={}, seed=about.run_id, node=node, failed_attempts=about.attempt - 1
        )
        head = SimpleNamespace(
            key=RunKey(about.tenant, about.run_id),
            labels=dict(about.labels),
            expires_ms=about.expires_ms,
        )
        self.claimed = SimpleNamespace(head=head, sleep=self._sleep)
        self.external = SimpleNamespace(
            program=_AnySignals() if program is None else program,
            threads=NodeThreads(_THREADS_MAX, name="test"),
        )

    @property
    def strand(self) -> Execution:
        return self.execution

    def now_ms(self) -> int:
        return self.provided.now_ms

    def check_open(self) -> None:
        pass

    def check_outer_timeout(self) -> None:
        if self.finds_timeouts:
            Visit.check_outer_timeout(cast(Visit, self))

    timeout = None
    item: ItemFacts | None = None

    async def record(self, *events: Event, durable: bool) -> None:
        self.execution = folded(self.execution, events)

    async def _sleep(self, seconds: float) -> None:
        self.provided.sleeps.append(seconds)
        self.provided.now_ms += round(seconds * 1000)


class _AnySignals:
    """Stands for a program that declares no signals."""

    name = "test"
    signals: Mapping[str, Any] = {}
    takes_other_signals = True


class FakeWaits(VisitWaits):
    """Answers the waits of a node with what the test provides."""

    def __init__(self, visit: FakeVisit) -> None:
        super().__init__(cast(Visit, visit))
        self._provided = visit.provided

    async def begin(
        self,
        kind: WaitKind,
        timeout_ms: int | None,
        *,
        key: str | None = None,
        about: str = "",
        packed_about: bytes | msgspec.UnsetType = msgspec.UNSET,
    ) -> Wait:
        self._check_allowed()
        self._note([kind], packed_about, timeout_ms)
        return self._wait(kind, kind.key() if key is None else key, timeout_ms)

    async def begin_group(self, group: str, request: GroupRequest) -> tuple[Wait, ...]:
        self._check_allowed()
        self._note(request.kinds, request.packed_about, request.timeout_ms)
        return tuple(
            self._wait(
                kind,
                group if isinstance(kind, TimerWait) and request.times_out else f"{group}.{number}",
                request.timeout_ms,
            )
            for number, kind in enumerate(request.kinds)
        )

    async def resolve(
        self,
        *waits: Wait,
        types: Mapping[str, SignalType | None] | None = None,
        on_timeout: object = None,
    ) -> SignalTaken | TimerFired:
        for wait in waits:
            if wait.signal in self._provided.signals:
                payload = self._take(wait.signal)
                if isinstance(payload, TimedOut):
                    return self._time_out(waits)
                return await self._take_signal(wait, payload, (types or {}).get(wait.signal))
        if any(wait.signal is None for wait in waits):
            return self._time_out(waits)
        names = ", ".join(repr(_shown(wait.signal or "")) for wait in waits)
        first = _shown(waits[0].signal or "")
        raise self._provided.refuse(
            f"the node waits for {names}, and the test provides no answer: pass "
            f"FakeContext(signals={{{first!r}: [payload]}}), or timed_out as the payload"
        )

    async def sleep_or_pause(self, kind: WaitKind, wake_at_ms: int, about: str) -> None:
        # A backoff between two attempts of a call: only its time passes.
        self._provided.now_ms = max(self._provided.now_ms, wake_at_ms)

    def _check_allowed(self) -> None:
        visit = self._visit
        if not visit.may_wait:
            raise NotPausable(f"node {visit.node!r} has pausable='no', and so may not wait")
        visit.check_outer_timeout()

    def _wait(self, kind: WaitKind, key: str, timeout_ms: int | None) -> Wait:
        now = self._provided.now_ms
        deadline_ms = None if timeout_ms is None else now + timeout_ms
        return Wait.of(kind, visit=1, branch="", key=key, since_ms=now, deadline_ms=deadline_ms)

    def _note(
        self, kinds: Any, packed_about: bytes | msgspec.UnsetType, timeout_ms: int | None
    ) -> None:
        names = tuple(kind.subject for kind in kinds if isinstance(kind, SignalWait | ChildWait))
        about = None if packed_about is msgspec.UNSET else msgspec.msgpack.decode(packed_about)
        seconds = None if timeout_ms is None else timeout_ms / 1000
        self._provided.waits.append(AskedWait(names, about, seconds))

    def _take(self, name: str) -> Any:
        answers = self._provided.signals[name]
        if not isinstance(answers, list):
            return answers
        left = cast(list[Any], answers)
        if not left:
            raise self._provided.refuse(
                f"the node waits for another {_shown(name)!r}, and all payloads that the test "
                "provides are taken"
            )
        return left.pop(0)

    async def _take_signal(
        self, wait: Wait, payload: Any, awaited: SignalType | None
    ) -> SignalTaken:
        payload = durable(payload)
        misfit = None if awaited is None else awaited.misfit(payload)
        if misfit is not None:
            raise self._provided.refuse(
                f"the payload that the test provides for the signal {wait.signal!r} does not fit "
                f"its type: {misfit}"
            )
        name = wait.signal or ""
        number = len(self._provided.waits)
        taken = SignalTaken(
            self._provided.now_ms, self._visit.node, 1, wait.key, name, f"test-{number}", payload
        )
        await self._visit.record(taken, durable=False)
        return taken

    def _time_out(self, waits: tuple[Wait, ...]) -> TimerFired:
        """Return that the time is up: of the timer if there is one, of the whole wait if not."""
        deadlines = [wait.deadline_ms for wait in waits if wait.deadline_ms is not None]
        if not deadlines:
            raise self._provided.refuse(
                f"the wait for {_shown(waits[0].signal or '')!r} has no max_wait, so it cannot "
                "time out"
            )
        self._provided.now_ms = max(self._provided.now_ms, min(deadlines))
        timers = (wait.key for wait in waits if wait.signal is None)
        group = waits[0].key.rpartition(".")[0] or waits[0].key
        return self.timer_fired(next(timers, group))


def _shown(signal: str) -> str:
    """Return the name of a signal; that of a child's end is the child's id."""
    return signal.rpartition(".")[2] if signal.startswith("%") else signal


class FakeChildren(VisitChildren):
    """Starts no runs: gives the results that the test provides for children."""

    def __init__(self, visit: FakeVisit, waits: FakeWaits) -> None:
        super().__init__(cast(Visit, visit), waits)
        self._fake = visit
        self._outcomes: dict[str, RunOutcome] = {}
        self._programs: dict[str, Program] = {}

    def note_program(self, id: str, program: Program | None) -> None:
        """Remember what an earlier node started under an id: it decides the form of the result."""
        if program is not None:
            self._programs[id] = program

    async def prepare_input(self, graph: Program, input: Any) -> Any:
        graph.start(input, "test")  # raises if the input does not fit
        return input

    async def start(self, wanted: ChildRequest) -> str:
        provided = self._fake.provided
        name, input = wanted.graph.name, cast(Any, wanted.prepared)
        id = wanted.id or f"{_FAKE_CHILD}-{wanted.number}"
        key = id if id in provided.children else name
        if key not in provided.children:
            raise provided.refuse(
                f"the node starts a child {name!r}, and the test provides no result: pass "
                f"FakeContext(children={{{name!r}: result}})"
            )
        provided.started.append(StartedChild(name, input, id))
        self._outcomes[id] = await _outcome_of(wanted.graph, provided.children[key], input)
        provided.signals[ChildWait(id).signal] = None
        started = ChildStarted(provided.now_ms, self._fake.node, 1, wanted.number, id, name)
        await self._fake.record(started, durable=False)
        return id

    async def poll(self, id: str, wait: Wait) -> None:
        provided = self._fake.provided
        if id in self._outcomes:
            return
        if id not in provided.children:
            raise provided.refuse(
                f"the node waits for the child {id!r}, which it did not start: pass "
                f"FakeContext(children={{{id!r}: result}})"
            )
        self._outcomes[id] = await _outcome_of(self._programs.get(id), provided.children[id], None)
        provided.signals[ChildWait(id).signal] = None

    async def outcome(self, id: str, answer: SignalTaken | TimerFired) -> RunOutcome:
        return self._outcomes[id]


async def _outcome_of(program: Program | None, answer: Any, input: Any) -> RunOutcome:
    try:
        value = durable(await give_answer(answer, "the child", (input,)))
    except Exception as error:
        return RunOutcome("failed", {}, failure_of(error))
    # The result of a function is one field of the run's state; that of a graph is its state.
    wrapped = program is not None and program.wraps_values
    state = {RESULT: value} if wrapped else value
    return RunOutcome("finished", state, None, wrapped=wrapped)


class _FreePermits:
    """Quotas do not limit a node that runs by itself."""

    async def acquire(self, call: str, quota: Quota | None, cost: Cost) -> None:
        return None

    acquire_in_place = acquire

    async def reacquire(self, missed: Any) -> Any:
        return missed

    async def wait_for_quota(self, call: str, quota: Quota, retry_at_ms: int) -> None:
        return None


class _UnsharedAnswers:
    """Every question is asked."""

    async def get_or_ask(
        self, tenant: str, hash: bytes, ask: Callable[[], Awaitable[Any]], **_: Any
    ) -> tuple[Any, bool]:
        return await ask(), False


class _DroppedText:
    """Takes the streamed text of a model, for no reader."""

    def emit(self, text: str) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None


class FakeCallHost:
    """Implements `CallHost` and `ModelCallHost` without a journal, a budget and quotas."""

    def __init__(self, visit: FakeVisit, waits: FakeWaits) -> None:
        self._visit = visit
        self.node, self.branch, self.visit = visit.node, visit.branch, visit.visit
        self.key = visit.key
        self.call_ids, self.requests = visit.call_ids, visit.requests
        self.run: RunKey = visit.claimed.head.key
        self.limits = PayloadLimits()
        self.recorder = ArgumentRecorder("none")
        self.threads: NodeThreads = visit.external.threads
        self.permits: Any = _FreePermits()
        self.waits = waits
        self.needs = Needs()
        self.approvals = None  # the test answers the calls, and does not review them
        self.resources: Any = SimpleNamespace(
            models=visit.provided.models,
            quotas={},
            model_usage=ModelUsageCounter(),
            token_estimates=TokenEstimates(),
            shared_answers=_UnsharedAnswers(),
        )

    async def to_durable(self, value: Any) -> Any:
        return durable(value, bytes_max=self.limits.answer_bytes_max)

    def known_call(self, call: str) -> Call | None:
        return self._visit.execution.calls.get(call)

    def now_ms(self) -> int:
        return self._visit.now_ms()

    async def flush_before_call(self) -> None:
        return None

    async def record(self, *events: Event, durable: bool) -> None:
        await self._visit.record(*events, durable=durable)

    async def persist_run(self) -> None:
        return None

    def report_attempt(self, call: str, request: CallRequest) -> None:
        return None

    def count_savings(self, spending: Spending) -> None:
        return None

    async def reserve_budget(self, call: str, price: CallPrice) -> None:
        return None

    def text_writer(self, call: str, name: str) -> Any:
        return _DroppedText()

    async def retry_store_errors(self, action: Callable[[], Awaitable[T]], /) -> T:
        return await action()

    async def await_worker_with_model(self, name: str) -> NoReturn:
        raise self._visit.provided.refuse(
            f"the node asks the model {name!r}, and the test provides none: pass "
            f"FakeContext(models={{{name!r}: answer}})"
        )

    async def await_resolution(self, ambiguous: Ambiguous) -> SignalTaken:
        raise self._visit.provided.refuse(
            f"the call {ambiguous.name!r} is declared at most once and raised, so a run would ask "
            "a person whether it was made: let it raise NotDone, or test it with TestKit"
        )
