"""Routes of reviews: what waits for people, and how they decide.

Who acts is the caller: the name of the API key, or the subject of the token. A caller with the role
operator may act on behalf of another person, as a bot does that passes decisions on: the entry of
the trail, or the vote, then says through whom the person acted.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from litestar.params import PathParameter, QueryParameter
from msgspec import UNSET, Meta, UnsetType

from holdfast.errors import Forbidden, InvalidRequest
from holdfast.model.json_form import JsonForm
from holdfast.model.review import Review, ReviewPage
from holdfast.records.review_state import is_same_person
from holdfast.review.reviews import Reviews, reviews_through
from holdfast.server.caller import Requester, RequesterOf
from holdfast.server.parameters import (
    Cursor,
    DurationBody,
    IdempotencyKey,
    Limit,
    RunId,
)
from holdfast.server.roles import includes
from holdfast.server.routing import route

__all__ = ["REVIEWS"]

ReviewId = Annotated[
    str,
    PathParameter(
        description="The review's id: the run's id, ~ and 16 hex digits.",
        min_length=1,
        max_length=145,
    ),
]
Assignee = Annotated[
    str | None,
    QueryParameter(
        min_length=1,
        max_length=200,
        description="Reviews that this person may decide: assigned to the person, or open to all.",
    ),
]
Mine = Annotated[bool, QueryParameter(description="Reviews that the caller may decide.")]
Overdue = Annotated[
    bool,
    QueryParameter(description="Reviews that wait for longer than their reminder or escalation."),
]
StatusText = Annotated[
    Literal["pending", "approved", "rejected", "expired", "withdrawn", "decided"],
    QueryParameter(description="The status of the reviews; decided: every status but pending."),
]
OfRun = Annotated[
    str | None, QueryParameter(min_length=1, max_length=128, description="Reviews of this run.")
]
_Person = Annotated[str, Meta(min_length=1, max_length=200)]
_Comment = Annotated[str, Meta(max_length=4_000)]
_Seen = Annotated[
    str, Meta(max_length=64, description="`rendered` of the review that the reviewer saw.")
]


class ActionBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who acts, if it is not the caller."""

    on_behalf_of: _Person | None = None
    """The person who acts through the caller, which needs the role operator."""


class WithdrawalBody(ActionBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Why the decision is not needed any more."""

    comment: _Comment = ""


class RejectionBody(ActionBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Why a reviewer rejects, and what the reviewer saw."""

    comment: _Comment = ""
    seen: _Seen | None = None


class ApprovalBody(RejectionBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a reviewer approves: the values of the form, if they are not those that it shows."""

    values: Any | UnsetType = UNSET


class ClaimBody(ActionBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How to claim a review."""

    take_over: bool = False
    """Whether to take it from the reviewer who has claimed it."""


class ReassignmentBody(ActionBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who decides from now on."""

    to: _Person | Annotated[list[_Person], Meta(max_length=50)]
    comment: _Comment = ""
    force: bool = False
    """Whether to do it although others are assigned; it needs the role operator."""


class CommentBody(ActionBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a reviewer notes."""

    text: Annotated[str, Meta(min_length=1, max_length=4_000)]
    force: bool = False
    """Whether to do it although others are assigned; it needs the role operator."""


class EditBody(ActionBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """New values of the form."""

    values: Any
    seen: _Seen | None = None


class LinkBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who uses the link, and how long."""

    reviewer: _Person | None = None
    """The person who decides with it; by default the caller."""
    expires: DurationBody | None = None
    """How long it is valid; by default as long as the review is."""


class ReviewLink(JsonForm, frozen=True, kw_only=True):
    """A link with which one reviewer opens and decides one review."""

    url: str


# --- reading --------------------------------------------------------------------------------------


@route("GET", "/v1/reviews", role="reviewer", tag="reviews", etag=True)
async def list_reviews(
    requester: RequesterOf,
    assignee: Assignee = None,
    mine: Mine = False,
    overdue: Overdue = False,
    status: StatusText = "pending",
    run: OfRun = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> ReviewPage:
    """List reviews: pending ones with the oldest first, others with the newest first.

    A page may have fewer reviews than the limit, and a cursor.
    """
    if mine and assignee is not None:
        raise InvalidRequest("pass either mine or assignee, not both", field="mine")
    return await requester.hf.reviews.list(
        assignee=requester.identity.person if mine else assignee,
        overdue=overdue,
        status=status,
        run=run,
        tenant=requester.tenant,
        limit=limit,
        cursor=cursor,
    )


@route("GET", "/v1/runs/{id:str}/reviews", role="reviewer", tag="reviews", etag=True)
async def list_reviews_of_run(
    requester: RequesterOf,
    id: RunId,
    status: StatusText = "pending",
    limit: Limit = 100,
    cursor: Cursor = None,
) -> ReviewPage:
    """List the reviews of a run."""
    await requester.run(id).get()
    return await requester.hf.reviews.list(
        status=status, run=id, tenant=requester.tenant, limit=limit, cursor=cursor
    )


@route("GET", "/v1/reviews/{id:str}", role="reviewer", tag="reviews", etag=True)
async def get_review(requester: RequesterOf, id: ReviewId) -> Review:
    """Get a review: what is asked and shown, who may decide, its votes and its trail."""
    return await requester.hf.reviews.get(id, tenant=requester.tenant)


# --- deciding -------------------------------------------------------------------------------------


@route("POST", "/v1/reviews/{id:str}/approve", role="reviewer", tag="reviews", conflicts=True)
async def approve_review(
    requester: RequesterOf,
    id: ReviewId,
    data: ApprovalBody | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Review:
    """Approve a review, or vote for it if it needs several votes.

    The first decision counts. 409 says what was decided before, by whom and when (`decision`); or
    that the review was changed since it was shown (`review`, `difference`).
    """
    asked = data or ApprovalBody()
    reviews, by = _acting(requester, asked)
    return await reviews.approve(
        id,
        comment=asked.comment,
        values=asked.values,
        seen=asked.seen,
        by=by,
        key=idempotency_key,
        tenant=requester.tenant,
    )


@route("POST", "/v1/reviews/{id:str}/reject", role="reviewer", tag="reviews", conflicts=True)
async def reject_review(
    requester: RequesterOf,
    id: ReviewId,
    data: RejectionBody | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Review:
    """Reject a review, or vote against it if it needs several votes.

    The first decision counts, as for an approval.
    """
    asked = data or RejectionBody()
    reviews, by = _acting(requester, asked)
    return await reviews.reject(
        id,
        comment=asked.comment,
        seen=asked.seen,
        by=by,
        key=idempotency_key,
        tenant=requester.tenant,
    )


@route("POST", "/v1/reviews/{id:str}/withdraw", role="operator", tag="reviews", conflicts=True)
async def withdraw_review(
    requester: RequesterOf,
    id: ReviewId,
    data: WithdrawalBody | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Review:
    """Withdraw a review: its run goes on without the decision of a reviewer."""
    asked = data or WithdrawalBody()
    reviews, by = _acting(requester, asked)
    return await reviews.withdraw(
        id,
        comment=asked.comment,
        by=by,
        key=idempotency_key,
        tenant=requester.tenant,
    )


# --- other actions --------------------------------------------------------------------------------


@route("POST", "/v1/reviews/{id:str}/claim", role="reviewer", tag="reviews", conflicts=True)
async def claim_review(
    requester: RequesterOf,
    id: ReviewId,
    data: ClaimBody | None = None,
) -> Review:
    """Claim a review, so that no other reviewer decides it."""
    asked = data or ClaimBody()
    reviews, by = _acting(requester, asked)
    return await reviews.claim(
        id,
        take_over=asked.take_over,
        by=by,
        tenant=requester.tenant,
    )


@route("POST", "/v1/reviews/{id:str}/release", role="reviewer", tag="reviews", conflicts=True)
async def release_review(
    requester: RequesterOf,
    id: ReviewId,
    data: ActionBody | None = None,
) -> Review:
    """Release a review that the reviewer has claimed."""
    reviews, by = _acting(requester, data or ActionBody())
    return await reviews.release(id, by=by, tenant=requester.tenant)


@route("POST", "/v1/reviews/{id:str}/reassign", role="reviewer", tag="reviews", conflicts=True)
async def reassign_review(
    requester: RequesterOf,
    id: ReviewId,
    data: ReassignmentBody,
    idempotency_key: IdempotencyKey = None,
) -> Review:
    """Let other people decide a review."""
    if data.force:
        _check_operator(requester, "to reassign a review of other people (force)")
    reviews, by = _acting(requester, data)
    return await reviews.reassign(
        id,
        to=data.to,
        comment=data.comment,
        force=data.force,
        by=by,
        key=idempotency_key,
        tenant=requester.tenant,
    )


@route("POST", "/v1/reviews/{id:str}/comment", role="reviewer", tag="reviews", conflicts=True)
async def comment_review(
    requester: RequesterOf,
    id: ReviewId,
    data: CommentBody,
    idempotency_key: IdempotencyKey = None,
) -> Review:
    """Add a comment to a review."""
    if data.force:
        _check_operator(requester, "to comment on a review of other people (force)")
    reviews, by = _acting(requester, data)
    return await reviews.comment(
        id,
        text=data.text,
        force=data.force,
        by=by,
        key=idempotency_key,
        tenant=requester.tenant,
    )


@route("POST", "/v1/reviews/{id:str}/edit", role="reviewer", tag="reviews", conflicts=True)
async def edit_review(
    requester: RequesterOf,
    id: ReviewId,
    data: EditBody,
    idempotency_key: IdempotencyKey = None,
) -> Review:
    """Change the values of a review. Votes that were cast before do not count any more."""
    reviews, by = _acting(requester, data)
    return await reviews.edit(
        id,
        values=data.values,
        seen=data.seen,
        by=by,
        key=idempotency_key,
        tenant=requester.tenant,
    )


@route("POST", "/v1/reviews/{id:str}/link", role="reviewer", tag="reviews", conflicts=True)
async def link_review(
    requester: RequesterOf, id: ReviewId, data: LinkBody | None = None
) -> ReviewLink:
    """Make a link with which one reviewer opens and decides the review.

    A link for another person than the caller needs the role operator.
    """
    asked = data or LinkBody()
    reviewer = asked.reviewer or requester.identity.person
    if not is_same_person(reviewer, requester.identity.person):
        _check_operator(requester, "to make a link for another person (reviewer)")
    url = await requester.hf.reviews.link(
        id, reviewer=reviewer, expires=asked.expires, tenant=requester.tenant
    )
    return ReviewLink(url=url)


def _acting(requester: Requester, data: ActionBody) -> tuple[Reviews, str]:
    """Return the reviews and who acts: the caller, or the person on whose behalf it acts.

    Raises:
        Forbidden: the caller may not act on behalf of others.
    """
    caller, reviews = requester.identity.person, requester.hf.reviews
    person = data.on_behalf_of or caller
    if is_same_person(person, caller):
        return reviews, person
    _check_operator(requester, "to act for another person (on_behalf_of)")
    return reviews_through(reviews, caller), person


def _check_operator(requester: Requester, what: str) -> None:
    role = requester.identity.role
    if not includes(role, "operator"):
        raise Forbidden(f"{what} you need the role operator; yours is {role}")


REVIEWS = (
    list_reviews,
    list_reviews_of_run,
    get_review,
    approve_review,
    reject_review,
    withdraw_review,
    claim_review,
    release_review,
    reassign_review,
    comment_review,
    edit_review,
    link_review,
)
