"""Links to reviews: signed tokens, each for one review and one reviewer."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.signing import open_token, sign_token
from holdfast.errors import PublicUrlMissing, ReviewLinkExpired, ReviewLinkInvalid, ReviewNotFound
from holdfast.model.moments import utc_text
from holdfast.model.people import validated_person
from holdfast.records.keys import RunKey
from holdfast.records.review import ReviewKey
from holdfast.records.review_state import shown_decision
from holdfast.records.signing_keys import TOKEN_LIFETIME_MS_MAX
from holdfast.review.loading import ReviewStore

__all__ = ["OpenedLink", "open_review_link", "review_address", "sign_review_link"]

_PURPOSE = "review"
_CLAIMS = 5


class OpenedLink(NamedTuple):
    """What a link to a review says: nothing else may be reached with it."""

    tenant: str
    id: str
    reviewer: str


async def sign_review_link(
    kernel: Kernel, key: ReviewKey, reviewer: object, *, expires_ms: int
) -> str:
    """Return the token of a link for a reviewer, which expires at a time.

    Raises:
        InvalidRequest: the reviewer is not a name.
    """
    person = validated_person(reviewer, "reviewer")
    claims = [key.run.tenant, key.run.id, key.generation, key.name, person]
    expires_ms = min(expires_ms, kernel.clock.now_ms() + TOKEN_LIFETIME_MS_MAX)
    return await sign_token(kernel, _PURPOSE, claims, expires_ms=expires_ms)


async def open_review_link(store: ReviewStore, token: object) -> OpenedLink:
    """Return what a token says.

    Raises:
        ReviewLinkInvalid: the token is not one of this store.
        ReviewLinkExpired: the token has expired.
    """
    opened = await open_token(store.kernel, _PURPOSE, token) if isinstance(token, str) else None
    if opened is None or len(opened.claims) != _CLAIMS:
        raise ReviewLinkInvalid
    tenant, run, generation, name, reviewer = opened.claims
    # The name of a review follows from the generation, too: a later run with the id of this run
    # has no review of this name.
    link = OpenedLink(tenant, ReviewKey(RunKey(tenant, run), generation, name).id, reviewer)
    if store.kernel.clock.now_ms() >= opened.expires_ms:
        raise await _expired_error(store, link)
    return link


async def _expired_error(store: ReviewStore, link: OpenedLink) -> ReviewLinkExpired:
    """Return the error that a link has expired, which says what became of its review."""
    try:
        found = await store.find(link.id, link.tenant)
    except ReviewNotFound:
        return ReviewLinkExpired()
    if found.decision is None:
        return ReviewLinkExpired()
    decision = shown_decision(found.decision)
    return ReviewLinkExpired(
        f"the link has expired; its review was {decision.status} at {utc_text(decision.at)}",
        decision=decision,
    )


def review_address(kernel: Kernel, token: str) -> str:
    """Return the address of the page that a token opens.

    Raises:
        PublicUrlMissing: the address of the server is not known.
    """
    if kernel.public_url is None:
        raise PublicUrlMissing(
            "links to reviews need the address of the server: pass Holdfast(public_url=…) or "
            "holdfast serve --public-url, or set HOLDFAST_PUBLIC_URL",
            field="public_url",
        )
    return f"{kernel.public_url}/r/{token}"
