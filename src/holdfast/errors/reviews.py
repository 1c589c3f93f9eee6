"""Errors about reviews, which people decide."""

from __future__ import annotations

from typing import Any

from holdfast.errors.refusals import Refused

__all__ = [
    "AlreadyVoted",
    "NoAddress",
    "NotAssigned",
    "ReviewChanged",
    "ReviewClaimed",
    "ReviewDecided",
    "ReviewLinkExpired",
    "ReviewLinkInvalid",
    "ReviewNotFound",
]


class ReviewNotFound(Refused):
    """There is no review of this id."""

    code = "review_not_found"


class ReviewDecided(Refused):
    """The review was decided before."""

    code = "review_decided"

    def __init__(self, message: str | None = None, *, decision: Any = None) -> None:
        super().__init__(message)
        self.decision = decision
        """What was decided, by whom and when: a `ReviewDecision`."""


class ReviewChanged(Refused):
    """The review was changed since it was shown; look at it again."""

    code = "review_changed"

    def __init__(
        self, message: str | None = None, *, review: Any = None, difference: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.review = review
        """The review as it is now: a `Review`."""
        self.difference = difference
        """What was changed, for people: one line for each value or list of assignees."""


class ReviewClaimed(Refused):
    """Another reviewer has claimed the review."""

    code = "review_claimed"

    def __init__(self, message: str | None = None, *, by: str = "") -> None:
        super().__init__(message)
        self.by = by
        """Who claimed it."""


class AlreadyVoted(Refused):
    """This reviewer has voted on the review before."""

    code = "already_voted"


class NotAssigned(Refused):
    """The review is assigned to other people."""

    code = "not_assigned"


class ReviewLinkInvalid(Refused):
    """There is no such link to a review: it is forged or malformed, or the review is gone."""

    code = "review_link_invalid"


class ReviewLinkExpired(Refused):
    """The link to the review has expired."""

    code = "review_link_expired"

    def __init__(self, message: str | None = None, *, decision: Any = None) -> None:
        super().__init__(message)
        self.decision = decision
        """How the review was decided, a `ReviewDecision`; None if it still waits, or is gone."""


class NoAddress(Refused):
    """The notifier has no address of this reviewer."""

    code = "no_address"
