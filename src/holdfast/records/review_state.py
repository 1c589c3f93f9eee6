"""The state of a review: what its content, the actions of its trail and its votes add up to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.model.people import EVERYONE
from holdfast.model.review import ReviewDecision, ReviewVote
from holdfast.records.codec import canonical_hash
from holdfast.records.review import PendingNotice, ReviewContent, StoredReview
from holdfast.records.review_trail import StoredAction, StoredVote
from holdfast.records.times import utc_datetime

__all__ = [
    "DELEGATED",
    "ESCALATED",
    "ReviewState",
    "decided_action",
    "folded_review",
    "followed_entry",
    "is_same_person",
    "last_change",
    "shown_decision",
    "trail_decision",
    "votes_decision",
    "votes_outcome",
]

DELEGATED = "delegated"
"""The reason of a reassignment to a person who stands in for an assignee."""
ESCALATED = "escalated"
"""The reason of a reassignment to more people because none of the assignees has decided in time."""


# With more, an action with the largest values would not fit into an item.
_COMMENTS_CHARS_MAX = 20_000


class ReviewState(msgspec.Struct, frozen=True, kw_only=True):
    """What changes in a review before it is decided."""

    assignees: tuple[str, ...]
    claimed_by: str | None = None
    values: Any = None
    round: int = 0
    """How often the values were edited. An edit begins a new round of votes."""

    def rendered(self, digest: str) -> str:
        """Return the hash of what a page shows of a review with that digest."""
        changing = canonical_hash([self.round, self.values, list(self.assignees)])
        return hashlib.sha256(digest.encode() + changing).hexdigest()[:32]

    def may_decide(self, person: str) -> bool:
        """Return whether a person is one of the assignees, or everybody is."""
        return not self.assignees or any(is_same_person(person, name) for name in self.assignees)


def is_same_person(one: str, other: str) -> bool:
    """Return whether two names are those of one person: upper and lower case are the same."""
    return one.casefold() == other.casefold()


def folded_review(content: ReviewContent, actions: Sequence[StoredAction]) -> ReviewState:
    """Return the state of a review after the actions of its trail."""
    state = ReviewState(assignees=content.assignees, values=content.values)
    for action in actions:
        state = _after(state, action)
    return state


def _after(state: ReviewState, action: StoredAction) -> ReviewState:
    data = action.data or {}
    match action.kind:
        case "claimed":
            return msgspec.structs.replace(state, claimed_by=action.by)
        case "released":
            return msgspec.structs.replace(state, claimed_by=None)
        case "reassigned":
            return msgspec.structs.replace(state, assignees=tuple(data["to"]), claimed_by=None)
        case "edited":
            return msgspec.structs.replace(state, values=data["values"], round=state.round + 1)
        case "commented" | "notified" | "decided":
            return state


def last_change(actions: Sequence[StoredAction]) -> int | None:
    """Return the position of the last action that changed what pages show; None if none did."""
    changes = [action.position for action in actions if action.kind in ("edited", "reassigned")]
    return max(changes, default=None)


# --- votes ----------------------------------------------------------------------------------------


def votes_outcome(
    votes: Sequence[StoredVote], *, quorum: int, assignees: Sequence[str]
) -> bool | None:
    """Return whether the votes of a round approve (True) or reject (False); None if undecided.

    ``quorum`` votes of one kind decide. If the approvals and the assignees that have not voted are
    together fewer than the quorum, the review is rejected.
    """
    approvals = sum(vote.approve for vote in votes)
    if approvals >= quorum:
        return True
    voted = {vote.reviewer.casefold() for vote in votes}
    missing = sum(name.casefold() not in voted for name in assignees)
    if len(votes) - approvals >= quorum or (assignees and approvals + missing < quorum):
        return False
    return None


def votes_decision(
    content: ReviewContent,
    digest: str,
    actions: Sequence[StoredAction],
    votes: Sequence[StoredVote],
    *,
    expires_ms: int | None,
) -> dict[str, Any] | None:
    """Return the decision that the votes of the current round make; None if they make none.

    Only votes that were cast before the expiry count. The reviewer with the last of them counts as
    the one who decided.
    """
    if content.quorum == 1:
        return None
    state = folded_review(content, actions)
    counted = sorted(
        (
            vote
            for vote in votes
            if vote.round == state.round and (expires_ms is None or vote.at_ms < expires_ms)
        ),
        key=lambda vote: (vote.at_ms, vote.reviewer),
    )
    approved = votes_outcome(counted, quorum=content.quorum, assignees=state.assignees)
    if approved is None or not counted:
        return None
    last = next((vote for vote in reversed(counted) if vote.approve is approved), counted[-1])
    decision: dict[str, Any] = {
        "status": "approved" if approved else "rejected",
        "by": last.reviewer,
        "comment": last.comment,
        "at_ms": last.at_ms,
        "digest": digest,
        "seen": last.seen,
        "votes": [
            {
                "reviewer": vote.reviewer,
                "approve": vote.approve,
                "comment": vote.comment,
                "at_ms": vote.at_ms,
                "round": vote.round,
                **_caller_of(vote),
            }
            for vote in counted
        ],
        **_caller_of(last),
    }
    if approved and content.form is not None:
        decision["values"] = state.values
    return decision


def _caller_of(vote: StoredVote) -> dict[str, str]:
    return {"through": vote.through} if vote.through else {}


# --- the decision ---------------------------------------------------------------------------------


def shown_decision(payload: Mapping[str, Any]) -> ReviewDecision[Any]:
    """Return a decision as callers see it, with its values as they are stored."""
    return ReviewDecision(
        status=payload["status"],
        by=payload.get("by"),
        comment=payload.get("comment", ""),
        at=utc_datetime(payload["at_ms"]),
        values=payload.get("values"),
        votes=tuple(
            ReviewVote(
                by=vote["reviewer"],
                approve=vote["approve"],
                comment=vote.get("comment", ""),
                at=utc_datetime(vote["at_ms"]),
                round=vote.get("round", 0),
                through=vote.get("through"),
            )
            for vote in payload.get("votes", ())
        ),
    )


def trail_decision(decision: Mapping[str, Any]) -> dict[str, Any]:
    """Return a decision as the trail records it: one item has room for it.

    If the comments of its votes are long, they are left to the votes, which are items of their own.
    """
    votes = decision.get("votes", ())
    if sum(len(vote.get("comment", "")) for vote in votes) <= _COMMENTS_CHARS_MAX:
        return dict(decision)
    return {**decision, "votes": [{**vote, "comment": ""} for vote in votes]}


def decided_action(actions: Sequence[StoredAction]) -> StoredAction | None:
    """Return the action that records the decision; None if the trail has none."""
    return next((action for action in actions if action.kind == "decided"), None)


# --- the entry ------------------------------------------------------------------------------------


def followed_entry(
    stored: StoredReview, content: ReviewContent, actions: Sequence[StoredAction]
) -> StoredReview:
    """Return the entry of a review after the actions of its trail, which it may not include yet."""
    state = folded_review(content, actions)
    entry = msgspec.structs.replace(
        stored,
        assignees=state.assignees,
        claimed_by=state.claimed_by,
        position=max(stored.position, actions[-1].position + 1 if actions else 0),
    )
    if (decided := decided_action(actions)) is not None:
        data = decided.data or {}
        return msgspec.structs.replace(
            entry,
            status=data["status"],
            decided_by=data.get("by"),
            decided_ms=data["at_ms"],
            notices=(),
        )
    notices = stored.notices
    for count, action in enumerate(actions, 1):
        if action.position < stored.position:
            continue
        if action.kind == "reassigned":
            notices = _notices_after(notices, action)
        elif action.kind == "edited" and content.quorum > 1:
            assigned = folded_review(content, actions[:count]).assignees
            notices = _notices_after_edit(notices, action, assigned or (EVERYONE,))
    return msgspec.structs.replace(entry, notices=notices)


def _notices_after(
    notices: tuple[PendingNotice, ...], reassigned: StoredAction
) -> tuple[PendingNotice, ...]:
    """Return the notices that are left to send after a reassignment.

    People who are no longer assigned get none, and those who are new get one. The reminder goes to
    the people who are assigned then. An escalation notifies its people itself.
    """
    data = reassigned.data or {}
    to: tuple[str, ...] = tuple(data["to"]) or (EVERYONE,)
    before = {name.casefold() for name in data.get("from", ())} or {EVERYONE}
    kept: list[PendingNotice] = []
    for notice in notices:
        if notice.kind in ("reminder", "edited") and not notice.attempts:
            notice = msgspec.structs.replace(notice, to=to)
        elif notice.kind != "escalation":
            told = {name.casefold() for name in notice.to}
            left = tuple(name for name in to if name.casefold() in told)
            notice = msgspec.structs.replace(notice, to=left)
        if notice.to:
            kept.append(notice)
    new = tuple(name for name in to if name.casefold() not in before)
    if new and data.get("reason") != ESCALATED:
        kept.append(PendingNotice(kind="reassigned", due_ms=reassigned.at_ms, to=new))
    return tuple(kept)


def _notices_after_edit(
    notices: tuple[PendingNotice, ...], edited: StoredAction, assigned: tuple[str, ...]
) -> tuple[PendingNotice, ...]:
    """Return the notices that are left to send after an edit that may have voided votes.

    Who has voted is known when the notice is sent. One notice is enough for several edits.
    """
    kept = (notice for notice in notices if notice.kind != "edited" or notice.attempts)
    return (*kept, PendingNotice(kind="edited", due_ms=edited.at_ms, to=assigned))
