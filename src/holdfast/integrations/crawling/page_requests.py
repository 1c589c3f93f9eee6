"""Asks for pages: robots.txt first, one request at a time, each redirect checked like a link."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import httpx

from holdfast.clock import Clock
from holdfast.errors import TargetRefused
from holdfast.integrations.crawling.frontier import Frontier
from holdfast.integrations.crawling.limits import CrawlLimits
from holdfast.integrations.crawling.results import CrawlFailureKind
from holdfast.integrations.crawling.robots_files import ROBOTS_BYTES_MAX, RobotsFiles
from holdfast.integrations.crawling.web_addresses import origin_of, resolved_link
from holdfast.network.addresses import AllowList
from holdfast.network.bounded_gets import GetFailed, HttpAnswer, get_answer

__all__ = ["PAGE_TYPES", "CrawlTimeOver", "PageRefused", "PageRequests", "charset_of"]

PAGE_TYPES = frozenset({"", "application/xhtml+xml", "text/html", "text/plain"})
"""Media types that have text to read. Servers also send pages without any type."""

_ACCEPT = "text/html, application/xhtml+xml, text/plain;q=0.9, */*;q=0.1"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CHARSET = re.compile(r";\s*charset\s*=\s*[\"']?([A-Za-z0-9_:.-]{1,40})", re.IGNORECASE)


class CrawlTimeOver(Exception):
    """A request would have to wait until the time of the crawl is over."""


class PageRefused(Exception):
    """An address gave no page."""

    def __init__(
        self, reason: str, *, kind: CrawlFailureKind, address: str, read_bytes: int = 0
    ) -> None:
        super().__init__(reason)
        self.kind: CrawlFailureKind = kind
        self.address = address
        self.read_bytes = read_bytes


class PageRequests:
    """The requests of one crawl."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        allow: AllowList,
        *,
        limits: CrawlLimits,
        agent: str,
        clock: Clock,
    ) -> None:
        self._client = client
        self._allow = allow
        self._limits = limits
        self._clock = clock
        self._headers = {"user-agent": agent, "accept": _ACCEPT}
        self._robots = RobotsFiles(self._get_robots)
        self._ends_at = clock.monotonic() + limits.seconds
        self._last_request: dict[str, float] = {}

    @property
    def seconds_left(self) -> float:
        """How long the crawl may go on."""
        return self._ends_at - self._clock.monotonic()

    async def get_page(
        self, address: str, frontier: Frontier, *, depth: int, bytes_max: int
    ) -> tuple[str, HttpAnswer]:
        """Get a page; return its address after redirects, and the answer.

        Raises:
            PageRefused: there is no page, or it must not be asked for.
            CrawlTimeOver: the crawl would end before its turn.
        """
        start, passed = address, {address}
        for _ in range(self._limits.redirects_max + 1):
            answer = await self._get(address, bytes_max=bytes_max)
            if answer.status not in _REDIRECTS:
                return address, answer
            target = resolved_link(answer.headers.get("location", ""), seen_from=address)
            if target is None:
                raise _misled(address, "it redirects to no http or https address")
            if target in passed:
                raise _misled(address, "it redirects in circles")
            if depth and not frontier.admits(target):
                raise _misled(address, f"it redirects to another site: {target:.200}")
            if frontier.is_done(target):
                raise _misled(address, f"it redirects to a page that is crawled: {target:.200}")
            passed.add(target)
            address = target
        raise _misled(start, f"it redirects more than {self._limits.redirects_max} times")

    async def _get(self, address: str, *, bytes_max: int) -> HttpAnswer:
        try:
            self._allow.check_url(address)
            await self._wait_for_turn(address)
            return await self._request(address, body_bytes_max=bytes_max)
        except TargetRefused as error:
            raise PageRefused(str(error), kind="refused", address=address) from None
        except GetFailed as error:
            read = bytes_max if error.kind == "size" else 0
            raise PageRefused(
                str(error), kind=error.kind, address=address, read_bytes=read
            ) from None

    async def _wait_for_turn(self, address: str) -> None:
        """Wait until the server may be asked for an address.

        Raises:
            PageRefused: its robots.txt forbids it.
            CrawlTimeOver: the crawl would end before.
        """
        rules = await self._robots.rules(origin_of(address))
        if not rules.permits(address):
            why = rules.forbidden or "robots.txt forbids it"
            raise PageRefused(why, kind=rules.kind, address=address)
        asked_for = min(rules.delay_seconds, self._limits.delay_seconds_max)
        delay = max(self._limits.delay_seconds, asked_for)
        last = self._last_request.get(_host(address))
        wait = 0.0 if last is None else last + delay - self._clock.monotonic()
        if wait > max(self.seconds_left, 0):
            raise CrawlTimeOver
        if wait > 0:
            await self._clock.sleep(wait)

    async def _request(self, address: str, *, body_bytes_max: int) -> HttpAnswer:
        try:
            return await get_answer(
                self._client,
                address,
                headers=self._headers,
                wanted=_has_text,
                body_bytes_max=body_bytes_max,
                seconds=self._seconds(),
            )
        finally:
            self._last_request[_host(address)] = self._clock.monotonic()

    async def _get_robots(self, address: str) -> HttpAnswer:
        return await get_answer(
            self._client,
            address,
            headers=self._headers,
            wanted=lambda answer: answer.status == 200,
            body_bytes_max=ROBOTS_BYTES_MAX,
            seconds=self._seconds(),
            cut=True,
        )

    def _seconds(self) -> float:
        return max(0.001, min(self._limits.page_seconds, self.seconds_left))


def charset_of(answer: HttpAnswer) -> str:
    """Return the charset that an answer names, or an empty text."""
    found = _CHARSET.search(answer.headers.get("content-type", ""))
    return found[1] if found else ""


def _has_text(answer: HttpAnswer) -> bool:
    return 200 <= answer.status < 300 and answer.content_type in PAGE_TYPES


def _misled(address: str, reason: str) -> PageRefused:
    return PageRefused(reason, kind="redirect", address=address)


def _host(address: str) -> str:
    return urlsplit(address).hostname or ""
