"""Questions to models: each is a call, so it is paid once; and checked, so that it is of use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.engine.calls import Asked, Calls, Charged, Price
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
from holdfast.model.invocation import Answer, Model, Request, ToolSpec
from holdfast.model.policy import Retry
from holdfast.model.spending import Spending

__all__ = ["Invocation", "Models", "admitted_models", "invoked"]

Models = Mapping[str, Model]

_RETRY = Retry(attempts=5, first_seconds=1.0, most_seconds=60.0, on=(ModelUnavailable,))


class Invocation(msgspec.Struct, frozen=True, kw_only=True):
    """A question as a node asks it."""

    messages: Any
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str | None = None
    output: Any = None
    """The type that the answer's value shall have."""
    check: Callable[[Answer], Any] | None = None
    """Says whether an answer is of use."""
    params: Mapping[str, Any] = {}
    key: str | None = None
    retry: Retry | None = None
    timeout_ms: int | None = None


async def invoked(models: Models, calls: Calls, names: Sequence[str], asked: Invocation) -> Answer:
    """Return the first answer that is of use, of models that are asked one after the other.

    Raises:
        UnknownModel: there is no model of that name.
        InvalidPrompt: what is asked is malformed.
        CallFailed: the last one could not answer.
        InvalidAnswer: its answer is of no use.
        PriceUnknown: there is a budget in dollars, and nobody said what the model costs.
    """
    for model in names:
        _model(models, model)  # all of them, before anything is paid
    *others, last = names
    for number, name in enumerate(others):
        try:
            return await _invoked(models, calls, name, asked, number)
        except (CallFailed, InvalidAnswer):
            continue
    return await _invoked(models, calls, last, asked, len(others))


async def _invoked(
    models: Models, calls: Calls, name: str, asked: Invocation, number: int
) -> Answer:
    model = _model(models, name)
    schema = None if asked.output is None else schema_of(asked.output)
    # Said, so that no service takes a default of its own, and more than was set aside.
    params: dict[str, Any] = {"max_tokens": model.max_tokens, **asked.params}
    request = Request.of(
        model.name,
        asked.messages,
        tools=asked.tools,
        tool_choice=asked.tool_choice,
        output=schema,
        **params,
    )
    key = asked.key if asked.key is None or not number else f"{asked.key}.{number}"

    async def ask(request: Request, idempotency_key: str) -> Answer:
        keyed = msgspec.structs.replace(request, idempotency_key=idempotency_key)
        return await model.answer(keyed, None)

    call = calls.name(f"model.{name}", key)
    answer = await calls.call(
        call,
        Asked(
            tool=Tool(ask, name=f"model.{name}"),
            args=(request,),
            kwargs={},
            key=key,
            retry=asked.retry or _RETRY,
            timeout_ms=asked.timeout_ms,
            price=_Price(model, request),
        ),
    )
    return _checked(answer, asked)


class _Price(Price):
    """What a question to a model costs."""

    def __init__(self, model: Model, request: Request) -> None:
        self._model = model
        tokens = model.tokens_at_most(request)
        money = 0 if model.price is None else model.price.cost_at_most(tokens)
        self.most = Spending(sum(tokens), money)
        self.unknown = ""
        if model.price is None:
            self.unknown = (
                f"nobody said what the model {model.name!r} costs, and dollars are limited; "
                "give its adapter a price"
            )

    def charged(self, value: Answer) -> Charged:
        return Charged(value, spent=self._spent(value))

    def unpaid(self, error: Exception) -> bool:
        return isinstance(error, ModelRefused) or (
            isinstance(error, ModelUnavailable) and error.unpaid
        )

    def _spent(self, answer: Answer) -> Spending:
        price, usage = self._model.price, answer.usage
        money = 0 if price is None else price.cost(usage)
        return Spending(usage.input_tokens + usage.output_tokens, money)


def _checked(answer: Answer, asked: Invocation) -> Answer:
    """Return an answer with its value as the type that was asked for, if it is of use."""
    if asked.output is not None and not answer.tool_calls:
        answer = msgspec.structs.replace(answer, value=validated(answer.json(), asked.output))
    if asked.check is not None and asked.check(answer) is False:
        raise InvalidAnswer(f"the answer of {answer.model!r} did not pass the check")
    return answer


def _model(models: Models, name: str) -> Model:
    model = models.get(name)
    if model is None:
        known = ", ".join(sorted(models)) or "none"
        raise UnknownModel(f"there is no model {name!r:.80}; there are: {known}")
    return model


def admitted_models(models: Mapping[str, Model] | None) -> Models:
    """Return the models by the names under which nodes ask for them.

    Raises:
        InvalidRequest: one of them is not a model.
    """
    for name, model in (models or {}).items():
        if not isinstance(name, str) or not name:
            raise InvalidRequest(f"a model's name is text, not {name!r:.80}", field="models")
        if not callable(getattr(model, "answer", None)):
            raise InvalidRequest(f"{model!r:.80} is not a model", field="models")
    return dict(models or {})
