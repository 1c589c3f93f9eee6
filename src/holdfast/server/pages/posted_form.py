"""Reads forms that browsers post, and refuses those of other sites."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from litestar.exceptions import ClientException, HTTPException

from holdfast.errors import Forbidden
from holdfast.server.pages.page import PageRequest
from holdfast.server.services import Services

__all__ = ["check_site", "read_form"]

_TYPE = "application/x-www-form-urlencoded"
_FIELDS_MAX = 2_000
# The last field of every form: without it, the end of the form is missing.
_LAST = "end"
_OWN_SITES = ("same-origin", "none")


async def read_form(request: PageRequest) -> dict[str, str]:
    """Return the fields of a form by name.

    A body that is no form is answered with 415, one that is incomplete with 400.
    """
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != _TYPE:
        raise HTTPException(f"the body must be {_TYPE}, got {given!r:.80}", status_code=415)
    try:
        fields = parse_qsl(
            (await request.body()).decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_FIELDS_MAX,
        )
    except ValueError:
        raise ClientException("the body must be a form in UTF-8") from None
    found = dict(fields)
    if len(found) < len(fields):
        raise ClientException("each field of the form must be sent once")
    if _LAST not in found:
        raise ClientException("the form did not arrive completely; open the page again")
    return found


def check_site(request: PageRequest, services: Services, *, is_signed: bool) -> None:
    """Check that a form was sent by one of our own pages, as far as the browser says it.

    ``is_signed``: the address is a secret that other sites do not know, so that a browser which
    says nothing is admitted.

    Raises:
        Forbidden: another site sent it.
    """
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is not None:
        is_own = site in _OWN_SITES
    elif origin is None:  # no browser: browsers name the origin of every form
        is_own = True
    elif origin == "null":
        is_own = is_signed
    else:
        public_url = services.hf.callbacks.public_url
        own = {request.headers.get("host", "").lower()}
        own |= {urlsplit(public_url).netloc.lower()} if public_url else set()
        is_own = origin.partition("://")[2].lower() in own
    if not is_own:
        raise Forbidden("the form was sent by another site; open the page itself and try again")
