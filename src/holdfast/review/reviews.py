"""`Reviews`: lists the reviews of a store, and lets people decide them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.argument_checks import positive_ms, validated_limit
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.engine.runs.review_arguments import (
    validated_comment,
    validated_request_key,
    validated_seen,
)
from holdfast.engine.runs.reviewing import follow_trail, review_expiry_ms
from holdfast.engine.worker.companions import Companion
from holdfast.model.durations import Duration
from holdfast.model.names import validated_tenant
from holdfast.model.people import validated_people, validated_person
from holdfast.model.review import Review, ReviewPage
from holdfast.review import acting, deciding
from holdfast.review.deciding import DecisionRequest
from holdfast.review.links import OpenedLink, open_review_link, review_address, sign_review_link
from holdfast.review.listing import list_reviews, review_filter
from holdfast.review.loading import OpenReview, ReviewStore
from holdfast.review.options import ReviewOptions
from holdfast.review.shared_loop import SharedNoticeLoop

__all__ = ["Reviews", "reviews_through", "worker_companions"]


class Reviews:
    """The reviews of a store. `Context.review` asks for them, people decide them.

    Each method takes the ``tenant`` of the review, by default that of this instance. ``by`` is the
    name of the person who acts. Upper and lower case are the same in names. With an idempotency
    ``key``, a request that is repeated by the same person returns the review instead of failing.
    """

    def __init__(
        self,
        kernel: Kernel,
        workers: LocalWorkers,
        tenant: str,
        options: ReviewOptions | None = None,
    ) -> None:
        self._kernel = kernel
        self._store = ReviewStore(kernel, workers)
        self._tenant = tenant
        self.options = options or ReviewOptions()
        """How this process notifies reviewers."""
        self._notices = SharedNoticeLoop(self._store, self.options)

    async def get(self, id: str, *, tenant: str | None = None) -> Review:
        """Return a review: what is asked and shown, and what became of it.

        Raises:
            ReviewNotFound: the tenant has no such review.
        """
        found = await self._store.find(id, self._tenant_or_default(tenant))
        # A process may have died between an action and the entry in the list.
        loaded = await follow_trail(self._kernel, found.loaded)
        return self._store.shown(OpenReview(found.head, loaded, found.decision))

    async def list(
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
        return await list_reviews(
            self._store,
            self._tenant_or_default(tenant),
            review_filter(status=status, assignee=assignee, overdue=overdue, run=run),
            limit=validated_limit(limit),
            cursor=cursor,
        )

    async def approve(
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
        request = self._request(id, True, by, comment, seen, key, tenant)
        return await deciding.decide(self._store, msgspec.structs.replace(request, values=values))

    async def reject(
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
        request = self._request(id, False, by, comment, seen, key, tenant)
        return await deciding.decide(self._store, request)

    async def withdraw(
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
        return await deciding.withdraw(
            self._store,
            id,
            self._tenant_or_default(tenant),
            by=validated_person(by, "by"),
            comment=validated_comment(comment),
            key=validated_request_key(key),
        )

    async def claim(
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
        person = validated_person(by, "by")
        return await acting.claim(
            self._store, id, self._tenant_or_default(tenant), by=person, take_over=take_over
        )

    async def release(self, id: str, *, by: str, tenant: str | None = None) -> Review:
        """Give the claim of a review back, so that other reviewers can decide it.

        Raises:
            ReviewNotFound: the tenant has no such review.
            ReviewDecided: it is decided.
            NotAssigned: it is assigned to other people.
            ReviewClaimed: another reviewer has claimed it.
        """
        person = validated_person(by, "by")
        return await acting.release(self._store, id, self._tenant_or_default(tenant), by=person)

    async def reassign(
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
        return await acting.reassign(
            self._store,
            id,
            self._tenant_or_default(tenant),
            by=validated_person(by, "by"),
            to=validated_people(to, "to"),
            text=validated_comment(comment),
            force=force,
            key=validated_request_key(key),
            delegate=self.options.delegate,
        )

    async def comment(
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
        return await acting.comment(
            self._store,
            id,
            self._tenant_or_default(tenant),
            by=validated_person(by, "by"),
            text=validated_comment(text, "text", required=True),
            force=force,
            key=validated_request_key(key),
        )

    async def edit(
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
        return await acting.edit(
            self._store,
            id,
            self._tenant_or_default(tenant),
            by=validated_person(by, "by"),
            values=values,
            seen=validated_seen(seen),
            key=validated_request_key(key),
        )

    async def link(
        self,
        id: str,
        *,
        reviewer: str,
        expires: Duration | None = None,
        tenant: str | None = None,
    ) -> str:
        """Return the address of a page on which one reviewer can read and decide a review.

        The address needs no other credentials: send it to this reviewer only. It works until the
        review expires, or for the duration ``expires`` if that is shorter.

        Raises:
            ReviewNotFound: the tenant has no such review.
            PublicUrlMissing: neither ``public_url`` nor ``HOLDFAST_PUBLIC_URL`` is set.
            InvalidRequest: ``reviewer`` is not a name, or ``expires`` is no duration above 0.
        """
        found = await self._store.find(id, self._tenant_or_default(tenant))
        expires_ms = review_expiry_ms(found.head, found.loaded.stored)
        if expires is not None:
            span_ms = positive_ms(expires, "expires")
            expires_ms = min(expires_ms, self._kernel.clock.now_ms() + span_ms)
        key = found.loaded.key
        token = await sign_review_link(self._kernel, key, reviewer, expires_ms=expires_ms)
        return review_address(self._kernel, token)

    async def open_link(self, token: str) -> OpenedLink:
        """Return the tenant, the review and the reviewer of the token at the end of an address.

        A server does this for each request to a link; call it if your own web framework has the
        pages.

        Raises:
            ReviewLinkInvalid: the token is not one of this store.
            ReviewLinkExpired: the token has expired; ``decision`` says how the review was decided.
        """
        return await open_review_link(self._store, token)

    def notify(self) -> AbstractAsyncContextManager[None]:
        """Send the notices of all tenants' reviews in this process, until the block ends.

        ``async with hf.reviews.notify(): …``. A server and ``holdfast worker`` do this, and every
        worker of an instance that has notifiers.
        """
        return self._notices.run()

    def _request(
        self,
        id: str,
        approve: bool,
        by: object,
        comment: object,
        seen: object,
        key: object,
        tenant: str | None,
    ) -> DecisionRequest:
        return DecisionRequest(
            id=id,
            tenant=self._tenant_or_default(tenant),
            by=validated_person(by, "by"),
            approve=approve,
            comment=validated_comment(comment),
            seen=validated_seen(seen),
            key=validated_request_key(key),
        )

    def _tenant_or_default(self, tenant: str | None) -> str:
        return self._tenant if tenant is None else validated_tenant(tenant)


def reviews_through(reviews: Reviews, caller: str) -> Reviews:
    """Return the same reviews for a caller that acts on behalf of people: what it does says so."""
    store = reviews._store  # pyright: ignore[reportPrivateUsage]
    changed = copy.copy(reviews)
    changed._store = msgspec.structs.replace(store, through=caller)  # pyright: ignore[reportPrivateUsage]
    return changed


def worker_companions(reviews: Reviews) -> tuple[Companion, ...]:
    """Return what runs beside each worker: the loop of notices, if workers send them."""
    options = reviews.options
    return (reviews.notify,) if options.are_configured and options.send_in_workers else ()
