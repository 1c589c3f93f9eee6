"""Decides reviews for people: approve, reject and withdraw, and the votes of a quorum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.engine.runs.inbox import SignalFenced
from holdfast.engine.runs.review_arguments import validated_form_values
from holdfast.engine.runs.review_outcomes import decide_review, is_same_decision
from holdfast.engine.runs.reviewing import (
    LoadedReview,
    load_fenced_review,
    load_review,
    review_expiry_ms,
)
from holdfast.errors import (
    AlreadyVoted,
    ConditionFailed,
    RunClosing,
    RunEnded,
    RunNotFound,
)
from holdfast.model.review import Review, ReviewOutcome
from holdfast.records.review_state import is_same_person
from holdfast.records.review_trail import StoredVote, stored_vote_of, vote_write
from holdfast.review.acting import (
    changed_error,
    check_may_decide,
    check_seen,
    edit_values,
    is_same,
    with_caller,
)
from holdfast.review.loading import OpenReview, ReviewStore, decided_error

__all__ = ["DecisionRequest", "decide", "withdraw"]


class DecisionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that a person asks for, after the checks of its arguments."""

    id: str
    tenant: str
    by: str
    approve: bool
    comment: str = ""
    values: Any = msgspec.UNSET
    """The values of the form; unset if the current ones are approved."""
    seen: str | None = None
    key: str = ""
    """The idempotency key; empty if there is none."""

    @property
    def status(self) -> ReviewOutcome:
        """What the review becomes if this decides it."""
        return "approved" if self.approve else "rejected"


async def decide(store: ReviewStore, request: DecisionRequest) -> Review:
    """Decide a review, or vote on one that needs a quorum.

    Raises:
        ReviewNotFound, ReviewDecided, ReviewChanged, NotAssigned, ReviewClaimed, AlreadyVoted
    """
    found = await store.find(request.id, request.tenant)
    while True:
        try:
            return await _decide_found(store, found, request)
        except SignalFenced:
            # It was changed since it was read. Is this still what the person decides on?
            await load_fenced_review(store.kernel, found.loaded)
            found = await store.find(request.id, request.tenant)


async def _decide_found(store: ReviewStore, found: OpenReview, request: DecisionRequest) -> Review:
    """Decide a review as it was read, or vote on it.

    Raises:
        SignalFenced: it was changed since.
    """
    status = request.status
    if _is_repeated(found.decision, status, request.by, request.key) or _has_voted(found, request):
        return store.shown(found)
    found.check_pending()
    check_may_decide(found.loaded, request.by)
    check_seen(store, found, request.seen)
    request = _with_values(found.loaded, request)
    if found.loaded.content.quorum > 1:
        return await _vote(store, found, request)
    loaded = found.loaded
    decision = {
        "status": status,
        "by": request.by,
        "comment": request.comment,
        "at_ms": store.kernel.clock.now_ms(),
        "digest": loaded.digest,
        "seen": request.seen or loaded.state.rendered(loaded.digest),
    } | with_caller(store)
    if request.values is not msgspec.UNSET:
        decision["values"] = request.values
    if request.key:
        decision["key"] = request.key
    return await _write_decision(store, found, decision)


def _with_values(loaded: LoadedReview, request: DecisionRequest) -> DecisionRequest:
    """Return the request with the values that it approves, as they are stored.

    Raises:
        InvalidRequest: the values do not fit the form.
    """
    form, values = loaded.content.form, request.values
    if not request.approve or (form is None and values is msgspec.UNSET):
        return request
    values = loaded.state.values if values is msgspec.UNSET else values
    return msgspec.structs.replace(request, values=validated_form_values(values, form))


async def withdraw(
    store: ReviewStore, id: str, tenant: str, *, by: str, comment: str, key: str
) -> Review:
    """Withdraw a review: its node gets the decision that it was withdrawn.

    Raises:
        ReviewNotFound, ReviewDecided
    """
    found = await store.find(id, tenant)
    if _is_repeated(found.decision, "withdrawn", by, key):
        return store.shown(found)
    found.check_pending()
    decision = {
        "status": "withdrawn",
        "by": by,
        "comment": comment,
        "at_ms": store.kernel.clock.now_ms(),
        "digest": found.loaded.digest,
    } | with_caller(store)
    if key:
        decision["key"] = key
    return await _write_decision(store, found, decision)


def _is_repeated(
    decision: Mapping[str, Any] | None, status: ReviewOutcome, by: str, key: str
) -> bool:
    """Return whether the same request made a decision before."""
    if decision is None or not key:
        return False
    same = (decision.get("key"), decision["status"]) == (key, status)
    return same and is_same_person(decision.get("by") or "", by)


def _has_voted(found: OpenReview, request: DecisionRequest) -> bool:
    """Return whether the same request cast a vote before."""
    return bool(request.key) and any(
        (vote.key, vote.approve) == (request.key, request.approve)
        and is_same_person(vote.reviewer, request.by)
        for vote in found.loaded.votes
    )


async def _write_decision(
    store: ReviewStore,
    found: OpenReview,
    decision: Mapping[str, Any],
    *,
    vote: StoredVote | None = None,
) -> Review:
    """Write a decision, unless there is one; a ``vote`` made it, if there was a quorum.

    Raises:
        ReviewDecided: another decision was first, or it came too late.
    """
    # Votes were cast in time: the decision that they make may be written later.
    deadline_ms = None if vote is not None else review_expiry_ms(found.head, found.loaded.stored)
    try:
        loaded, first = await decide_review(
            store.kernel, store.workers, found.loaded, decision, deadline_ms=deadline_ms
        )
    except (RunEnded, RunClosing, RunNotFound):
        # The run may have failed after the decision was written: then its retry takes it.
        decided = await store.find(found.loaded.key.id, found.loaded.key.run.tenant)
        first = is_same_decision(decided.decision, decision)
    else:
        decided = OpenReview(found.head, loaded, loaded.settled or decision)
    by, key = decision.get("by") or "", decision.get("key", "")
    if (
        first
        or _counts(vote, decided.decision)
        or _is_repeated(decided.decision, decision["status"], by, key)
    ):
        return store.shown(decided)
    raise decided_error(decided)


def _counts(vote: StoredVote | None, decision: Mapping[str, Any] | None) -> bool:
    """Return whether a vote is one of those that made a decision."""
    votes = (decision or {}).get("votes", ())
    return vote is not None and any(
        is_same_person(each["reviewer"], vote.reviewer) and each["at_ms"] == vote.at_ms
        for each in votes
    )


# --- votes ----------------------------------------------------------------------------------------


async def _vote(store: ReviewStore, found: OpenReview, request: DecisionRequest) -> Review:
    """Vote on a review; the vote that completes the quorum decides it."""
    kernel = store.kernel
    loaded, seen = found.loaded, request.seen
    if request.values is not msgspec.UNSET and not is_same(request.values, loaded.state.values):
        loaded = await edit_values(store, found, by=request.by, values=request.values)
        seen = None  # the reviewer votes on what they edited
    vote = StoredVote(
        reviewer=request.by,
        approve=request.approve,
        comment=request.comment,
        at_ms=kernel.clock.now_ms(),
        round=loaded.state.round,
        seen=seen or loaded.state.rendered(loaded.digest),
        key=request.key,
        through=store.through,
    )
    expires_ms = review_expiry_ms(found.head, loaded.stored)
    if vote.at_ms < expires_ms:
        vote = await _put_vote(store, loaded, vote)
    current = await load_review(kernel, loaded.key) or loaded
    while True:
        found = OpenReview(found.head, current, current.settled)
        try:
            return await _count_votes(store, found, vote, request)
        except SignalFenced:
            current = await load_fenced_review(kernel, current)


async def _count_votes(
    store: ReviewStore, found: OpenReview, vote: StoredVote, request: DecisionRequest
) -> Review:
    """Decide a review that was read after a vote, if its votes decide it.

    Raises:
        ReviewDecided: it was decided without the vote.
        ReviewChanged: an edit has voided the vote.
        SignalFenced: it was changed since it was read.
    """
    current, expires_ms = found.loaded, review_expiry_ms(found.head, found.loaded.stored)
    if vote.at_ms >= expires_ms or found.decision is not None:
        current_review = await store.find(request.id, request.tenant)
        if _counts(vote, current_review.decision):
            return store.shown(current_review)
        raise decided_error(current_review)
    if vote.round != current.state.round:
        raise changed_error(store, found, vote.seen)
    decision = current.votes_decision(expires_ms)
    if decision is None:
        return store.shown(found)
    return await _write_decision(store, found, decision, vote=vote)


async def _put_vote(store: ReviewStore, loaded: LoadedReview, vote: StoredVote) -> StoredVote:
    """Write a vote; return it, or the same one if the same request wrote it before.

    Raises:
        AlreadyVoted: the reviewer has voted in this round.
    """
    kernel = store.kernel
    put = vote_write(loaded.key, vote, ttl=loaded.item["ttl"], token=kernel.ids.new())
    try:
        await kernel.resolve_write(kernel.reviews, put)
    except ConditionFailed as failed:
        earlier = stored_vote_of(failed.item or {})
        if vote.key and (earlier.key, earlier.approve) == (vote.key, vote.approve):
            return earlier
        word = "approve" if earlier.approve else "reject"
        raise AlreadyVoted(
            f"{earlier.reviewer} has voted to {word} review {loaded.key.id!r}; each reviewer votes "
            "once, until the values are edited"
        ) from None
    return vote
