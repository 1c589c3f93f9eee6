"""Signs people in and out: with an API key, or, without authentication, with a name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from litestar import Response

from holdfast.access.sessions import Session
from holdfast.errors import InvalidRequest, Unauthenticated
from holdfast.model.people import validated_person
from holdfast.server.pages.page import PageRequest, page, redirected, rendered
from holdfast.server.pages.posted_form import check_site, read_form
from holdfast.server.roles import Role, includes
from holdfast.server.services import Services, ServicesOf, address_of
from holdfast.server.session_cookie import expired_cookie, session_cookie

__all__ = ["SIGN_IN"]

_INBOX = "/reviews"
# Where people may go after they have signed in, what that is called, and the role that it needs.
_PLACES: Mapping[str, tuple[str, Role]] = {
    "/reviews": ("reviews need", "reviewer"),
    "/projects": ("documents need", "viewer"),
    "/documents": ("documents need", "viewer"),
}


@page("GET", "/login", role="public")
async def show_sign_in(services: ServicesOf, request: PageRequest) -> Response[bytes]:
    """Ask for an API key, or for a name on a server without authentication."""
    next = _own_path(request.query_params.get("next", ""))
    return _form(request, services, next=next)


@page("POST", "/login", role="public")
async def sign_in(services: ServicesOf, request: PageRequest) -> Response[bytes]:
    """Sign a person in."""
    check_site(request, services, is_signed=False)
    posted = await read_form(request)
    next = _own_path(posted.get("next", ""))
    try:
        if services.options.authentication:
            identity, text = await services.sign_in(
                posted.get("key", ""), address=address_of(request)
            )
            place, needed = _PLACES[_place_of(next)]
            if not includes(identity.role, needed):
                return _form(
                    request,
                    services,
                    next=next,
                    error=f"This key has the role {identity.role}; {place} the role {needed}.",
                    status=403,
                )
        else:
            name = validated_person(posted.get("name", ""), "name")
            text = await services.hf.sessions.open(Session("", name))
    except (InvalidRequest, Unauthenticated) as error:
        said = str(error)
        return _form(
            request, services, next=next, error=f"{said[:1].upper()}{said[1:]}.", status=422
        )
    cookie = session_cookie(text, secure=services.is_behind_https(request))
    return redirected(request, next, cookies=[cookie])


@page("POST", "/logout", role="public")
async def sign_out(services: ServicesOf, request: PageRequest) -> Response[bytes]:
    """Sign the browser out."""
    check_site(request, services, is_signed=False)
    cookie = expired_cookie(secure=services.is_behind_https(request))
    return redirected(request, "/login", cookies=[cookie])


def _form(
    request: PageRequest, services: Services, *, next: str, error: str = "", status: int = 200
) -> Response[bytes]:
    context: dict[str, Any] = {
        "with_key": services.options.authentication,
        "next": next,
        "error": error,
        "name": "",
        "problem": "",
    }
    return rendered(request, "sign_in.html", context, status=status)


def _own_path(asked: str) -> str:
    """Return the path of a page: no other site may send people elsewhere through this one."""
    path = re.split(r"[?#]", asked, maxsplit=1)[0]
    is_own = bool(_place_of(path)) and "\\" not in path and path.isprintable()
    return quote(path, safe="/~%") if is_own else _INBOX


def _place_of(path: str) -> str:
    """Return the place to which a path belongs; empty if it is none of ours."""
    found = (each for each in _PLACES if path == each or path.startswith(f"{each}/"))
    return next(found, "")


SIGN_IN = (show_sign_in, sign_in, sign_out)
