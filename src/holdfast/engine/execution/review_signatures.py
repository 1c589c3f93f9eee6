"""The types of `Context.review`: its options, and what the decision's values are."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypedDict, TypeVar, Unpack, cast, overload

from holdfast.model.durations import Duration
from holdfast.model.review import ReviewDecision

__all__ = ["AskReviewers", "BlockingAskReviewers", "typed_blocking_review", "typed_review"]

T = TypeVar("T")


class ReviewArguments(TypedDict, total=False):
    """The options of `Context.review` that do not depend on the type of the form."""

    show: Sequence[str] | Mapping[str, Any] | None
    assignees: str | Sequence[str]
    expires: Duration | None
    remind_after: Duration | None
    escalate_after: Duration | None
    escalate_to: str | Sequence[str]
    quorum: int


class AskReviewers(Protocol):
    """Asks people: see `Context.review`."""

    @overload
    async def __call__(
        self, question: str, *, form: None = None, **options: Unpack[ReviewArguments]
    ) -> ReviewDecision[None]: ...
    @overload
    async def __call__(
        self,
        question: str,
        *,
        form: type[T],
        values: T | None = None,
        **options: Unpack[ReviewArguments],
    ) -> ReviewDecision[T]: ...
    @overload
    async def __call__(
        self,
        question: str,
        *,
        form: Any,
        values: Any = None,
        **options: Unpack[ReviewArguments],
    ) -> ReviewDecision[Any]: ...


class BlockingAskReviewers(Protocol):
    """Asks people as `AskReviewers` does, and blocks."""

    @overload
    def __call__(
        self, question: str, *, form: None = None, **options: Unpack[ReviewArguments]
    ) -> ReviewDecision[None]: ...
    @overload
    def __call__(
        self,
        question: str,
        *,
        form: type[T],
        values: T | None = None,
        **options: Unpack[ReviewArguments],
    ) -> ReviewDecision[T]: ...
    @overload
    def __call__(
        self,
        question: str,
        *,
        form: Any,
        values: Any = None,
        **options: Unpack[ReviewArguments],
    ) -> ReviewDecision[Any]: ...


def typed_review(method: Callable[..., Coroutine[Any, Any, ReviewDecision[Any]]]) -> AskReviewers:
    """Give a method that asks people the types of `AskReviewers`."""
    return cast(AskReviewers, method)


def typed_blocking_review(method: Callable[..., ReviewDecision[Any]]) -> BlockingAskReviewers:
    """Give a method that asks people and blocks the types of `BlockingAskReviewers`."""
    return cast(BlockingAskReviewers, method)
