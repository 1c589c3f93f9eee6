"""Asks models: each question is a call, so it is paid once, and its answer is checked."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NoReturn, Protocol, TypeAlias, TypeVar, cast

import msgspec

from holdfast.display import get_logger
from holdfast.engine.effects.call_host import CallPermits, CallRequest
from holdfast.engine.effects.calls import Calls
from holdfast.engine.effects.charges import ChargedResult
from holdfast.engine.effects.model_bounds import ModelBounds, model_spending
from holdfast.engine.effects.resources import Resources, is_model_name
from holdfast.engine.history.text_stream import TokenWriter
from holdfast.errors import (
    CallFailed,
    InvalidAnswer,
    InvalidRequest,
    ModelRefused,
    ModelUnavailable,
    UnknownModel,
)
from holdfast.graph.schemas import schema_of, validated
from holdfast.graph.tool import Tool
from holdfast.model.answer_validation import validated_answer
from holdfast.model.arguments import Recording
from holdfast.model.durations import Duration, days, milliseconds_of
from holdfast.model.invocation import Answer, Model, Request, ToolSpec
from holdfast.model.needs import Needs
from holdfast.model.policy import Retry
from holdfast.model.quota import Cost
from holdfast.model.spending import Spending
from holdfast.records.keys import RunKey
from holdfast.records.prompt_hash import prompt_hash

__all__ = [
    "Invocation",
    "ModelCallHost",
    "OnExhausted",
    "accepts_last",
    "admitted_fallback",
    "invoke_models",
    "share_ms",
]

T = TypeVar("T")

OnExhausted: TypeAlias = Literal["fail", "accept"]
"""What becomes of a question if no answer passed the check: it fails, or the last one is taken."""

_log = get_logger("holdfast.models")
_SHARE_DEFAULT = days(1)
_DEFAULT_RETRY = Retry(attempts=5, backoff=1.0, backoff_max=60.0, on=(ModelUnavailable,))


class Invocation(msgspec.Struct, frozen=True, kw_only=True):
    """A question to a model, as a node asks it."""

    messages: Any
    tools: Sequence[ToolSpec] = ()
    tool_choice: str | None = None
    output: Any = None
    """The type of the answer's value."""
    check: Callable[[Answer], bool] | None = None
    """Returns whether an answer is acceptable."""
    accepts_last: bool = False
    """Whether the last answer is accepted if none passed the check."""
    params: Mapping[str, Any] = {}
    key: str | None = None
    retry: Retry | None = None
    timeout_ms: int | None = None
    share_ms: int | None = None
    """How long other runs may use the answer, too; None if it is not shared."""
    stream: bool = False
    """Whether its text is streamed."""
    record: Recording | None = None
    """Whether the prompt is recorded; None leaves that to the process."""


class ModelCallHost(Protocol):
    """The visit of a node that asks a model."""

    @property
    def run(self) -> RunKey: ...

    @property
    def resources(self) -> Resources: ...

    def text_writer(self, call: str, name: str) -> TokenWriter: ...

    async def retry_store_errors(self, action: Callable[[], Awaitable[T]], /) -> T: ...

    @property
    def permits(self) -> CallPermits: ...

    @property
    def needs(self) -> Needs: ...

    async def await_worker_with_model(self, name: str) -> NoReturn: ...


def admitted_fallback(fallback: object) -> tuple[str, ...]:
    """Return the names of the fallback models.

    Raises:
        InvalidRequest: it is neither a name nor a list of names.
    """
    names = cast(Sequence[object], fallback if isinstance(fallback, list | tuple) else (fallback,))
    if not all(isinstance(name, str) for name in names):
        raise InvalidRequest(
            f"fallback must be the name of a model or a list of names, got {fallback!r:.80}",
            field="fallback",
        )
    return cast(tuple[str, ...], tuple(names))


def accepts_last(on_exhausted: object, check: object) -> bool:
    """Return whether a question accepts the last answer if none passed its check.

    Raises:
        InvalidRequest: it is neither ``fail`` nor ``accept``, or there is no check.
    """
    if on_exhausted not in ("fail", "accept"):
        raise InvalidRequest(
            f"on_exhausted must be 'fail' or 'accept', got {on_exhausted!r:.80}",
            field="on_exhausted",
        )
    if on_exhausted == "accept" and check is None:
        raise InvalidRequest(
            "on_exhausted='accept' needs check=…: without one every answer is accepted",
            field="on_exhausted",
        )
    return on_exhausted == "accept"


def share_ms(share: bool | Duration) -> int | None:
    """Return how long other runs may use an answer, too; None if it is not shared."""
    if share is False:
        return None
    return milliseconds_of(_SHARE_DEFAULT if share is True else share, "share")


async def invoke_models(
    host: ModelCallHost, calls: Calls, names: Sequence[str], invocation: Invocation
) -> Answer:
    """Ask models one after the other, and return the first acceptable answer.

    Raises:
        UnknownModel: the graph does not declare a model of that name, or no model can have it.
        Paused: this process does not have one of the models.
        InvalidPrompt: the messages, tools or parameters are malformed.
        CallFailed: the last model could not answer.
        InvalidAnswer: the answer of the last model is not acceptable.
        PriceUnknown: dollars are limited, and the model has no price.
    """
    # All are looked up and prepared, and so checked, before the first one is paid.
    needs, models = host.needs, host.resources.models
    for name in names:
        if needs.complete and name not in needs.models:
            declared = ", ".join(sorted(needs.models)) or "none"
            raise UnknownModel(
                f"the graph does not declare model {name!r:.80}: add it to Graph(models=…) or "
                f"@workflow(models=…); declared models: {declared}"
            )
        if name not in models:
            if not is_model_name(name):
                raise UnknownModel(f"no model can have the name {name!r:.80}")
            await host.await_worker_with_model(name)
    model_calls = [_model_call(host, calls, name, invocation, n) for n, name in enumerate(names)]
    rejected: Answer | None = None
    for number, model_call in enumerate(model_calls, 1):
        try:
            answer = _typed_answer(await model_call.get_answer(), invocation)
            answer = _judged_answer(answer, invocation)
            if answer.passed is not False:
                return answer
            rejected = answer
        except (CallFailed, InvalidAnswer):
            if number == len(model_calls) and not (invocation.accepts_last and rejected):
                raise
    assert rejected is not None  # an answer that did not pass is the only other way here
    if invocation.accepts_last:
        return rejected
    raise InvalidAnswer(f"the answer of {rejected.model!r:.80} did not pass the check")


def _model_call(
    host: ModelCallHost, calls: Calls, name: str, invocation: Invocation, number: int
) -> _ModelCall:
    model = host.resources.models[name]
    # Always sent: the default of a service may be more than what was reserved.
    params = dict(invocation.params)
    if params.get("max_tokens") is None:
        params["max_tokens"] = model.max_tokens
    request = Request.of(
        model.name,
        invocation.messages,
        tools=invocation.tools,
        tool_choice=invocation.tool_choice,
        output=None if invocation.output is None else _output_schema(invocation.output),
        **params,
    )
    key = invocation.key if invocation.key is None or not number else f"{invocation.key}.{number}"
    return _ModelCall(
        host, calls, name, model, request, msgspec.structs.replace(invocation, key=key)
    )


class _SourcedAnswer(msgspec.Struct, frozen=True):
    """An answer, and whether it came from another run."""

    answer: Answer
    from_cache: bool = False


class _ModelCall:
    """One question to one model, with its price: see `CallPrice`."""

    def __init__(
        self,
        host: ModelCallHost,
        calls: Calls,
        name: str,
        model: Model,
        request: Request,
        invocation: Invocation,
    ) -> None:
        self._host = host
        self._calls = calls
        self._name = f"model.{name}"
        self._model = model
        self._request = request
        self._invocation = invocation
        self._quota = host.resources.quotas.get(name)
        self._call = ""
        self._max_tokens = model.tokens_max(request)
        self.max_spending = model_spending(model, self._max_tokens)
        self.bounds = ModelBounds(
            model, request, self._max_tokens, host.resources.token_estimates, host.run
        )
        self.quota_cost = Cost(1, self.max_spending.tokens, self.max_spending.nanodollars)
        self.unknown_reason = ""
        if model.price is None:
            self.unknown_reason = (
                f"the model {model.name!r} has no price, and usd is limited; "
                "give its adapter a price"
            )

    async def get_answer(self) -> Answer:
        """Return the answer, from its record if there is one."""
        invocation = self._invocation
        self._call = self._calls.next_id(self._name, invocation.key)
        recorded = await self._calls.call(
            self._call,
            CallRequest(
                tool=Tool(self._perform, name=self._name),
                args=(self._request,),
                kwargs={},
                key=invocation.key,
                needs_stored_run=invocation.stream,  # readers find the text by the run's row
                retry=invocation.retry or _DEFAULT_RETRY,
                timeout_ms=invocation.timeout_ms,
                price=self,
                # A shared question takes a permit only when no other run has asked it.
                quota=self._quota if invocation.share_ms is None else None,
                record=invocation.record,
                prompt=self._request,
            ),
        )
        return msgspec.convert(recorded, Answer)

    def charged(self, value: _SourcedAnswer) -> ChargedResult:
        usage, price = value.answer.usage, self._model.price
        nanodollars = 0 if price is None else price.cost_nanodollars(usage)
        cost = Spending(usage.input_tokens + usage.output_tokens, nanodollars)
        if value.from_cache:
            return ChargedResult(value.answer, saved=cost, source="cache")
        return ChargedResult(value.answer, spent=cost)

    def is_unpaid(self, error: Exception) -> bool:
        return isinstance(error, ModelRefused) or (
            isinstance(error, ModelUnavailable) and error.unpaid
        )

    # Only the answer is recorded, without its source: see `charged`.
    async def _perform(self, request: Request, idempotency_key: str) -> Any:
        keyed_request = msgspec.structs.replace(request, idempotency_key=idempotency_key)
        if self._invocation.share_ms is None:
            sourced = _SourcedAnswer(await self._ask_model(keyed_request))
        else:
            sourced = await self._ask_shared(keyed_request)
        if not self._invocation.accepts_last:
            return sourced
        # Recorded with the answer, so that a node that runs again accepts the same answer.
        with suppress(Exception):  # the node sees the error: it checks the answer again
            judged = _judged_answer(
                _typed_answer(sourced.answer, self._invocation), self._invocation
            )
            answer = msgspec.structs.replace(sourced.answer, passed=judged.passed)
            return msgspec.structs.replace(sourced, answer=answer)
        return sourced

    async def _ask_shared(self, request: Request) -> _SourcedAnswer:
        """Return the answer that the runs of a tenant share; ask the model if there is none."""
        host = self._host

        async def ask() -> Any:
            permit = await host.permits.acquire_in_place(self._call, self._quota, self.quota_cost)
            try:
                answer = await self._ask_model(request)
                if permit is not None:
                    spent = self.charged(_SourcedAnswer(answer)).spent
                    permit.report_usage(Cost(1, spent.tokens, spent.nanodollars))
            finally:
                if permit is not None:
                    permit.release()
            return msgspec.to_builtins(answer)

        value, others = await host.resources.shared_answers.get_or_ask(
            host.run.tenant,
            prompt_hash(request),
            ask,
            log_label=host.run.log_name,
            keep_ms=self._invocation.share_ms or 0,
            retry_store=host.retry_store_errors,
            answer_type=Answer,
        )
        answer = msgspec.convert(value, Answer)
        if others and self._invocation.stream:
            async with host.text_writer(self._call, self._name) as writer:
                writer.emit(answer.text)
        return _SourcedAnswer(answer, others)

    async def _ask_model(self, request: Request) -> Answer:
        if not self._invocation.stream:
            answer = await self._model.answer(request, None)
        else:
            async with self._host.text_writer(self._call, self._name) as writer:
                answer = await self._model.answer(request, writer.emit)
        admitted = validated_answer(answer, self._max_tokens)
        if admitted.usage is not answer.usage:
            _log.warning(
                "%s: the usage that %.80r reported is out of bounds; the reserved %d and %d tokens "
                "count instead",
                self._host.run.log_name,
                admitted.model,
                *self._max_tokens,
            )
        else:
            self.bounds.report_usage(admitted.usage)
        spent = self.charged(_SourcedAnswer(admitted)).spent
        self._host.resources.model_usage.add(self._model.name, admitted.usage, spent)
        return admitted


def _typed_answer(answer: Answer, invocation: Invocation) -> Answer:
    """Return the answer with its value in the requested type; raise if it does not fit."""
    if invocation.output is None or answer.tool_calls:
        return answer
    return msgspec.structs.replace(answer, value=validated(answer.json(), invocation.output))


def _judged_answer(answer: Answer, invocation: Invocation) -> Answer:
    """Return the answer with what the check says of it, or with what it said when it was new."""
    if invocation.check is None:
        return answer if answer.passed is None else msgspec.structs.replace(answer, passed=None)
    if invocation.accepts_last and answer.passed is not None:
        return answer
    passed: object = invocation.check(answer)
    if not isinstance(passed, bool):
        # A coroutine would count as True, and a forgotten return as False.
        hint = ""
        if inspect.iscoroutine(passed):
            passed.close()
            hint = "; check must be a plain function"
        raise InvalidRequest(
            f"a check must return True or False, got {type(passed).__name__:.80}{hint}",
            field="check",
        )
    return msgspec.structs.replace(answer, passed=passed)


def _output_schema(output: Any) -> dict[str, Any]:
    if isinstance(output, str):
        raise InvalidRequest(
            f"output must be a type, got the text {output!r:.80}: pass the class itself, without "
            "quotes",
            field="output",
        )
    return schema_of(output)
