"""Carries out what a person asks for on the page of a review."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any

import msgspec
from litestar import Response
from litestar.exceptions import ClientException
from msgspec import UNSET

from holdfast.errors import (
    AlreadyVoted,
    HoldfastError,
    InvalidRequest,
    NotAssigned,
    PayloadTooLarge,
    ReviewChanged,
    ReviewClaimed,
    ReviewDecided,
)
from holdfast.model.review import Review, ReviewDecision
from holdfast.records.review_state import is_same_person
from holdfast.server.pages.form_fields import FormField, leaves, review_form
from holdfast.server.pages.form_values import has_text, read_values
from holdfast.server.pages.page import PageRequest, redirected
from holdfast.server.pages.review_page import Banner, Entered, Viewing, review_response
from holdfast.server.problems import status_of

__all__ = ["act"]

_BY_LINK = ("approve", "reject")
_OUTCOMES = {"approve": "approved", "reject": "rejected"}
_INVALID = 422


async def act(request: PageRequest, viewing: Viewing, posted: Mapping[str, str]) -> Response[bytes]:
    """Carry out an action, and let the browser read the page again.

    What cannot be carried out shows the page with the reason, and with what was entered.
    """
    action = posted.get("action", "")
    if viewing.by_link and action not in _BY_LINK:
        raise ClientException("the page has no such button")
    review = await viewing.hf.reviews.get(viewing.id, tenant=viewing.tenant)
    entered = Entered(
        comment=posted.get("comment", ""), to=posted.get("to", ""), text=posted.get("text", "")
    )
    values: Any = UNSET
    if review.form is not None and action in ("approve", "edit") and review.status == "pending":
        entered.form = review_form(review.form, review.values)
        values = read_values(entered.form, posted)
        # A page from before a change has other values: first it must show what was changed.
        if values is UNSET and posted.get("seen") == review.rendered:
            return _again(request, review, viewing, entered, ["Some values are not valid."])
        if values == review.values:
            values = UNSET
            if action == "edit":
                return _again(request, review, viewing, entered, ["No value was changed."])
    try:
        await _carried_out(viewing, action, posted, values)
    except ReviewChanged as changed:
        return await _changed(request, viewing, posted, entered, changed)
    except ReviewDecided as decided:
        return await _decided(request, viewing, action, decided)
    except (AlreadyVoted, InvalidRequest, NotAssigned, PayloadTooLarge, ReviewClaimed) as error:
        review = await viewing.hf.reviews.get(viewing.id, tenant=viewing.tenant)
        return _again(request, review, viewing, entered, [str(error)], error)
    return redirected(request, viewing.path)


def _carried_out(
    viewing: Viewing, action: str, posted: Mapping[str, str], values: Any
) -> Awaitable[Any]:
    reviews, id = viewing.hf.reviews, viewing.id
    acting: dict[str, Any] = {"by": viewing.person, "tenant": viewing.tenant}
    comment, seen = posted.get("comment", "").strip(), posted.get("seen") or ""
    match action:
        case "approve":
            return reviews.approve(id, comment=comment, values=values, seen=seen, **acting)
        case "reject":
            return reviews.reject(id, comment=comment, seen=seen, **acting)
        case "edit":
            return reviews.edit(id, values=values, seen=seen, **acting)
        case "claim":
            return reviews.claim(id, take_over="take_over" in posted, **acting)
        case "release":
            return reviews.release(id, **acting)
        case "comment":
            text = posted.get("text", "").strip()
            return reviews.comment(id, text=text, force=viewing.is_operator, **acting)
        case "reassign":
            to = [name for line in posted.get("to", "").split("\n") if (name := line.strip())]
            return reviews.reassign(id, to=to, force=viewing.is_operator, **acting)
        case _:
            raise ClientException("the page has no such button")


def _again(
    request: PageRequest,
    review: Review,
    viewing: Viewing,
    entered: Entered,
    reasons: list[str],
    error: HoldfastError | None = None,
) -> Response[bytes]:
    status = _INVALID if error is None else status_of(error)
    notice = Banner("wrong", "This was not done", tuple(reasons))
    return review_response(
        request, review, viewing, status=status, notices=[notice], entered=entered
    )


async def _changed(
    request: PageRequest,
    viewing: Viewing,
    posted: Mapping[str, str],
    entered: Entered,
    changed: ReviewChanged,
) -> Response[bytes]:
    """Show the review as it is now, with the difference and with what was entered."""
    review: Review = changed.review or await viewing.hf.reviews.get(
        viewing.id, tenant=viewing.tenant
    )
    entered.after_change = True
    if review.form is not None:
        form: FormField = review_form(review.form, review.values)
        read_values(form, {**posted, **_untouched(review, form, posted)})
        entered.form = form
    notice = Banner(
        "changed", "This review was changed after you opened the page", tuple(changed.difference)
    )
    return review_response(request, review, viewing, status=409, notices=[notice], entered=entered)


def _untouched(review: Review, form: FormField, posted: Mapping[str, str]) -> dict[str, str]:
    """Return the fields that a person left as they were, with what they show now."""
    try:
        before = review_form(review.form or {}, msgspec.json.decode(posted.get("was", "")))
    except (msgspec.DecodeError, RecursionError, ValueError):
        return {}
    left = {each.name for each in leaves(before) if has_text(each, posted.get(each.name, ""))}
    return {each.name: each.original for each in leaves(form) if each.name in left}


async def _decided(
    request: PageRequest, viewing: Viewing, action: str, decided: ReviewDecided
) -> Response[bytes]:
    decision: ReviewDecision[Any] | None = decided.decision
    if (
        decision is not None
        and decision.status == _OUTCOMES.get(action)
        and is_same_person(decision.by or "", viewing.person)
    ):
        return redirected(request, viewing.path)  # a button that was pressed twice
    review = await viewing.hf.reviews.get(viewing.id, tenant=viewing.tenant)
    lines = () if decision is not None else (str(decided),)
    notice = Banner("wrong", "Your answer was not counted: it was decided before", lines)
    return review_response(request, review, viewing, status=409, notices=[notice])
