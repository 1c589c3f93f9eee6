"""Who gets a notice, and what follows from an attempt to send it: pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from holdfast.model.send_retries import gives_up, next_retry_ms
from holdfast.records.review import EVERYONE, PendingNotice, StoredReview

__all__ = [
    "LEASE_MS",
    "SEND_SECONDS",
    "NoticeAttempt",
    "after_attempt",
    "due_notice",
    "notices_after",
    "postponed_ms",
    "recipients",
    "undelivered_after",
]

_SECOND_MS = 1_000
_MINUTE_MS = 60 * _SECOND_MS
_HOUR_MS = 60 * _MINUTE_MS

SEND_SECONDS = 20.0
"""How long one attempt of a notifier may take."""
LEASE_MS = 60 * _SECOND_MS
"""For how long one process may send a notice: longer than all attempts together take."""
# After so many failed attempts, or so long, operators are told that no reviewer knows.
_FAILURES_BEFORE_TOLD = 3
_FAILING_MS_BEFORE_TOLD = _MINUTE_MS
_ERROR_CHARS_MAX = 300
# These tell reviewers of a review; the others only tell them again.
_FIRST_KINDS = ("requested", "reassigned")


class NoticeAttempt(msgspec.Struct, frozen=True):
    """What became of an attempt to send a notice to several reviewers."""

    sent: Mapping[str, Sequence[str]]
    """By reviewer, the notifiers that took it this time."""
    reached: Collection[str]
    """Reviewers whom a notifier has told that counts: not only the log."""
    errors: Mapping[str, str]
    """Why it must be sent again, by reviewer."""


def due_notice(review: StoredReview, now_ms: int) -> PendingNotice | None:
    """Return the notice to send now: the one that was planned first."""
    due = [notice for notice in review.notices if notice.due_ms <= now_ms]
    return min(due, key=lambda notice: (notice.place[1], notice.due_ms), default=None)


def recipients(
    notice: PendingNotice,
    review: StoredReview,
    voters: Collection[str],
    *,
    voided: Collection[str] = (),
) -> tuple[str, ...]:
    """Return who gets a notice now. The assignees may have changed since it was planned.

    ``voters`` have voted in the current round; the votes of the ``voided`` ones were cast before
    an edit.
    """
    assigned = review.assignees or (EVERYONE,)
    if notice.kind == "edited":
        return _voided_voters(notice, review, voters, voided)
    if notice.kind == "escalation":
        return notice.to
    if notice.kind in _FIRST_KINDS:
        return tuple(name for name in notice.to if name in assigned)
    if review.claimed_by is not None:
        return (review.claimed_by,)
    # Those who have not even been told of the review are told by another notice.
    not_told = {name for other in review.notices if other.kind in _FIRST_KINDS for name in other.to}
    voted = {voter.casefold() for voter in voters}
    asked = notice.to if notice.attempts else assigned
    return tuple(
        name
        for name in asked
        if name in assigned and name not in not_told and name.casefold() not in voted
    )


def _voided_voters(
    notice: PendingNotice, review: StoredReview, voters: Collection[str], voided: Collection[str]
) -> tuple[str, ...]:
    """Return those who may vote, whose votes were voided, and who have not voted again."""
    voted = {name.casefold() for name in voters}
    named = {name.casefold(): name for name in voided if name.casefold() not in voted}
    if review.assignees:
        named = {name.casefold(): name for name in review.assignees if name.casefold() in named}
    if notice.attempts:  # then it says who has not got it yet
        left = {name.casefold() for name in notice.to}
        named = {key: name for key, name in named.items() if key in left}
    return tuple(named.values())


def after_attempt(
    notice: PendingNotice, attempt: NoticeAttempt, *, now_ms: int, random: float
) -> PendingNotice | None:
    """Return what is left to send of a notice; None if nothing is, or it is given up."""
    left = tuple(name for name in notice.to if name in attempt.errors)
    failing_ms = notice.failing_ms or now_ms
    if not left or gives_up(failing_ms, now_ms):
        return None
    attempts = notice.attempts + 1
    return msgspec.structs.replace(
        notice,
        to=left,
        due_ms=next_retry_ms(attempts, now_ms, random),
        attempts=attempts,
        failing_ms=failing_ms,
        error=attempt.errors[left[0]][:_ERROR_CHARS_MAX],
        planned_ms=notice.place[1],
        reached=notice.reached or bool(attempt.reached),
        sent={
            name: (*notice.sent.get(name, ()), *attempt.sent.get(name, ()))
            for name in left
            if name in notice.sent or name in attempt.sent
        },
    )


def notices_after(
    review: StoredReview, notice: PendingNotice, left: PendingNotice | None, *, now_ms: int
) -> tuple[PendingNotice, ...]:
    """Return the notices of a review after an attempt to send one; ``left`` is what remains of it.

    A reminder that was due before its reviewers knew of the review is dropped.
    """
    others = [each for each in review.notices if each.place != notice.place]
    if left is not None and len(others) < len(review.notices):
        return (left, *others)
    if notice.kind in _FIRST_KINDS:
        others = [each for each in others if each.kind != "reminder" or each.due_ms > now_ms]
    return tuple(others)


def undelivered_after(
    review: StoredReview, notice: PendingNotice, attempt: NoticeAttempt, *, now_ms: int
) -> str:
    """Return why no reviewer could be told of a review; empty if one was, or it is too early."""
    if attempt.reached or notice.reached:
        return ""
    failing_ms = now_ms - (notice.failing_ms or now_ms)
    is_failing = bool(attempt.errors) and (
        notice.attempts + 1 >= _FAILURES_BEFORE_TOLD or failing_ms >= _FAILING_MS_BEFORE_TOLD
    )
    if notice.kind not in _FIRST_KINDS or not is_failing:
        return review.undelivered
    return next(iter(attempt.errors.values()))[:_ERROR_CHARS_MAX]


def postponed_ms(review: StoredReview, now_ms: int) -> int:
    """Return when to look again at a review that its run does not wait for now."""
    age_ms = now_ms - review.created_ms
    return now_ms + min(max(age_ms // 4, 15 * _SECOND_MS), _HOUR_MS)
