"""`RemoteReviews`: lists the reviews of a server, and decides them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.client.arguments import payload_of, seconds_of_duration
from holdfast.client.connection import ServerConnection
from holdfast.client.reading import member_of, read
from holdfast.engine.runs.argument_checks import validated_limit
from holdfast.errors import InvalidRequest
from holdfast.model.durations import Duration
from holdfast.model.review import Review, ReviewPage

__all__ = ["RemoteReviews"]

_ID_CHARS_MAX = 145
# What the header Idempotency-Key carries.
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


class RemoteReviews:
    """The reviews of a server: what runs ask people, and what people decide.

    Every call needs the role reviewer. ``by`` is the caller: the name of its API key, or the
    subject of its token. To name another person needs the role operator; the trail then says
    through whom that person acted.
    """

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def get(self, id: str, *, tenant: str | None = None) -> Review:
        """Return a review: what is asked and shown, and what became of it.

        Raises:
            ReviewNotFound: the tenant has no such review.
        """
        names = {"id": _validated_id(id)}
        return read(Review, await self._connection.call("reviews_get", names=names, tenant=tenant))

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
        mine: bool = False,
    ) -> ReviewPage:
        """Return a page of the tenant's reviews.

        With an ``assignee``, those that this person may decide; with ``mine``, those that the
        caller may. ``overdue`` ones wait for longer than their reminder or escalation.

        Raises:
            InvalidQuery: the limit is not from 1 to 1,000, or the cursor is not one of a list.
            InvalidRequest: another argument is wrong.
        """
        query = {
            "assignee": assignee,
            "mine": "true" if mine else None,
            "overdue": "true" if overdue else None,
            "status": status,
            "run": run,
            "limit": validated_limit(limit),
            "cursor": cursor,
        }
        shown = await self._connection.call("reviews_list", query=query, tenant=tenant)
        return read(ReviewPage, shown)

    async def approve(
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
        body = {"comment": comment or None, "seen": seen, **_values(values)}
        return await self._act("reviews_approve", id, body, by=by, key=key, tenant=tenant)

    async def reject(
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
        body = {"comment": comment or None, "seen": seen}
        return await self._act("reviews_reject", id, body, by=by, key=key, tenant=tenant)

    async def withdraw(
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
        body = {"comment": comment or None}
        return await self._act("reviews_withdraw", id, body, by=by, key=key, tenant=tenant)

    async def claim(
        self,
        id: str,
        *,
        by: str | None = None,
        take_over: bool = False,
        tenant: str | None = None,
    ) -> Review:
        """Claim a review, so that no other reviewer decides it.

        Raises:
            ReviewNotFound: the tenant has no such review.
            ReviewDecided: it was decided before.
            ReviewClaimed: another reviewer has claimed it; ``take_over`` takes it.
            NotAssigned: it is assigned to other people.
        """
        body = {"take_over": take_over or None}
        return await self._act("reviews_claim", id, body, by=by, tenant=tenant)

    async def release(
        self,
        id: str,
        *,
        by: str | None = None,
        tenant: str | None = None,
    ) -> Review:
        """Release a review that this person has claimed.

        Raises:
            ReviewNotFound: the tenant has no such review.
            ReviewDecided: it was decided before.
            ReviewClaimed: another reviewer has claimed it.
        """
        return await self._act("reviews_release", id, {}, by=by, tenant=tenant)

    async def reassign(
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
        named = to if isinstance(to, str) else list(to)
        body = {"to": named, "comment": comment or None, "force": force or None}
        return await self._act("reviews_reassign", id, body, by=by, key=key, tenant=tenant)

    async def comment(
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
        body = {"text": text, "force": force or None}
        return await self._act("reviews_comment", id, body, by=by, key=key, tenant=tenant)

    async def edit(
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
        body = {"seen": seen, **_values(values)}
        return await self._act("reviews_edit", id, body, by=by, key=key, tenant=tenant)

    async def link(
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
        body = {"reviewer": reviewer, "expires": seconds_of_duration(expires, "expires")}
        names = {"id": _validated_id(id)}
        shown = await self._connection.call("reviews_link", names=names, body=body, tenant=tenant)
        return member_of(shown, "url")

    async def _act(
        self,
        verb: str,
        id: str,
        body: Mapping[str, Any],
        *,
        by: str | None,
        tenant: str | None,
        key: str | None = None,
    ) -> Review:
        shown = await self._connection.call(
            verb,
            names={"id": _validated_id(id)},
            body={**body, "on_behalf_of": by},
            tenant=tenant,
            # A repetition of the request must not act twice.
            key=self._connection.ids.new() if key is None else _validated_key(key),
        )
        return read(Review, shown)


def _values(values: Any) -> dict[str, Any]:
    return {} if values is msgspec.UNSET else {"values": payload_of(values, "values")}


def _validated_id(id: object) -> str:
    if not isinstance(id, str) or not 0 < len(id) <= _ID_CHARS_MAX:
        raise InvalidRequest(
            f"id must be the id of a review, such as 'doc-42~5f0c1e7a9b3d2468', got {id!r:.80}",
            field="id",
        )
    return id


def _validated_key(key: object) -> str:
    if not isinstance(key, str) or _KEY.fullmatch(key) is None:
        raise InvalidRequest(
            f"key must be 1 to 255 printable ASCII characters without spaces, got {key!r:.80}",
            field="key",
        )
    return key
