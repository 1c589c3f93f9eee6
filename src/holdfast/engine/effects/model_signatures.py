"""The types of `Context.model`: its options, and what the answer's value is."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypedDict, TypeVar, Unpack, cast, overload

from holdfast.engine.effects.invocations import OnExhausted
from holdfast.model.arguments import Recording
from holdfast.model.durations import Duration
from holdfast.model.invocation import Answer, ToolSpec
from holdfast.model.policy import Retry

__all__ = [
    "Ask",
    "BlockingAsk",
    "ModelOptions",
    "SharedOptions",
    "typed_ask",
    "typed_blocking_ask",
]

T = TypeVar("T")

Messages: TypeAlias = str | Sequence[Mapping[str, Any]]


class SharedOptions(TypedDict, total=False):
    """The options that `Context.model` and an agent share."""

    tool_choice: str | None
    on_exhausted: OnExhausted
    share: bool | Duration
    stream: bool
    retry: Retry | None
    timeout: Duration | None
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    stop: str | Sequence[str] | None
    seed: int | None
    extra: Mapping[str, Any] | None
    record: Recording | None


class ModelOptions(SharedOptions, total=False):
    """The options of `Context.model` that do not depend on the type of the answer."""

    tools: Sequence[ToolSpec]
    fallback: str | Sequence[str]
    key: str | None


class Ask(Protocol):
    """Asks a model: see `Context.model`."""

    @overload
    async def __call__(
        self,
        name: str,
        messages: Messages,
        *,
        output: None = None,
        check: Callable[[Answer[None]], bool] | None = None,
        **options: Unpack[ModelOptions],
    ) -> Answer[None]: ...
    @overload
    async def __call__(
        self,
        name: str,
        messages: Messages,
        *,
        output: type[T],
        check: Callable[[Answer[T]], bool] | None = None,
        **options: Unpack[ModelOptions],
    ) -> Answer[T]: ...
    @overload
    async def __call__(
        self,
        name: str,
        messages: Messages,
        *,
        output: Any,
        check: Callable[[Answer[Any]], bool] | None = None,
        **options: Unpack[ModelOptions],
    ) -> Answer[Any]: ...


class BlockingAsk(Protocol):
    """Asks a model as `Ask` does, and blocks."""

    @overload
    def __call__(
        self,
        name: str,
        messages: Messages,
        *,
        output: None = None,
        check: Callable[[Answer[None]], bool] | None = None,
        **options: Unpack[ModelOptions],
    ) -> Answer[None]: ...
    @overload
    def __call__(
        self,
        name: str,
        messages: Messages,
        *,
        output: type[T],
        check: Callable[[Answer[T]], bool] | None = None,
        **options: Unpack[ModelOptions],
    ) -> Answer[T]: ...
    @overload
    def __call__(
        self,
        name: str,
        messages: Messages,
        *,
        output: Any,
        check: Callable[[Answer[Any]], bool] | None = None,
        **options: Unpack[ModelOptions],
    ) -> Answer[Any]: ...


def typed_ask(method: Callable[..., Coroutine[Any, Any, Answer[Any]]]) -> Ask:
    """Give a method that asks models the types of `Ask`."""
    return cast(Ask, method)


def typed_blocking_ask(method: Callable[..., Answer[Any]]) -> BlockingAsk:
    """Give a method that asks models and blocks the types of `BlockingAsk`."""
    return cast(BlockingAsk, method)
