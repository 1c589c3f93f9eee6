"""The inbox: the reviews of a tenant, for people who are signed in."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeAlias, get_args
from urllib.parse import quote

from litestar import Response
from litestar.params import PathParameter

from holdfast.errors import Forbidden, InvalidRequest
from holdfast.server.caller import Requester, RequesterOf
from holdfast.server.pages.actions import act
from holdfast.server.pages.page import PageRequest, page, rendered
from holdfast.server.pages.posted_form import check_site, read_form
from holdfast.server.pages.review_page import Viewing, review_response
from holdfast.server.roles import includes
from holdfast.server.services import Services, ServicesOf
from holdfast.server.session_cookie import session_text

__all__ = ["INBOX"]

View: TypeAlias = Literal["mine", "all", "overdue", "decided"]
ReviewId = Annotated[str, PathParameter(max_length=200)]

_LABELS: dict[str, str] = {
    "mine": "Mine",
    "all": "All",
    "overdue": "Overdue",
    "decided": "Decided",
}
_VIEWS: dict[str, View] = {each: each for each in get_args(View)}
_COUNTED: tuple[View, ...] = ("mine", "all", "overdue")
_PAGE_REVIEWS = 50
_COUNTED_MAX = 100


@page("GET", "/reviews", role="reviewer")
async def show_inbox(
    services: ServicesOf, requester: RequesterOf, request: PageRequest
) -> Response[bytes]:
    """Show the reviews that wait for the person, for every reviewer, or for too long."""
    asked = request.query_params.get("view", "mine")
    view = _VIEWS.get(asked, "mine")
    cursor = request.query_params.get("cursor") or None
    listing = requester.hf.reviews.list(
        **_filter(requester, view), limit=_PAGE_REVIEWS, cursor=cursor
    )
    counting = asyncio.gather(*(_count(requester, each) for each in _COUNTED))
    try:
        shown, counts = await asyncio.gather(listing, counting)
    except InvalidRequest:
        if cursor is None:
            raise
        raise InvalidRequest("this page of the inbox is gone: open the inbox again") from None
    now = datetime.fromtimestamp(services.hf.clock.now_ms() / 1000, UTC)
    context: dict[str, Any] = {
        "page": shown,
        "paths": {review.id: quote(review.id, safe="~") for review in shown.reviews},
        "view": view,
        "views": _LABELS,
        "counts": {**dict(zip(_COUNTED, counts, strict=True)), "decided": ""},
        "more": None if shown.cursor is None else quote(shown.cursor),
        "is_first": cursor is None,
        "now": now,
        "viewing": await _viewing(services, requester, request, id=""),
    }
    return rendered(request, "inbox.html", context)


@page("GET", "/reviews/{id:str}", role="reviewer")
async def show_review(
    services: ServicesOf, requester: RequesterOf, request: PageRequest, id: ReviewId
) -> Response[bytes]:
    """Show a review, with everything that a reviewer can do with it."""
    review = await requester.hf.reviews.get(id, tenant=requester.tenant)
    viewing = await _viewing(services, requester, request, id=id)
    return review_response(request, review, viewing)


@page("POST", "/reviews/{id:str}", role="reviewer")
async def act_on_review(
    services: ServicesOf, requester: RequesterOf, request: PageRequest, id: ReviewId
) -> Response[bytes]:
    """Decide, claim, release, reassign, comment or edit a review."""
    check_site(request, services, is_signed=False)
    await requester.hf.reviews.get(id, tenant=requester.tenant)
    posted = await read_form(request)
    holder = requester.identity.caller
    if not await services.hf.sessions.has_signed_form(posted.get("form_token", ""), holder):
        raise Forbidden("the form has expired; open the page again")
    viewing = await _viewing(services, requester, request, id=id)
    return await act(request, viewing, posted)


async def _viewing(
    services: Services, requester: Requester, request: PageRequest, *, id: str
) -> Viewing:
    return Viewing(
        hf=requester.hf,
        id=id,
        tenant=requester.tenant,
        person=requester.identity.person,
        path=f"/reviews/{quote(id, safe='~')}",
        form_token=await services.hf.sessions.sign_form(requester.identity.caller),
        is_operator=includes(requester.identity.role, "operator"),
        may_sign_out=session_text(request, secure=services.is_behind_https(request)) is not None,
        is_open=not services.options.authentication,
    )


def _filter(requester: Requester, view: View) -> dict[str, Any]:
    conditions: dict[str, Any] = {"tenant": requester.tenant}
    if view == "mine":
        conditions["assignee"] = requester.identity.person
    elif view == "overdue":
        conditions["overdue"] = True
    elif view == "decided":
        conditions["status"] = "decided"
    return conditions


async def _count(requester: Requester, view: View) -> str:
    """Return how many reviews a view has, as far as one page tells."""
    found = await requester.hf.reviews.list(**_filter(requester, view), limit=_COUNTED_MAX)
    return f"{len(found.reviews)}{'' if found.cursor is None else '+'}"


INBOX = (show_inbox, show_review, act_on_review)
