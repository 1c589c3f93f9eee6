"""`CrawlLimits`: how far a crawl goes, and what it takes from each page."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from holdfast.errors import InvalidRequest

__all__ = ["CrawlLimits"]

_FROM_ZERO = frozenset({"depth_max", "redirects_max", "delay_seconds", "delay_seconds_max"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlLimits:
    """How far a crawl goes, and what it takes from each page.

    Raises:
        InvalidRequest: a limit is not a number, or too small.
    """

    pages_max: int = 100
    """Addresses that are visited. Those that fail count."""
    depth_max: int = 3
    """Links between the start and a page; 0 crawls the start alone."""
    page_bytes_max: int = 5_000_000
    """The unpacked body of one page."""
    total_bytes_max: int = 100_000_000
    """The unpacked bodies of all pages."""
    page_seconds: float = 30.0
    """The time for one answer, from the connection to its last byte."""
    seconds: float = 900.0
    """The time for the crawl. An answer that has begun to arrive may use its own time."""
    redirects_max: int = 5
    """Redirects from a link to its page."""
    links_max: int = 1_000
    """Links that are taken from one page."""
    text_chars_max: int = 1_000_000
    """The text of one page. The rest is cut off."""
    delay_seconds: float = 0.5
    """The least time between two requests to one host."""
    delay_seconds_max: float = 10.0
    """The longest delay that a robots.txt can ask for."""
    parse_seconds: float = 20.0
    """The time for reading the text of one page."""
    parse_memory_bytes: int = 512_000_000
    """Memory of the process that reads the text of pages, above what its libraries take."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value: object = getattr(self, field.name)
            kinds = (int,) if field.type == "int" else (int, float)
            least = 0 if field.name in _FROM_ZERO else 1 if field.type == "int" else 0.001
            if (
                not isinstance(value, kinds)
                or isinstance(value, bool)
                or not math.isfinite(value)
                or value < least
            ):
                kind = "an integer" if field.type == "int" else "a number"
                raise InvalidRequest(
                    f"{field.name} must be {kind} from {least}, got {value!r:.40}", field=field.name
                )
