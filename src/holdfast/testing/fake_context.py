"""`FakeContext`: a context for one node, with the answers that a test provides."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from holdfast.engine.effects.begun_requests import tracked
from holdfast.engine.effects.call_options import CallOptions
from holdfast.engine.effects.calls import Calls
from holdfast.engine.execution.blocking_context import BlockingContext
from holdfast.engine.execution.callbacks import callback_signal
from holdfast.engine.execution.child import Child
from holdfast.engine.execution.context import Context
from holdfast.engine.execution.outer_timeouts import outer_timeout
from holdfast.engine.execution.reviews import ReviewRequest
from holdfast.errors import InvalidRequest, NotPausable
from holdfast.graph.mismatch import Mismatch
from holdfast.graph.node import Node, function_identity, is_sync_function
from holdfast.graph.tool import Tool, contract_of
from holdfast.model.durations import Duration, days, milliseconds_of
from holdfast.model.invocation import Model
from holdfast.model.map import MappedItem
from holdfast.model.moments import Moment, moment_ms
from holdfast.model.program import Program
from holdfast.model.review import ReviewDecision
from holdfast.model.signals import SignalName
from holdfast.model.type_parameters import ResultT
from holdfast.testing.answers import RealCalls, give_answer
from holdfast.testing.fake_maps import FakeMaps
from holdfast.testing.fake_visit import (
    AskedWait,
    FakeCallHost,
    FakeChildren,
    FakeVisit,
    FakeWaits,
    Provided,
    StartedChild,
)
from holdfast.testing.review_answers import (
    AnyFields,
    AskedReview,
    ReviewAnswer,
    asked_review,
    given_decision,
)
from holdfast.testing.scripted_model import ScriptedModel

__all__ = ["FakeContext", "MadeCall"]

_START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
_EXPIRES_MS = milliseconds_of(days(7), "expires")
# No name ends in ".invalid" (RFC 2606).
_CALLBACKS = "https://holdfast.invalid/v1/callbacks"


class MadeCall(msgspec.Struct, frozen=True):
    """A call that a node made."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}


class _RunFacts(msgspec.Struct, frozen=True):
    """What a context tells of its run."""

    run_id: str
    tenant: str
    labels: Mapping[str, str]
    attempt: int
    expires_ms: int


class FakeContext(Context):
    """A context for one node, or for a workflow's function, with the answers of a test.

    It is a `Context`: results are converted, failed calls are repeated and models are asked as in a
    run. Nothing is stored, and no time passes: a sleep returns at once. What the test does not
    provide fails with `NotProvided`. Make one for each node that is tested, inside of the test's
    coroutine.
    """

    def __init__(
        self,
        *,
        calls: Mapping[Callable[..., Any] | str, Any] | RealCalls | None = None,
        signals: Mapping[str, Any] | None = None,
        models: Mapping[str, Any] | None = None,
        children: Mapping[Program | str, Any] | None = None,
        reviews: Sequence[ReviewAnswer] = (),
        maps: Mapping[str, Sequence[Any]] | None = None,
        now: Moment = _START,
        run_id: str = "test-run",
        tenant: str = "default",
        labels: Mapping[str, str] | None = None,
        attempt: int = 1,
    ) -> None:
        """Take what the test provides.

        ``calls`` has an answer for each function, or for its name: a value, a function that is
        called instead, ``raises(error)``, or ``in_turn(…)``; `REAL` lets the functions themselves
        run. A function that is called instead gets no ``ctx``, and the ``idempotency_key`` only if
        it has such a parameter. ``signals`` has a list of payloads for each name, or ``timed_out``.
        ``models`` has a `Model`, an answer or a list of answers for each name; see `ScriptedModel`.
        ``children`` has a result for each program or its name, or for the id of a child.
        ``reviews`` has the decisions of reviewers, in the order of the questions: ``[approved(),
        rejected("old")]``. ``maps`` has results of maps of earlier nodes, by the id of the map.

        Raises:
            InvalidRequest: ``now`` is not a point in time, a key of ``calls`` is no function, or no
                event loop runs.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise InvalidRequest(
                "make a FakeContext inside of a coroutine, such as an async test"
            ) from None
        self._real = isinstance(calls, RealCalls)
        self._answers: dict[object, Any] = {}
        if not isinstance(calls, RealCalls):
            for key, answer in (calls or {}).items():
                self._answers[key if isinstance(key, str) else _identity(key)] = answer
        now_ms = moment_ms(now, "now")
        self._provided = Provided(
            now_ms=now_ms,
            signals={
                name: list(cast(Sequence[Any], given)) if isinstance(given, list) else given
                for name, given in (signals or {}).items()
            },
            models={name: _model(name, given) for name, given in (models or {}).items()},
            children={
                key if isinstance(key, str) else key.name: answer
                for key, answer in (children or {}).items()
            },
            waits=[],
            sleeps=[],
            started=[],
        )
        self._map_results = _mapped_items(maps or {})
        expires_ms = now_ms + _EXPIRES_MS
        self._facts = _RunFacts(run_id, tenant, dict(labels or {}), attempt, expires_ms)
        self.calls: list[MadeCall] = []
        """The calls that the node made, in order; an attempt is not a call of its own."""
        self.progress_reports: list[tuple[float | None, str]] = []
        """What the node reported of its progress."""
        self.callbacks: list[str] = []
        """The names of the signals for which the node made addresses."""
        self.reviews: list[AskedReview] = []
        """The reviews that the node asked for, in order."""
        self._decisions, self._state = list(reviews), cast(Mapping[str, Any], AnyFields())
        self._begin_visit(None, "test")

    @property
    def waits(self) -> Sequence[AskedWait]:
        """The waits that the node began, in order."""
        return self._provided.waits

    @property
    def sleeps(self) -> Sequence[float]:
        """The seconds of each sleep of the node."""
        return self._provided.sleeps

    @property
    def children(self) -> Sequence[StartedChild]:
        """The children that the node started, in order."""
        return self._provided.started

    @property
    def models(self) -> Mapping[str, Model]:
        """The models by name; a `ScriptedModel` knows the requests that it got."""
        return self._provided.models

    def progress(self, fraction: float | None, message: str = "", *, stream: bool = False) -> None:
        """Note how far the node is; see `progress_reports`."""
        self.progress_reports.append((fraction, message))

    @tracked
    async def callback(
        self, condition: SignalName[Any] | str, *, expires: Duration | None = None
    ) -> str:
        """Return an address that no system can reach; see `callbacks`."""
        name = callback_signal(self._visit.external.program, condition)
        self.callbacks.append(name)
        return f"{_CALLBACKS}/{name}-{len(self.callbacks)}"

    def child(self, id: str, graph: Program[Any, ResultT] | None = None) -> Child[ResultT]:
        """Return a handle on a child that an earlier node started; ``children`` has its result."""
        self._fake_children.note_program(id, graph)
        return super().child(id, graph)

    def _visible_state(self) -> Mapping[str, Any]:
        return self._state

    async def _ask_reviewers(self, request: ReviewRequest) -> ReviewDecision[Any]:
        if not self._visit.may_wait:
            raise NotPausable(f"node {self._visit.node!r} has pausable='no', and so may not wait")
        self.reviews.append(asked_review(request))
        question = request.content.question
        if not self._decisions:
            raise self._provided.refuse(
                f"the node asks for the review {question!r:.80}, and the test provides no "
                "decision: pass FakeContext(reviews=[approved()])"
            )
        try:
            answer = self._decisions.pop(0)
            return given_decision(answer, request, now_ms=self._provided.now_ms)
        except Mismatch as mismatch:
            raise self._provided.refuse(
                f"the values that the test provides for the review {question!r:.80} do not fit its "
                f"form: {mismatch}"
            ) from None

    async def call_item(
        self, function: Callable[..., Any], value: Any, *, with_context: bool
    ) -> Any:
        """Call an item function: a plain one in a thread, as in a run."""
        if not is_sync_function(function):
            return await (function(value, self) if with_context else function(value))
        arguments = (value, BlockingContext(self, self._visit)) if with_context else (value,)
        threads = self._visit.external.threads
        return await asyncio.get_running_loop().run_in_executor(threads, function, *arguments)

    # --- for Graph.run_node -----------------------------------------------------------------------

    def enter_node(self, program: Program, node: Node, state: Mapping[str, Any]) -> object:
        """Return the context as the node gets it; it blocks if the node is a plain function."""
        self._state = state
        visit = self._begin_visit(program, node.name)
        visit.may_wait = node.pausable != "no"
        # A timeout of the test around the whole node is no mistake of the node.
        visit.finds_timeouts = outer_timeout(visit.call_ids.task, None) is None
        return self._blocking(self, self._visit) if node.is_sync else self

    async def leave_node(self) -> None:
        """Check that the node awaited what it asked for, and that the test provided all of it.

        Raises:
            NotAwaited: the node did not await a request.
            NotProvided: the node asked for something that the test does not provide.
        """
        self._visit.external.threads.shutdown()
        await self._visit.requests.check_finished(f"node {self._visit.node!r:.80}")
        if self._provided.missing is not None:
            raise self._provided.missing

    def _begin_visit(self, program: Program | None, node: str) -> FakeVisit:
        visit = FakeVisit(self._provided, self._facts, program, node)
        waits = FakeWaits(visit)
        self._visit = cast(Any, visit)
        self._blocking = BlockingContext
        self._requests = visit.requests
        self._waits = waits
        self._children = self._fake_children = FakeChildren(visit, waits)
        self._maps = FakeMaps(visit, waits, self, self._map_results)
        host: Any = FakeCallHost(visit, waits)
        self._call_host = host
        self._calls = Calls(host)
        return visit

    def _call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: CallOptions,
    ) -> Coroutine[Any, Any, Any]:
        tool = contract_of(function)
        self.calls.append(MadeCall(tool.name, args, dict(kwargs)))
        if self._real:
            return super()._call(tool, args, kwargs, options)
        for key in (function_identity(tool.function), tool.name):
            if key in self._answers:
                standin = _standin(tool, self._answers[key])
                return super()._call(standin, args, kwargs, options)
        raise self._provided.refuse(
            f"the node calls {tool.name!r}, and the test provides no answer: pass "
            f"FakeContext(calls={{{tool.name!r}: result}}), or calls=REAL to call the function"
        )


def _mapped_items(maps: Mapping[str, Sequence[Any]]) -> dict[str, list[MappedItem]]:
    """Return the results of maps as readers of the maps get them."""
    return {
        map: [MappedItem(index, result) for index, result in enumerate(results)]
        for map, results in maps.items()
    }


def _identity(function: Callable[..., Any]) -> object:
    return function_identity(contract_of(function).function)


def _standin(tool: Tool[..., Any], answer: Any) -> Tool[..., Any]:
    """Return a tool with the contract of another one, that gives an answer of the test."""

    async def give(*args: Any, **kwargs: Any) -> Any:
        # What the engine passes: the test's function need not take it.
        key = kwargs.pop("idempotency_key") if tool.takes_key else None
        if tool.takes_context:
            del kwargs["ctx"]
        return await give_answer(answer, f"the call {tool.name!r}", args, kwargs, key=key)

    standin = copy.copy(tool)
    standin.returns  # noqa: B018  it is read from the function, and kept
    standin.function = give
    standin.plain = False
    return standin


def _model(name: str, given: Any) -> Model:
    if callable(getattr(given, "answer", None)):
        return cast(Model, given)
    answers = cast(list[Any], given) if isinstance(given, list) else [given]
    return ScriptedModel(answers, name=name)
