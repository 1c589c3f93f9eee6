"""Questions to models: each is a call, so it is paid once; and checked, so that it is of use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

import msgspec

from holdfast.display import log_named
from holdfast.engine.effects.calls import Asked, Calls
from holdfast.engine.effects.charges import Charged
from holdfast.engine.effects.quotas import Pass
from holdfast.engine.effects.resources import Means
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
from holdfast.model.answers import admitted_answer
from holdfast.model.invocation import Answer, Model, Request, ToolSpec
from holdfast.model.policy import Retry
from holdfast.model.quota import Cost, Quota
from holdfast.model.spending import Spending
from holdfast.records.invocation import prompt_hash
from holdfast.records.keys import RunKey

__all__ = ["Asker", "Invocation", "admitted_fallback", "invoked"]

T = TypeVar("T")

_log = log_named("holdfast.models")
_RETRY = Retry(attempts=5, first_seconds=1.0, most_seconds=60.0, on=(ModelUnavailable,))


class Invocation(msgspec.Struct, frozen=True, kw_only=True):
    """A question as a node asks it."""

    messages: Any
    tools: Sequence[ToolSpec] = ()
    tool_choice: str | None = None
    output: Any = None
    """The type that the answer's value shall have."""
    check: Callable[[Answer], bool] | None = None
    """Says whether an answer is of use."""
    params: Mapping[str, Any] = {}
    key: str | None = None
    retry: Retry | None = None
    timeout_ms: int | None = None
    share_ms: int | None = None
    """For how long other runs are given the answer, too; None where it is the run's own."""
    stream: bool = False
    """Whether its text can be followed as it comes."""


class Asker(Protocol):
    """The visit of a node that asks."""

    @property
    def run(self) -> RunKey: ...

    @property
    def means(self) -> Means: ...

    def text_writer(self, call: str, name: str) -> TokenWriter: ...

    async def patiently(self, action: Callable[[], Awaitable[T]], /) -> T: ...

    async def admitted_in_place(
        self, call: str, quota: Quota | None, cost: Cost
    ) -> Pass | None: ...


def admitted_fallback(fallback: object) -> tuple[str, ...]:
    """Return the names of those who are asked next.

    Raises:
        InvalidRequest: it is neither a name nor a list of names.
    """
    names = cast(Sequence[object], fallback if isinstance(fallback, list | tuple) else (fallback,))
    if not all(isinstance(name, str) for name in names):
        raise InvalidRequest(
            f"fallback is the name of a model, or a list of names, not {fallback!r:.80}",
            field="fallback",
        )
    return cast(tuple[str, ...], tuple(names))


async def invoked(visit: Asker, calls: Calls, names: Sequence[str], asked: Invocation) -> Answer:
    """Return the first answer that is of use, of models that are asked one after the other.

    Raises:
        UnknownModel: there is no model of that name.
        InvalidPrompt: what is asked is malformed.
        CallFailed: the last one could not answer.
        InvalidAnswer: its answer is of no use.
        PriceUnknown: dollars are limited, and nobody said what the model costs.
    """
    # All of them, before anything is paid.
    questions = [_question(visit, calls, name, asked, n) for n, name in enumerate(names)]
    *others, last = questions
    for question in others:
        try:
            return _checked(await question.answered(), asked)
        except (CallFailed, InvalidAnswer):
            continue
    return _checked(await last.answered(), asked)


def _question(visit: Asker, calls: Calls, name: str, asked: Invocation, number: int) -> _Question:
    model = visit.means.models.get(name)
    if model is None:
        known = ", ".join(sorted(visit.means.models)) or "none"
        raise UnknownModel(f"there is no model {name!r:.80}; there are: {known}")
    # Said, so that no service takes a default of its own, and more than was set aside.
    params = dict(asked.params)
    if params.get("max_tokens") is None:
        params["max_tokens"] = model.max_tokens
    request = Request.of(
        model.name,
        asked.messages,
        tools=asked.tools,
        tool_choice=asked.tool_choice,
        output=None if asked.output is None else schema_of(asked.output),
        **params,
    )
    key = asked.key if asked.key is None or not number else f"{asked.key}.{number}"
    return _Question(visit, calls, name, model, request, msgspec.structs.replace(asked, key=key))


class _Shared(msgspec.Struct, frozen=True):
    """An answer, and whether another run had asked."""

    answer: Answer
    others: bool = False


class _Question:
    """One question to one model, with what it costs: see `Price`."""

    def __init__(
        self,
        visit: Asker,
        calls: Calls,
        name: str,
        model: Model,
        request: Request,
        asked: Invocation,
    ) -> None:
        self._visit = visit
        self._calls = calls
        self._name = f"model.{name}"
        self._model = model
        self._request = request
        self._asked = asked
        self._quota = visit.means.quotas.get(name)
        self._call = ""
        self._tokens = model.tokens_at_most(request)
        money = 0 if model.price is None else model.price.cost_at_most(self._tokens)
        self.most = Spending(sum(self._tokens), money)
        self.cost = Cost(1, self.most.tokens, self.most.nanodollars)
        self.unknown = ""
        if model.price is None:
            self.unknown = (
                f"nobody said what the model {model.name!r} costs, and dollars are limited; "
                "give its adapter a price"
            )

    async def answered(self) -> Answer:
        """Return the answer, from its record where there is one."""
        asked = self._asked
        self._call = self._calls.name(self._name, asked.key)
        recorded = await self._calls.call(
            self._call,
            Asked(
                tool=Tool(self._ask, name=self._name),
                args=(self._request,),
                kwargs={},
                key=asked.key,
                written=asked.stream,  # text lies beside a run that is there
                retry=asked.retry or _RETRY,
                timeout_ms=asked.timeout_ms,
                price=self,
                # One that another run may have asked takes nothing before it is known to be new.
                quota=self._quota if asked.share_ms is None else None,
            ),
        )
        return msgspec.convert(recorded, Answer)

    def charged(self, value: _Shared) -> Charged:
        usage, price = value.answer.usage, self._model.price
        money = 0 if price is None else price.cost(usage)
        cost = Spending(usage.input_tokens + usage.output_tokens, money)
        if value.others:
            return Charged(value.answer, saved=cost, by="cache")
        return Charged(value.answer, spent=cost)

    def unpaid(self, error: Exception) -> bool:
        return isinstance(error, ModelRefused) or (
            isinstance(error, ModelUnavailable) and error.unpaid
        )

    # What it returns is not what is recorded, which is the answer alone: see `charged`.
    async def _ask(self, request: Request, idempotency_key: str) -> Any:
        keyed = msgspec.structs.replace(request, idempotency_key=idempotency_key)
        if self._asked.share_ms is None:
            return _Shared(await self._told(keyed))
        return await self._found(keyed)

    async def _found(self, request: Request) -> _Shared:
        """Return the answer that the runs of a tenant share; ask for all where there is none."""
        visit = self._visit

        async def ask() -> Any:
            admission = await visit.admitted_in_place(self._call, self._quota, self.cost)
            try:
                answer = await self._told(request)
                if admission is not None:
                    spent = self.charged(_Shared(answer)).spent
                    admission.settle(Cost(1, spent.tokens, spent.nanodollars))
            finally:
                if admission is not None:
                    admission.release()
            return msgspec.to_builtins(answer)

        value, others = await visit.means.answers.answered(
            visit.run.tenant,
            prompt_hash(request),
            ask,
            told=visit.run.told,
            keep_ms=self._asked.share_ms or 0,
            patiently=visit.patiently,
            kind=Answer,
        )
        answer = msgspec.convert(value, Answer)
        if others and self._asked.stream:
            async with visit.text_writer(self._call, self._name) as writer:
                writer.emit(answer.text)
        return _Shared(answer, others)

    async def _told(self, request: Request) -> Answer:
        if not self._asked.stream:
            answer = await self._model.answer(request, None)
        else:
            async with self._visit.text_writer(self._call, self._name) as writer:
                answer = await self._model.answer(request, writer.emit)
        admitted = admitted_answer(answer, self._tokens)
        if admitted.usage is not answer.usage:
            _log.warning(
                "%s: the usage of an answer of %.80r is out of bounds; it counts as the %d and %d "
                "tokens that were reserved for it",
                self._visit.run.told,
                admitted.model,
                *self._tokens,
            )
        return admitted


def _checked(answer: Answer, asked: Invocation) -> Answer:
    """Return an answer with its value as the type that was asked for, if it is of use."""
    if asked.output is not None and not answer.tool_calls:
        answer = msgspec.structs.replace(answer, value=validated(answer.json(), asked.output))
    if asked.check is not None:
        passed = asked.check(answer)
        if not isinstance(passed, bool):
            # A coroutine would pass for a yes, and so would the None of a search in vain.
            raise InvalidRequest(
                f"a check must return True or False, got {type(passed).__name__:.80}", field="check"
            )
        if not passed:
            raise InvalidAnswer(f"the answer of {answer.model!r:.80} did not pass the check")
    return answer
