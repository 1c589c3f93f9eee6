"""What a test provides in the place of reviewers, and what a node asked them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.engine.execution.reviews import ReviewRequest
from holdfast.graph.mismatch import Mismatch
from holdfast.graph.values import durable
from holdfast.model.review import ReviewDecision, ReviewOutcome
from holdfast.records.times import utc_datetime

__all__ = [
    "AnyFields",
    "AskedReview",
    "ReviewAnswer",
    "approved",
    "asked_review",
    "expired",
    "given_decision",
    "rejected",
    "withdrawn",
]


class ReviewAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The decision that a test gives in the place of reviewers."""

    status: ReviewOutcome
    by: str | None = None
    comment: str = ""
    values: Any = msgspec.UNSET
    """The values of the form; unset for those that the node shows."""


class AskedReview(msgspec.Struct, frozen=True, kw_only=True):
    """A review that a node asked for."""

    question: str
    shown: Any = None
    values: Any = None
    assignees: tuple[str, ...] = ()
    quorum: int = 1
    expires_seconds: float | None = None


def approved(
    values: Any = msgspec.UNSET, *, by: str = "reviewer", comment: str = ""
) -> ReviewAnswer:
    """Return the answer that a reviewer approves, with ``values`` of the form if they edit them."""
    return ReviewAnswer(status="approved", by=by, comment=comment, values=values)


def rejected(comment: str = "", *, by: str = "reviewer") -> ReviewAnswer:
    """Return the answer that a reviewer rejects."""
    return ReviewAnswer(status="rejected", by=by, comment=comment)


def expired() -> ReviewAnswer:
    """Return the answer that no reviewer decides in time."""
    return ReviewAnswer(status="expired")


def withdrawn(comment: str = "", *, by: str = "operator") -> ReviewAnswer:
    """Return the answer that the review is withdrawn."""
    return ReviewAnswer(status="withdrawn", by=by, comment=comment)


def asked_review(request: ReviewRequest) -> AskedReview:
    """Return what a node asked for, as a test sees it."""
    content, expires_ms = request.content, request.expires_ms
    return AskedReview(
        question=content.question,
        shown=content.shown,
        values=content.values,
        assignees=content.assignees,
        quorum=content.quorum,
        expires_seconds=None if expires_ms is None else expires_ms / 1000,
    )


def given_decision(
    answer: ReviewAnswer, request: ReviewRequest, *, now_ms: int
) -> ReviewDecision[Any]:
    """Return the decision that a node gets.

    Raises:
        Mismatch: the values do not fit the form, or there is no form.
    """
    values: Any = None
    if answer.status == "approved":
        given = answer.values is not msgspec.UNSET
        if request.form is not None:
            stored = durable(answer.values) if given else request.content.values
            if (misfit := request.form.misfit(stored)) is not None:
                raise Mismatch("", misfit)
            values = request.form.converted(stored)
        elif given:
            raise Mismatch("", "the review has no form")
    return ReviewDecision(
        status=answer.status,
        by=answer.by,
        comment=answer.comment,
        at=utc_datetime(now_ms),
        values=values,
    )


class AnyFields(Mapping[str, Any]):
    """The state of a node that a test calls as a function: its fields are not known."""

    def __getitem__(self, name: str) -> Any:
        return None

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0
