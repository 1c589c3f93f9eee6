"""`Visitor`: who looks at a page about documents, and what the person may do there."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from litestar import Response
from litestar.params import PathParameter

from holdfast.errors import Forbidden
from holdfast.server.caller import Requester
from holdfast.server.pages.page import PageRequest, rendered
from holdfast.server.pages.posted_form import check_site, read_form
from holdfast.server.roles import includes
from holdfast.server.services import Services
from holdfast.server.session_cookie import session_text

__all__ = [
    "ItemId",
    "Visitor",
    "check_form_token",
    "document_response",
    "posted_by",
    "visitor_of",
]

ItemId = Annotated[str, PathParameter(max_length=200)]
"""The id of a project or of a document in the address of a page."""


class Visitor(msgspec.Struct, frozen=True, kw_only=True):
    """Who looks, and with what right."""

    person: str
    form_token: str
    """What guards the forms of the page."""
    is_operator: bool
    """Whether the person may add, retry and delete."""
    may_review: bool
    may_sign_out: bool
    is_open: bool
    """Whether the server has no authentication, so that people choose their names."""


async def visitor_of(services: Services, requester: Requester, request: PageRequest) -> Visitor:
    """Return who makes a request for a page."""
    role = requester.identity.role
    return Visitor(
        person=requester.identity.person,
        form_token=await services.hf.sessions.sign_form(requester.identity.caller),
        is_operator=includes(role, "operator"),
        may_review=includes(role, "reviewer"),
        may_sign_out=session_text(request, secure=services.is_behind_https(request)) is not None,
        is_open=not services.options.authentication,
    )


async def document_response(
    services: Services,
    requester: Requester,
    request: PageRequest,
    template: str,
    context: Mapping[str, Any],
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response[bytes]:
    """Return a page about documents: what all of them have, and its own context."""
    now = datetime.fromtimestamp(services.hf.clock.now_ms() / 1000, UTC)
    visitor = await visitor_of(services, requester, request)
    given = {"visitor": visitor, "now": now, **context}
    return rendered(request, template, given, status=status, headers=headers)


async def posted_by(
    services: Services, requester: Requester, request: PageRequest
) -> dict[str, str]:
    """Return the fields of a form that one of our own pages gave to this person.

    Raises:
        Forbidden: another site sent it, or it is old.
    """
    check_site(request, services, is_signed=False)
    posted = await read_form(request)
    await check_form_token(services, requester, posted.get("form_token", ""))
    return posted


async def check_form_token(services: Services, requester: Requester, token: str) -> None:
    """Check that a form is one that the server gave to this person.

    Raises:
        Forbidden: it is not, or it is old.
    """
    if not await services.hf.sessions.has_signed_form(token, requester.identity.caller):
        raise Forbidden("the form has expired; open the page again")
