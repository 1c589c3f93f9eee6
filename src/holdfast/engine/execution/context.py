"""The context of a node: it identifies the visit, makes calls, waits, and starts children."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from holdfast.engine.effects.begun_requests import tracked
from holdfast.engine.effects.call_host import CallRequest
from holdfast.engine.effects.call_options import (
    NO_OPTIONS,
    Caller,
    CallOptions,
    admitted_options,
    check_arguments,
)
from holdfast.engine.effects.call_signatures import typed_call
from holdfast.engine.effects.calls import Calls
from holdfast.engine.effects.invocations import (
    Invocation,
    OnExhausted,
    accepts_last,
    admitted_fallback,
    invoke_models,
    share_ms,
)
from holdfast.engine.effects.model_signatures import typed_ask
from holdfast.engine.execution.callbacks import make_callback
from holdfast.engine.execution.child import Child
from holdfast.engine.execution.conditions import ChildCondition, packed_about, takes_max_wait
from holdfast.engine.execution.group_waits import wait_for_first
from holdfast.engine.execution.live_reports import VisitProgress
from holdfast.engine.execution.map_context import MapContext
from holdfast.engine.execution.review_signatures import typed_review
from holdfast.engine.execution.reviews import ReviewRequest, review_request, reviewed
from holdfast.engine.execution.typed_signals import awaited_type, typed_payload
from holdfast.engine.execution.visit import Visit
from holdfast.engine.execution.visit_calls import VisitCalls
from holdfast.engine.execution.visit_children import VisitChildren
from holdfast.engine.execution.visit_maps import VisitMaps
from holdfast.engine.execution.visit_waits import VisitWaits
from holdfast.engine.journal.endings import result_of
from holdfast.engine.runs.argument_checks import validated_budget
from holdfast.engine.runs.children import ChildRequest
from holdfast.errors import InvalidRequest, WaitTimedOut
from holdfast.graph.tool import contract_of
from holdfast.model.arguments import Recording, validated_recording
from holdfast.model.budget import Budget
from holdfast.model.conditions import Timer, WaitAnswer
from holdfast.model.durations import Duration, milliseconds_of
from holdfast.model.event import TimerFired
from holdfast.model.invocation import Answer, ToolSpec
from holdfast.model.names import validated_labels, validated_name
from holdfast.model.policy import Retry, validated_retry
from holdfast.model.program import Program, ResultT
from holdfast.model.quota import Quota
from holdfast.model.review import ReviewDecision
from holdfast.model.signals import SignalName
from holdfast.model.wait import SignalWait, TimerWait

__all__ = ["Context", "caller_with", "calls_of"]

T = TypeVar("T")
R = TypeVar("R")


class Context(MapContext):
    """What a node knows of its run, and how it makes calls, waits and starts children."""

    def __init__(self, visit: Visit, blocking: Callable[[Context, Visit], object]) -> None:
        super().__init__(visit)
        self._blocking = blocking
        self._requests = visit.requests
        self._waits = VisitWaits(visit)
        self._children = VisitChildren(visit, self._waits)
        self._maps = VisitMaps(visit, self._waits)
        self._call_host = VisitCalls(visit, self._waits)
        self._calls = Calls(self._call_host)
        self._progress = VisitProgress(visit)

    # --- calls ------------------------------------------------------------------------------------

    # Positional only, so that a function may have parameters of these names, too.
    @typed_call
    @tracked
    async def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function with side effects, and record its result in the journal.

        A node that runs again gets the recorded result. All arguments are passed to the function;
        `with_options` gives the call a key, retries, a timeout or a quota. The function may be
        plain or a coroutine function. A parameter ``idempotency_key`` gets the key of this call,
        which is the same in each attempt. A parameter ``ctx`` gets this context.

        Raises:
            CallFailed: the function raised, and the call is not retried.
            InvalidRequest: an argument is named ``ctx`` or ``idempotency_key``; the engine passes
                these.
            InvalidResult: the result cannot be stored.
        """
        return await self._call(function, args, kwargs, NO_OPTIONS)

    def with_options(
        self,
        *,
        key: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        quota: Quota | None = None,
        heartbeat: Duration | None = None,
        record: Recording | None = None,
    ) -> Caller:
        """Return a caller with options: ``ctx.with_options(timeout=5).call(fetch, url)``.

        By default the key of a call follows from its position in the node. Pass ``key`` for calls
        in no fixed order, or to use a key of your business. ``retry``, ``timeout`` and ``quota``
        replace what `holdfast.tool` declared. With ``heartbeat`` the call fails with
        `HeartbeatTimedOut` if its function does not call `heartbeat` for that long. ``record`` says
        whether the history shows its arguments; see `Recording`.

        Raises:
            InvalidRequest: an option has an invalid value.
        """
        options = admitted_options(
            key=key,
            retry=retry,
            timeout=timeout,
            quota=quota,
            heartbeat=heartbeat,
            record=record,
        )
        return Caller(self._call, options, self._requests)

    def heartbeat(self) -> None:
        """Report that the call that runs now makes progress; see `with_options`."""
        self._calls.heartbeat()

    def progress(self, fraction: float | None, message: str = "", *, stream: bool = False) -> None:
        """Report how far the node is: ``ctx.progress(0.4, "page 12 of 30")``.

        Followers with ``ephemeral=True`` in this process get it at once. It is not recorded and
        costs nothing. With ``stream``, followers in other processes get it, too: at most four times
        a second it is written beside the streamed text. ``fraction`` is from 0 to 1, or None if it
        is not known.

        Raises:
            InvalidRequest: the fraction is not from 0 to 1, or the message has more than 1 KB.
        """
        self._progress.report(fraction, message, stream=stream)

    def _call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: CallOptions,
    ) -> Coroutine[Any, Any, Any]:
        tool = contract_of(function)
        if kwargs or tool.at_most_once:
            check_arguments(tool, args, kwargs)
        asked = CallRequest(
            tool=tool,
            args=args,
            kwargs=kwargs,
            key=options.key,
            retry=options.retry or tool.retry,
            timeout_ms=tool.timeout_ms if options.timeout_ms is None else options.timeout_ms,
            heartbeat_ms=options.heartbeat_ms,
            context=self._blocking(self, self._visit) if tool.plain else self,
            quota=options.quota or tool.quota,
            record=options.record,
            asked_by=options.asked_by,
            reviewed=options.reviewed,
            tell_edit=options.tell_edit,
        )
        return self._calls.call(self._calls.next_id(tool.name, options.key), asked)

    @typed_ask
    @tracked
    async def model(
        self,
        name: str,
        messages: Any,
        *,
        output: Any = None,
        tools: Sequence[ToolSpec] = (),
        tool_choice: str | None = None,
        check: Callable[[Answer], bool] | None = None,
        fallback: str | Sequence[str] = (),
        on_exhausted: OnExhausted = "fail",
        share: bool | Duration = False,
        stream: bool = False,
        key: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        stop: str | Sequence[str] | None = None,
        seed: int | None = None,
        extra: Mapping[str, Any] | None = None,
        record: Recording | None = None,
    ) -> Answer:
        """Ask a model, and record its answer in the journal.

        A node that runs again gets the recorded answer. The maximum cost of the answer is reserved
        from the run's budget before the model is asked.

        ``messages`` is a text, or a list of ``{"role": …, "content": …}``. With a type as
        ``output``, the answer's ``value`` is of that type. ``check`` gets the answer. If it returns
        False, if the answer does not fit ``output``, or if the model cannot answer, the next model
        of ``fallback`` is asked. If no answer passed the check, ``on_exhausted="accept"`` returns
        the last one, and its ``passed`` is False. With ``share``, all runs of the tenant with the
        same request get one answer, for a day or for the given time. With ``stream``,
        `RunHandle.tokens` yields the text as it arrives. ``record`` says whether the history shows
        the prompt; see `Recording`. ``extra`` has parameters that only the service knows; their
        names must differ from those of the options here.

        Raises:
            UnknownModel: the graph does not declare a model of this name.
            InvalidPrompt: the request is malformed.
            CallFailed: no model answered; ``is_a(ModelRefused)`` says that a retry does not help.
            InvalidAnswer: the answer does not fit ``output``, or did not pass the check.
            PriceUnknown: the budget limits dollars, and the price of the model is unknown.
        """
        asked = Invocation(
            messages=messages,
            tools=tools,
            tool_choice=tool_choice,
            output=output,
            check=check,
            accepts_last=accepts_last(on_exhausted, check),
            params={
                "max_tokens": max_tokens,
                "temperature": temperature,
                "top_p": top_p,
                "stop": stop,
                "seed": seed,
                "extra": extra,
            },
            key=key,
            retry=None if retry is None else validated_retry(retry),
            timeout_ms=None if timeout is None else milliseconds_of(timeout, "timeout"),
            share_ms=share_ms(share),
            stream=stream,
            record=None if record is None else validated_recording(record),
        )
        names = (name, *admitted_fallback(fallback))
        return await invoke_models(self._call_host, self._calls, names, asked)

    # --- waiting ----------------------------------------------------------------------------------

    @tracked
    @takes_max_wait
    async def wait(
        self, condition: SignalName[T], *, about: Any = None, max_wait: Duration | None = None
    ) -> T:
        """Return the payload of the next signal of that name; pause the run until it arrives.

        ``about`` is any JSON value of at most 1 KB. The run's row, lists and history show it. If
        the signal has a type, here or in the graph's ``signals``, the payload is converted to it. A
        signal that does not fit is set aside, and the wait goes on.

        Raises:
            UnknownSignal: the graph declares its signals, and this is none of them.
            WaitTimedOut: no signal arrived within ``max_wait``, or before the run expired.
            NotPausable: the node was declared with ``pausable="no"``.
        """
        if not isinstance(condition, SignalName):
            raise InvalidRequest(
                f'condition must be signal("name"), got {condition!r:.80}', field="condition"
            )
        visit, name = self._visit, validated_name(condition.name, "a signal's name")
        awaited = awaited_type(visit.external.program, condition)
        kind, described = SignalWait(name), packed_about(about)
        key = kind.key(self._waits.next_number(kind))
        limit = None if max_wait is None else milliseconds_of(max_wait, "max_wait")
        answer = visit.strand.answers.get(key)
        if answer is None:
            wait = await self._waits.begin(kind, limit, key=key, packed_about=described)
            answer = await self._waits.resolve(wait, types={name: awaited})
        if isinstance(answer, TimerFired):
            raise WaitTimedOut(f"no signal {name!r} came in time")
        return typed_payload(answer, awaited)

    @tracked
    @takes_max_wait
    async def wait_any(
        self,
        *conditions: SignalName | Timer | ChildCondition,
        about: Any = None,
        max_wait: Duration | None = None,
    ) -> WaitAnswer:
        """Return which condition comes first, and what it brings; pause the run until then.

        A condition is ``signal("name")``, ``timer(duration)`` or a child. Of signals and ends of
        children, the one that was accepted first wins; the timer wins if none was accepted before
        its time. Exactly one is taken: signals that did not win stay for later waits, and children
        go on. ``about`` is any JSON value of at most 1 KB. The run's row, lists and history show
        it.

        Raises:
            WaitTimedOut: no condition came within ``max_wait``, or before the run expired.
            UnknownSignal: the graph declares its signals, and one of these is none of them.
            RunFailed, RunCancelled, RunExpired, RunQuarantined: a child won that did not finish.
            InvalidRequest: there is no condition, one is given twice, or one is something else.
            WaitBeyondExpiry: the only condition is a timer, and the run expires before its time.
            NotPausable: the node was declared with ``pausable="no"``.
            RunNotFound: there is no such child, or its result is no longer stored.
            ResultTaken: another visit took the result of a child, and it was not retried since.
        """
        return await wait_for_first(
            self._visit, self._waits, self._children, conditions, about=about, max_wait=max_wait
        )

    @tracked
    async def sleep(self, duration: Duration) -> None:
        """Return after that time. A long sleep pauses the run; the worker sits out a short one.

        Raises:
            WaitBeyondExpiry: the run expires before that.
            NotPausable: the sleep is long, and the node was declared with ``pausable="no"``.
        """
        visit, kind = self._visit, TimerWait()
        key = kind.key(self._waits.next_number(kind))
        span = milliseconds_of(duration, "sleep")
        if key in visit.strand.answers:
            return
        if span <= visit.hold_ms:
            await visit.claimed.sleep(span / 1000)
            await visit.record(self._waits.timer_fired(key), durable=False)
            return
        await self._waits.resolve(await self._waits.begin(kind, span, key=key))

    @tracked
    async def callback(
        self, condition: SignalName[Any] | str, *, expires: Duration | None = None
    ) -> str:
        """Return a signed address: a POST to it sends this signal, even before a node waits.

        It works until the run expires, or for ``expires`` if that is shorter. A node that runs
        again gets another address for the same signal, and both work.

        Raises:
            PublicUrlMissing: neither ``public_url`` nor ``HOLDFAST_PUBLIC_URL`` is set.
            UnknownSignal: the graph declares its signals, and this is none of them.
        """
        return await make_callback(self._visit, condition, expires)

    @typed_review
    @tracked
    async def review(
        self,
        question: str,
        *,
        show: Sequence[str] | Mapping[str, Any] | None = None,
        form: Any = None,
        values: Any = None,
        assignees: str | Sequence[str] = (),
        expires: Duration | None = None,
        remind_after: Duration | None = None,
        escalate_after: Duration | None = None,
        escalate_to: str | Sequence[str] = (),
        quorum: int = 1,
    ) -> ReviewDecision[Any]:
        """Ask people to approve something, and return their decision; pause the run until then.

        ``show`` names fields of the state, or is a dict with the data. With a type as ``form``, the
        reviewer may edit ``values`` of that type, and the decision's ``values`` are the result.
        Without ``assignees`` every reviewer may decide. At ``expires`` the decision's ``status`` is
        ``expired``. Reviewers are reminded after ``remind_after``; after ``escalate_after`` those
        in ``escalate_to`` may decide, too. ``quorum`` is the number of votes that decide.

        Raises:
            InvalidRequest: an argument is wrong.
            NotPausable: the node was declared with ``pausable="no"``.
        """
        self._visit.check_open()
        request = review_request(
            self._visible_state(),
            question,
            show=show,
            form=form,
            values=values,
            assignees=assignees,
            expires=expires,
            remind_after=remind_after,
            escalate_after=escalate_after,
            escalate_to=escalate_to,
            quorum=quorum,
        )
        return await self._ask_reviewers(request)

    def _visible_state(self) -> Mapping[str, Any]:
        return self._visit.claimed.execution.visible_state(self._visit.branch)

    async def _ask_reviewers(self, request: ReviewRequest) -> ReviewDecision[Any]:
        return await reviewed(self._visit, self._waits, request)

    # --- children ---------------------------------------------------------------------------------

    @tracked
    async def start(
        self,
        graph: Program[T, R],
        input: T | None = None,
        *,
        id: str | None = None,
        labels: Mapping[str, str] | None = None,
        pool: str | None = None,
        budget: Budget | None = None,
    ) -> Child[R]:
        """Start a child of this run, and return a handle to await its result.

        A node that runs again finds the child that it started before. A child has the tenant and
        the user of this run, and expires with it. It is cancelled if this run ends first. Without
        an ``id`` the engine derives one. Without a ``budget`` the child shares the budget of this
        run; otherwise its budget is reserved from that of this run.

        Raises:
            InvalidInput: the input does not fit the graph's state.
            InvalidGraph: the graph cannot be run.
            InvalidName: the id, the pool or a label is not a valid name.
            AlreadyExists: there is a run with this id that is not a child of this run.
        """
        visit = self._visit
        visit.check_open()
        if not isinstance(graph, Program):
            raise InvalidRequest(
                f"graph must be a Graph or a @workflow, got {graph!r:.80}", field="graph"
            )
        number, strand = self._children.next_number(), visit.strand
        if number in strand.children:
            return Child(self, strand.children[number], graph, self._requests)
        graph.check()
        wanted = ChildRequest(
            graph=graph,
            prepared=await self._children.prepare_input(graph, graph.admitted_input(input)),
            branch=visit.branch,
            visit=visit.visit,
            number=number,
            id=None if id is None else validated_name(id, "id"),
            labels=validated_labels(labels, pool=pool),
            budget=validated_budget(budget),
        )
        return Child(self, await self._children.start(wanted), graph, self._requests)

    @tracked
    async def run(
        self,
        graph: Program[T, R],
        input: T | None = None,
        *,
        id: str | None = None,
        labels: Mapping[str, str] | None = None,
        pool: str | None = None,
        budget: Budget | None = None,
    ) -> R:
        """Start a child and return its result; see `start` and `Child.result`."""
        child = await self.start(graph, input, id=id, labels=labels, pool=pool, budget=budget)
        return await child.result()

    def child(self, id: str, graph: Program[Any, ResultT] | None = None) -> Child[ResultT]:
        """Return a handle on a child that an earlier node started.

        Raises:
            InvalidName: the id is not a valid name.
        """
        return Child(self, validated_name(id, "id"), graph, self._requests)

    @tracked
    async def result_of(self, child: Child[R]) -> R:
        """Return a child's result; see `Child.result`."""
        return result_of(child.id, await self._children.wait_for(child.id), child.graph)


def calls_of(context: Context) -> Calls:
    """Return what makes the calls of a context."""
    return context._calls  # pyright: ignore[reportPrivateUsage]


def caller_with(context: Context, options: CallOptions) -> Caller:
    """Return a caller with options that only the engine sets."""
    make, requests = context._call, context._requests  # pyright: ignore[reportPrivateUsage]
    return Caller(make, options, requests)
