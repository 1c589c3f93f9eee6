"""The page behind a link to a review. The signed token in its path is all that it needs.

GET and HEAD change nothing, so that programs may follow every link of a mail.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

from litestar import Response
from litestar.params import PathParameter

from holdfast.errors import ReviewLinkInvalid, ReviewNotFound
from holdfast.server.pages.actions import act
from holdfast.server.pages.page import PageRequest, page
from holdfast.server.pages.posted_form import check_site, read_form
from holdfast.server.pages.review_page import Viewing, review_response
from holdfast.server.services import Services, ServicesOf

__all__ = ["LINKS"]

Token = Annotated[str, PathParameter(max_length=2048)]


@page("GET", "/r/{token:str}", role="public")
async def show_linked_review(
    services: ServicesOf, request: PageRequest, token: Token
) -> Response[bytes]:
    """Show a review to the reviewer of the link."""
    viewing = await _opened(services, token)
    try:
        review = await services.hf.reviews.get(viewing.id, tenant=viewing.tenant)
    except ReviewNotFound:
        raise ReviewLinkInvalid from None
    return review_response(request, review, viewing)


@page("POST", "/r/{token:str}", role="public")
async def decide_linked_review(
    services: ServicesOf, request: PageRequest, token: Token
) -> Response[bytes]:
    """Decide a review as the reviewer of the link."""
    check_site(request, services, is_signed=True)
    viewing = await _opened(services, token)  # who has no token must not make the server read
    try:
        return await act(request, viewing, await read_form(request))
    except ReviewNotFound:
        raise ReviewLinkInvalid from None


async def _opened(services: Services, token: str) -> Viewing:
    services.review_link_rates.admit(hashlib.sha256(token.encode()).hexdigest())
    opened = await services.hf.reviews.open_link(token)
    return Viewing(
        hf=services.hf,
        id=opened.id,
        tenant=opened.tenant,
        person=opened.reviewer,
        path=f"/r/{token}",
        by_link=True,
    )


LINKS = (show_linked_review, decide_linked_review)
