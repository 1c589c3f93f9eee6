"""Which addresses a crawl visits next: breadth first, each once, within the site and the limits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from holdfast.integrations.crawling.limits import CrawlLimits
from holdfast.integrations.crawling.web_addresses import site_of

__all__ = ["FoundAddress", "Frontier"]


class FoundAddress(NamedTuple):
    """An address that is visited."""

    address: str
    depth: int


class Frontier:
    """The addresses that a crawl knows and has not visited. It does no I/O.

    The order depends on the pages alone, so that a crawl that is resumed goes on as it was.
    """

    def __init__(self, start: str, *, limits: CrawlLimits, sites: Iterable[str] = ()) -> None:
        self.start = start
        self._limits = limits
        self._sites = {site_of(start), *sites}
        self._waiting: deque[FoundAddress] = deque([FoundAddress(start, 0)])
        self._current: FoundAddress | None = None
        self._seen = {start}
        self._done: set[str] = set()
        self.visits = 0
        self.dropped = 0
        """Addresses beyond the number of pages that a crawl visits. Repeats count again."""

    @property
    def left(self) -> int:
        """How many addresses are known and not visited, with the one that was taken last."""
        return len(self._waiting) + self.dropped + (self._current is not None)

    def next(self) -> FoundAddress | None:
        """Take the next address; None if there is none."""
        while self._waiting:
            self._current = self._waiting.popleft()
            # A redirect may have led to it since it was found.
            if self._current.address not in self._done:
                self.visits += 1
                return self._current
        self._current = None
        return None

    def admits(self, address: str) -> bool:
        """Return whether an address is in the crawl's sites."""
        return site_of(address) in self._sites

    def is_done(self, address: str) -> bool:
        """Return whether a page of this address was crawled."""
        return address in self._done

    def finish(self, address: str, links: Iterable[str] = (), *, depth: int) -> None:
        """Note where a visit ended, and which links it found there."""
        self._current = None
        if depth == 0:
            self._sites.add(site_of(address))  # the start may redirect to another site
        self._done.add(address)
        if depth >= self._limits.depth_max:
            return
        room = self._limits.pages_max - self.visits
        for link in links:
            if link in self._seen or not self.admits(link):
                continue
            if len(self._waiting) >= room:
                self.dropped += 1
                continue
            self._seen.add(link)
            self._waiting.append(FoundAddress(link, depth + 1))
