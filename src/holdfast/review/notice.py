"""What reviewers are told, and what a notifier is: the code that tells them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol, runtime_checkable

import msgspec

from holdfast.model.review import ReviewEntry
from holdfast.records.review import NoticeKind

__all__ = ["Notice", "Notifier"]


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """A notice to one reviewer, or to all of them, about one review."""

    id: str
    """The same in every attempt to send this notice to this reviewer: receivers can drop a repeat
    by it."""
    kind: NoticeKind
    """Why it is sent: the review was requested or reassigned, an edit voided a vote, or it is not
    decided in time."""
    reviewer: str | None
    """Who is told; None for everyone who may review."""
    review: ReviewEntry
    question: str
    """The whole question."""
    link: str | None
    """The address with which this reviewer can decide; None if the server's address is not known.
    Only the reviewer must get it: its holder decides in their name. If everyone is told, it is
    ``page``."""
    page: str | None
    """The address of the review for people who can sign in."""
    command: str
    """The command that shows the review."""
    expires_at: datetime | None
    """When the review expires."""
    at: datetime
    """When this attempt to send it began."""
    subject: str
    """What the template made of it, in one line."""
    text: str
    html: str | None = None

    def __repr__(self) -> str:
        # Without the link, which lets its holder decide: a repr goes into logs.
        return f"Notice({self.id!r}, {self.kind!r}, to {self.reviewer!r})"


@runtime_checkable
class Notifier(Protocol):
    """Sends notices, for example by mail.

    Each reviewer gets a notice from every notifier that has an address for them. A crash may let a
    notice be sent twice, with the same id.
    """

    @property
    def name(self) -> str:
        """Which one it is: the trail of a review and what is still to be sent refer to it."""
        ...

    async def send(self, notice: Notice) -> Any:
        """Send a notice; return when it is handed over.

        Any error is a failed attempt, and another one follows later; so is an attempt of more than
        20 s. It must not block the event loop.

        Raises:
            NoAddress: the notifier has no address for this reviewer. Others may have one.
        """
        ...
