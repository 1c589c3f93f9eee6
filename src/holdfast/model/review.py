"""Reviews: questions of runs to people, as nodes and callers see them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Generic, Literal, TypeAlias, cast

from holdfast.model.json_form import JsonForm
from holdfast.model.type_parameters import ValueT

__all__ = [
    "NOTICE_WORDS",
    "ActionKind",
    "Review",
    "ReviewAction",
    "ReviewDecision",
    "ReviewEntry",
    "ReviewOutcome",
    "ReviewPage",
    "ReviewStatus",
    "ReviewVote",
]

ReviewOutcome: TypeAlias = Literal["approved", "rejected", "expired", "withdrawn"]
"""How a review ended. ``withdrawn``: the answer is not needed any more."""

ReviewStatus: TypeAlias = Literal["pending", "approved", "rejected", "expired", "withdrawn"]
"""The status of a review."""

ActionKind: TypeAlias = Literal[
    "claimed", "released", "reassigned", "commented", "edited", "notified", "decided"
]
"""What the trail of a review records. Votes are listed apart."""

NOTICE_WORDS = {
    "requested": "notified",
    "reassigned": "notified",
    "edited": "notified",
    "reminder": "reminded",
    "escalation": "escalated",
}
"""What a trail says of a notice, by its kind."""


class ReviewVote(JsonForm, frozen=True, kw_only=True):
    """The vote of one reviewer."""

    by: str
    approve: bool
    comment: str = ""
    at: datetime
    round: int = 0
    """How often the values had been edited before. Only votes of the current round count."""
    through: str | None = None
    """The caller of the API that voted on behalf of the reviewer; None if the reviewer did."""


class ReviewDecision(JsonForm, Generic[ValueT], frozen=True, kw_only=True):
    """How a review was decided: what `Context.review` returns. Its ``values`` are a ``ValueT``."""

    status: ReviewOutcome
    by: str | None = None
    """Who decided; None if its time was up, or its run ended."""
    comment: str = ""
    at: datetime
    values: ValueT = cast(ValueT, None)
    """The values of the form, as the reviewer left them; None without a form, and unless
    approved."""
    votes: tuple[ReviewVote, ...] = ()
    """The votes that decided, if the review needed more than one."""

    @property
    def approved(self) -> bool:
        """Whether the reviewers approved."""
        return self.status == "approved"


class ReviewAction(JsonForm, frozen=True, kw_only=True):
    """One entry of the trail of a review. Entries are only appended, never changed."""

    position: int
    kind: ActionKind
    by: str | None
    """The person; None for what Holdfast did."""
    at: datetime
    data: Any = None
    """What was done: the text of a comment, the new assignees, the edited values."""
    hash: str
    """The hash of this entry and of all entries before it."""


class ReviewEntry(JsonForm, frozen=True, kw_only=True):
    """One line of a list of reviews."""

    id: str
    run: str
    tenant: str
    graph: str
    node: str
    question: str
    """The question, cut to 200 characters."""
    status: ReviewStatus
    assignees: tuple[str, ...] = ()
    """Who may decide; empty if every reviewer may."""
    claimed_by: str | None = None
    created_at: datetime
    expires_at: datetime | None = None
    due_at: datetime | None = None
    """After that it is overdue: the time of its reminder or of its escalation."""
    overdue: bool = False
    quorum: int = 1
    undelivered: str | None = None
    """Why no reviewer could be notified of it; None if one was, or none had to be."""
    decided_by: str | None = None
    decided_at: datetime | None = None


class ReviewPage(JsonForm, frozen=True):
    """A page of reviews: pending ones with the oldest first, others with the newest first."""

    reviews: list[ReviewEntry]
    cursor: str | None
    """Pass it to read the next page, which may be empty; None at the end."""


class Review(JsonForm, frozen=True, kw_only=True):
    """A review: what is asked and shown, who may decide, and what became of it."""

    id: str
    run: str
    tenant: str
    graph: str
    node: str
    question: str
    status: ReviewStatus
    note: str = ""
    """Why it is asked again; empty if it is not."""
    shown: Any = None
    """What reviewers are shown, exactly as the run asked for it."""
    form: Mapping[str, Any] | None = None
    """The JSON schema of the values that a reviewer may edit; None if there are none."""
    values: Any = None
    """The current values of the form. Those that were approved are in ``decision``."""
    changes: tuple[str, ...] = ()
    """What people changed in the values since the run asked: one line for each value, as text."""
    tool: str | None = None
    """The tool whose call waits for the approval; ``values`` are its arguments. None otherwise."""
    assignees: tuple[str, ...] = ()
    """Who may decide; empty if every reviewer may."""
    claimed_by: str | None = None
    quorum: int = 1
    """How many votes decide."""
    votes: tuple[ReviewVote, ...] = ()
    """The votes of the current round."""
    former_votes: tuple[ReviewVote, ...] = ()
    """The votes of earlier rounds, which do not count: the values were edited after them."""
    created_at: datetime
    expires_at: datetime | None = None
    """When it expires: with its run at the latest."""
    due_at: datetime | None = None
    """After that it is overdue: the time of its reminder or of its escalation."""
    overdue: bool = False
    undelivered: str | None = None
    """Why no reviewer could be notified of it; None if one was, or none had to be."""
    decision: ReviewDecision | None = None
    """How it was decided; None while it is pending."""
    trail: tuple[ReviewAction, ...] = ()
    """What was done with it, the oldest first."""
    is_intact: bool = True
    """Whether what was shown and the trail are as they were written; False if they were changed in
    the store."""
    digest: str
    """The hash of what was asked and shown first. It never changes."""
    rendered: str
    """The hash of what a page shows now. A decision can carry it as ``seen``: then it is refused if
    the values or the assignees were changed meanwhile."""

    _hidden_in_json: ClassVar[frozenset[str]] = frozenset()

    def __repr__(self) -> str:
        # Without what is shown: a repr goes into logs.
        return f"Review({self.id!r}, {self.status!r}, question={self.question!r:.80})"
