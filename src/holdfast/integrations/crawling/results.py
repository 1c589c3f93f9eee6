"""What a crawl yields: pages, and addresses that gave none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["CrawlFailure", "CrawlFailureKind", "CrawlResult", "CrawledPage"]

CrawlFailureKind: TypeAlias = Literal[
    "limit",
    "network",
    "noindex",
    "parse",
    "redirect",
    "refused",
    "robots",
    "size",
    "status",
    "time",
    "type",
]
"""Why an address gave no page.

- ``limit``: no address; a limit of the crawl ended it.
- ``network``: the server cannot be reached, or its answer was cut off.
- ``noindex``: the page asks robots not to use it.
- ``parse``: the text of the page cannot be read within the limits.
- ``redirect``: it leads to another site, to a page that was crawled before, or in circles.
- ``refused``: the guard refuses the address: it is private, or its port is not permitted.
- ``robots``: the host's robots.txt forbids it, or cannot be read.
- ``size``: the answer is larger than permitted.
- ``status``: the server answered with an error.
- ``time``: the answer took longer than permitted.
- ``type``: it is no page: an image, a document.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawledPage:
    """A page that was crawled, and its text."""

    asked: str
    """The address that a link or the caller named, in its canonical form."""
    address: str
    """The address of the page, after redirects."""
    depth: int
    """Links between the start and the page."""
    title: str
    """Empty if the page has none."""
    text: str
    """The main text, without navigation, scripts and styles."""
    links: tuple[str, ...]
    """Addresses that the page links to and that a robot may follow, also of other sites."""
    html_bytes: int
    """The size of the body, unpacked."""
    content_type: str
    """The media type, such as ``text/html``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlFailure:
    """An address that gave no page, and why."""

    asked: str
    """The address that a link or the caller named, in its canonical form."""
    address: str
    """The address that failed, after redirects."""
    depth: int
    """Links between the start and the address."""
    kind: CrawlFailureKind
    reason: str
    """A sentence for people."""
    links: tuple[str, ...] = ()
    """Links of a page that must not be used itself, but whose links may be followed."""
    html_bytes: int = 0
    """The size of the body, unpacked, if it was read."""


CrawlResult: TypeAlias = CrawledPage | CrawlFailure
