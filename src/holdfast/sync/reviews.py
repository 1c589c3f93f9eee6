# Generated from src/holdfast/review/reviews.py by checks/blocking.py; do not edit.
# To write it anew: python -m checks.blocking --write
"""The blocking `Reviews`; the async one is `holdfast.review.reviews.Reviews`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.model.durations import Duration
from holdfast.model.review import Review, ReviewPage
from holdfast.portal import Portal
from holdfast.review.links import OpenedLink
from holdfast.review.reviews import Reviews as AsyncReviews

__all__ = ["Reviews"]


class Reviews:
    """The reviews of a store. `Context.review` asks for them, people decide them."""

    def __init__(self, portal: Portal, reviews: AsyncReviews) -> None:
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
    ) -> ReviewPage:
        """Return a page of the tenant's reviews.

        With an ``assignee``, those that this person may decide, also as one of everybody;
        ``overdue`` ones wait for longer than their reminder or escalation; with a ``run``, those
        that this run asked for. ``status`` is ``pending``, which is the default, ``approved``,
        ``rejected``, ``expired``, ``withdrawn``, or ``decided`` for all but the pending ones.

        Raises:
            InvalidQuery: an argument is wrong; ``field`` says which.
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
        )

    def approve(
        self,
        id: str,
        *,
        by: str,
        comment: str = "",
        values: Any = msgspec.UNSET,
        seen: str | None = None,
        key: str | None = None,
        tenant: str | None = None,
    ) -> Review:
        """Approve a review; with ``values`` of its form, they replace those that it shows.

        If it needs a quorum, this is one vote; other ``values`` begin a new round of votes.
        ``seen`` is the `Review.rendered` that the reviewer was shown: if the review was changed
        since, it is not approved.

        Raises:
            ReviewNotFound: the tenant has no such review.
            ReviewDecided: it was decided before; the attempt wakes its run again.
            ReviewChanged: it is not what the reviewer was shown.
            NotAssigned: it is assigned to other people.
            ReviewClaimed: another reviewer has claimed it.
            AlreadyVoted: the reviewer has voted in this round.
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
        by: str,
        comment: str = "",
        seen: str | None = None,
        key: str | None = None,
        tenant: str | None = None,
    ) -> Review:
        """Reject a review. If it needs a quorum, this is one vote.

        Raises:
            ReviewNotFound: the tenant has no such review.
            ReviewDecided: it was decided before; the attempt wakes its run again.
            ReviewChanged: it is not what the reviewer was shown; see `approve`.
            NotAssigned: it is assigned to other people.
            ReviewClaimed: another reviewer has claimed it.
            AlreadyVoted: the reviewer has voted in this round.
            InvalidRequest: an argument is wrong; ``field`` says which.
        """
        return self._portal.call(
            self._reviews.reject, id, by=by, comment=comment, seen=seen, key=key, tenant=tenant
        )

    def withdraw(
        self,
        id: str,
        *,
        by: str,
        comment: str = "",
        key: str | None = None,
        tenant: str | None = None,
    ) -> Review:
        """Withdraw a review: its run gets the decision that it was withdrawn.

        People who are not assigned may withdraw it, too.

        Raises:
            ReviewNotFound: the tenant has no such review.
            ReviewDecided: it was decided before; the attempt wakes its run again.
            InvalidRequest: an argument is wrong; ``field`` says which.
        """
        return self._portal.call(
            self._reviews.withdraw, id, by=by, comment=comment, key=key, tenant=tenant
        )

    def claim(
        self, id: str, *, by: str, take_over: bool = False, tenant: str | None = None
    ) -> Review:
        """Claim a review, so that only this person decides it; again is the same as once.

        ``take_over`` takes it from another reviewer who has claimed it.

        Raises:
            ReviewNotFound: the tenant has no such review.
            ReviewDecided: it is decided.
            NotAssigned: it is assigned to other people.
            ReviewClaimed: another reviewer has claimed it.
            InvalidRequest: it needs the votes of several reviewers.
        """
        return self._portal.call(self._reviews.claim, id, by=by, take_over=take_over, tenant=tenant)

    def release(self, id: str, *, by: str, tenant: str | None = None) -> Review:
        """Give the claim of a review back, so that other reviewers can decide it.

        Raises:
            ReviewNotFound: the tenant has no such review.
            ReviewDecided: it is decided.
            NotAssigned: it is assigned to other people.
            ReviewClaimed: another reviewer has claimed it.
        """
        return self._portal.call(self._reviews.release, id, by=by, tenant=tenant)

    def reassign(
        self,
        id: str,
        *,
        by: str,
        to: str | Sequence[str],
        comment: str = "",
        force: bool = False,
        key: str | None = None,
        tenant: str | None = None,
    ) -> Review:
        """Assign a review to other people; ``()`` assigns it to everybody. A claim ends.

        ``force`` is for operators: a person who is not assigned may reassign it. People who are out
        of office are replaced by those whom the ``delegate`` hook names.

        Raises:
            ReviewNotFound: the tenant has no such review.
            ReviewDecided: it is decided.
            NotAssigned: it is assigned to other people.
            InvalidRequest: ``to`` has fewer people than have to vote, or is wrong otherwise.
        """
        return self._portal.call(
            self._reviews.reassign,
            id,
            by=by,
            to=to,
            comment=comment,
            force=force,
            key=key,
            tenant=tenant,
        )

    def comment(
        self,
        id: str,
        *,
        by: str,
        text: str,
        force: bool = False,
        key: str | None = None,
        tenant: str | None = None,
    ) -> Review:
        """Add a comment to the trail of a review, without deciding it.

        ``force`` is for operators: a person who is not assigned may comment.

        Raises:
            ReviewNotFound: the tenant has no such review.
            ReviewDecided: it is decided.
            NotAssigned: it is assigned to other people.
            InvalidRequest: an argument is wrong; ``field`` says which.
        """
        return self._portal.call(
            self._reviews.comment, id, by=by, text=text, force=force, key=key, tenant=tenant
        )

    def edit(
        self,
        id: str,
        *,
        by: str,
        values: Any,
        seen: str | None = None,
        key: str | None = None,
        tenant: str | None = None,
    ) -> Review:
        """Change the values of the form, without deciding. Votes that were cast no longer count.

        Raises:
            ReviewNotFound: the tenant has no such review.
            ReviewDecided: it is decided.
            ReviewChanged: it is not what the reviewer was shown; see `approve`.
            NotAssigned: it is assigned to other people.
            ReviewClaimed: another reviewer has claimed it.
            InvalidRequest: the values do not fit the form, or another argument is wrong.
        """
        return self._portal.call(
            self._reviews.edit, id, by=by, values=values, seen=seen, key=key, tenant=tenant
        )

    def link(
        self, id: str, *, reviewer: str, expires: Duration | None = None, tenant: str | None = None
    ) -> str:
        """Return the address of a page on which one reviewer can read and decide a review.

        The address needs no other credentials: send it to this reviewer only. It works until the
        review expires, or for the duration ``expires`` if that is shorter.

        Raises:
            ReviewNotFound: the tenant has no such review.
            PublicUrlMissing: neither ``public_url`` nor ``HOLDFAST_PUBLIC_URL`` is set.
            InvalidRequest: ``reviewer`` is not a name, or ``expires`` is no duration above 0.
        """
        return self._portal.call(
            self._reviews.link, id, reviewer=reviewer, expires=expires, tenant=tenant
        )

    def open_link(self, token: str) -> OpenedLink:
        """Return the tenant, the review and the reviewer of the token at the end of an address.

        A server does this for each request to a link; call it if your own web framework has the
        pages.

        Raises:
            ReviewLinkInvalid: the token is not one of this store.
            ReviewLinkExpired: the token has expired; ``decision`` says how the review was decided.
        """
        return self._portal.call(self._reviews.open_link, token)
