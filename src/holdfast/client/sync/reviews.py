# Generated from src/holdfast/client/reviews.py by checks/blocking.py; do not edit.
# To write it anew: python -m checks.blocking --write
"""The blocking `RemoteReviews`; the async one is `holdfast.client.reviews.RemoteReviews`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.client.reviews import RemoteReviews as AsyncRemoteReviews
from holdfast.model.durations import Duration
from holdfast.model.review import Review, ReviewPage
from holdfast.portal import Portal

__all__ = ["RemoteReviews"]


class RemoteReviews:
    """The reviews of a server: what runs ask people, and what people decide."""

    def __init__(self, portal: Portal, reviews: AsyncRemoteReviews) -> None:
        self._portal = portal
        self._reviews = reviews

    def get(self, id: str, *, tenant: str | None = None) -> Review:
        """Return a review: what is asked and shown, and what became of it.

        Raises:
            ReviewNotFound: the tenant has no such review.
        """
        return self._portal.call(self._reviews.get, id, tenant=tenant)

    def list(
        self,
        *,
        assignee: str | None = None,
        overdue: bool = False,
        status: str = "pending",
        run: str | None = None,
        tenant: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
        mine: bool = False,
    ) -> ReviewPage:
        """Return a page of the tenant's reviews.

        With an ``assignee``, those that this person may decide; with ``mine``, those that the
        caller may. ``overdue`` ones wait for longer than their reminder or escalation.

        Raises:
            InvalidQuery: the limit is not from 1 to 1,000, or the cursor is not one of a list.
            InvalidRequest: another argument is wrong.
        """
        return self._portal.call(
            self._reviews.list,
            assignee=assignee,
            overdue=overdue,
            status=status,
            run=run,
            tenant=tenant,
            limit=limit,
            cursor=cursor,
            mine=mine,
        )

    def approve(
        self,
        id: str,
        *,
        by: str | None = None,
        comment: str = "",
        values: Any = msgspec.UNSET,
        seen: str | None = None,
        key: str | None = None,
        tenant: str | None = None,
    ) -> Review:
        """Approve a review; with ``values`` of its form, they replace those that it shows.

        Raises:
            ReviewNotFound: the tenant has no such review.
            ReviewDecided: it was decided before; the error says what, by whom and when.
            ReviewChanged: it is not what was ``seen``; the error has the review and the difference.
            NotAssigned, ReviewClaimed, AlreadyVoted: this person may not decide it.
            InvalidRequest: the values do not fit the form, or another argument is wrong.
        """
        return self._portal.call(
            self._reviews.approve,
            id,
            by=by,
            comment=comment,
            values=values,
            seen=seen,
            key=key,
            tenant=tenant,
        )

    def reject(
        self,
        id: str,
        *,
        by: str | None = None,
        comment: str = "",
        seen: str | None = None,
        key: str | None = None,
        tenant: str | None = None,
    ) -> Review:
        """Reject a review.

        Raises:
            ReviewNotFound: the tenant has no such review.
            ReviewDecided: it was decided before; the error says what, by whom and when.
            ReviewChanged: it is not what was ``seen``; the error has the review and the difference.
            NotAssigned, ReviewClaimed, AlreadyVoted: this person may not decide it.
        """
        return self._portal.call(
            self._reviews.reject, id, by=by, comment=comment, seen=seen, key=key, tenant=tenant
        )

    def withdraw(
        self,
        id: str,
        *,
        by: str | None = None,
        comment: str = "",
        key: str | None = None,
        tenant: str | None = None,
    ) -> Review:
        """Withdraw a review: its run goes on without the decision of a reviewer.

        Raises:
            ReviewNotFound: the tenant has no such review.
            ReviewDecided: it was decided before; the error says what, by whom and when.
            Forbidden: the caller does not have the role operator.
        """
        return self._portal.call(
            self._reviews.withdraw, id, by=by, comment=comment, key=key, tenant=tenant
        )

    def claim(
        self, id: str, *, by: str | None = None, take_over: bool = False, tenant: str | None = None
    ) -> Review:
        """Claim a review, so that no other reviewer decides it.

        Raises:
            ReviewNotFound: the tenant has no such review.
            ReviewDecided: it was decided before.
            ReviewClaimed: another reviewer has claimed it; ``take_over`` takes it.
            NotAssigned: it is assigned to other people.
        """
        return self._portal.call(self._reviews.claim, id, by=by, take_over=take_over, tenant=tenant)

    def release(self, id: str, *, by: str | None = None, tenant: str | None = None) -> Review:
        """Release a review that this person has claimed.

        Raises:
            ReviewNotFound: the tenant has no such review.
            ReviewDecided: it was decided before.
            ReviewClaimed: another reviewer has claimed it.
        """
        return self._portal.call(self._reviews.release, id, by=by, tenant=tenant)

    def reassign(
        self,
        id: str,
        *,
        to: str | Sequence[str],
        by: str | None = None,
        comment: str = "",
        force: bool = False,
        key: str | None = None,
        tenant: str | None = None,
    ) -> Review:
        """Let other people decide a review; ``force`` needs the role operator.

        Raises:
            ReviewNotFound: the tenant has no such review.
            ReviewDecided: it was decided before.
            NotAssigned: it is assigned to other people, and ``force`` is not set.
            InvalidRequest: ``to`` are not names of people.
        """
        return self._portal.call(
            self._reviews.reassign,
            id,
            to=to,
            by=by,
            comment=comment,
            force=force,
            key=key,
            tenant=tenant,
        )

    def comment(
        self,
        id: str,
        *,
        text: str,
        by: str | None = None,
        force: bool = False,
        key: str | None = None,
        tenant: str | None = None,
    ) -> Review:
        """Add a comment to a review; ``force`` needs the role operator.

        Raises:
            ReviewNotFound: the tenant has no such review.
            NotAssigned: it is assigned to other people, and ``force`` is not set.
            InvalidRequest: the text is empty or too long.
        """
        return self._portal.call(
            self._reviews.comment, id, text=text, by=by, force=force, key=key, tenant=tenant
        )

    def edit(
        self,
        id: str,
        *,
        values: Any,
        by: str | None = None,
        seen: str | None = None,
        key: str | None = None,
        tenant: str | None = None,
    ) -> Review:
        """Change the values of a review. Votes that were cast before do not count any more.

        Raises:
            ReviewNotFound: the tenant has no such review.
            ReviewDecided: it was decided before.
            ReviewChanged: it is not what was ``seen``.
            InvalidRequest: it has no form, or the values do not fit it.
        """
        return self._portal.call(
            self._reviews.edit, id, values=values, by=by, seen=seen, key=key, tenant=tenant
        )

    def link(
        self,
        id: str,
        *,
        reviewer: str | None = None,
        expires: Duration | None = None,
        tenant: str | None = None,
    ) -> str:
        """Return a link with which one reviewer, by default the caller, decides the review.

        Raises:
            ReviewNotFound: the tenant has no such review.
            Forbidden: a link for another person needs the role operator.
            InvalidRequest: the server does not know its public address.
        """
        return self._portal.call(
            self._reviews.link, id, reviewer=reviewer, expires=expires, tenant=tenant
        )
