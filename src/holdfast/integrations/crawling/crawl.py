"""`crawl`: yields the pages of a site, one after another."""

from __future__ import annotations

import codecs
import re
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass

from holdfast.clock import Clock, SystemClock
from holdfast.errors import InvalidRequest, TargetRefused
from holdfast.integrations.crawling.frontier import FoundAddress, Frontier
from holdfast.integrations.crawling.limits import CrawlLimits
from holdfast.integrations.crawling.page_reader import PageReader, PageUnreadable
from holdfast.integrations.crawling.page_requests import (
    PAGE_TYPES,
    CrawlTimeOver,
    PageRefused,
    PageRequests,
    charset_of,
)
from holdfast.integrations.crawling.page_tasks import PageTask
from holdfast.integrations.crawling.results import CrawledPage, CrawlFailure, CrawlResult
from holdfast.integrations.crawling.robots_tags import ROBOT_NAME, header_tags
from holdfast.integrations.crawling.web_addresses import canonical_address
from holdfast.network.addresses import AllowList
from holdfast.network.bounded_gets import HttpAnswer
from holdfast.network.guarded_http import Resolve, guarded_client, resolve_host

__all__ = ["crawl"]

_PORTS = (80, 443)
_ADVICE = ". To permit it, pass it in allow"
_CONTACT = re.compile(r"[!-'*-~]{1,200}")
_SNIFFED_BYTES = 1_024
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def crawl(
    address: str,
    *,
    limits: CrawlLimits | None = None,
    allow: Iterable[str] = (),
    hosts: Iterable[str] = (),
    contact: str | None = None,
    earlier: Iterable[CrawlResult] = (),
    clock: Clock | None = None,
    resolve: Resolve = resolve_host,
) -> AsyncGenerator[CrawlResult]:
    """Yield the pages that can be reached from an address, and the addresses that gave none.

    The crawl goes breadth first and stays on the site of the address, and on ``hosts``
    (``docs.example``, ``docs.example:8080``). It obeys robots.txt and robots tags, makes one
    request at a time, and connects to public addresses at the ports 80 and 443 only. ``allow``
    permits other places: networks (``10.1.0.0/16``), or hosts with ports (``wiki.internal:8080``).
    Each request tells the owner of the site your address ``contact``.

    Pass the results that you have stored as ``earlier`` to go on after an interruption. They are
    neither asked for nor yielded again, and their texts may be empty. Leave a failure out to try
    its address again.

    An address that gives no page is yielded as a `CrawlFailure`, also the first one. If a limit
    ends the crawl, the last result is a failure of kind ``limit``.

    Raises:
        InvalidRequest: an argument is not valid.
        TargetRefused: the address is not an http or https address, or has credentials.
    """
    start = canonical_address(address) if isinstance(address, str) else None
    if start is None:
        raise TargetRefused(
            f"address must be an http or https address without credentials, got {address!r:.120}",
            field="address",
        )
    if contact is not None and not _CONTACT.fullmatch(contact):
        raise InvalidRequest(
            "contact must be an address of at most 200 ASCII characters without spaces and "
            f"parentheses, got {contact!r:.120}",
            field="contact",
        )
    limits = limits or CrawlLimits()
    setting = _Setting(
        limits=limits,
        allow=AllowList(allow, plain_http=True, ports=_PORTS, advice=_ADVICE),
        agent=f"{ROBOT_NAME}/1 (+{contact})" if contact else f"{ROBOT_NAME}/1",
        clock=clock or SystemClock(),
        resolve=resolve,
    )
    sites = [host.strip().lower().removeprefix("www.") for host in hosts]
    known = {each.asked: each for each in earlier if not _is_limit(each)}
    return _results(Frontier(start, limits=limits, sites=sites), known, setting)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    limits: CrawlLimits
    allow: AllowList
    agent: str
    clock: Clock
    resolve: Resolve


def _is_limit(result: CrawlResult) -> bool:
    return isinstance(result, CrawlFailure) and result.kind == "limit"


async def _results(
    frontier: Frontier, known: dict[str, CrawlResult], setting: _Setting
) -> AsyncGenerator[CrawlResult]:
    limits, left_bytes = setting.limits, setting.limits.total_bytes_max
    client = guarded_client(
        setting.allow, timeout_seconds=limits.page_seconds, resolve=setting.resolve
    )
    async with client, PageReader(limits) as reader:
        requests = PageRequests(
            client, setting.allow, limits=limits, agent=setting.agent, clock=setting.clock
        )
        while found := frontier.next():
            result = known.get(found.address)
            if result is None:
                if left_bytes <= 0:
                    yield _ended(f"{limits.total_bytes_max:,} bytes were read", frontier)
                    return
                if requests.seconds_left <= 0:
                    yield _ended(f"it must not take more than {limits.seconds:g} s", frontier)
                    return
                bytes_max = min(limits.page_bytes_max, left_bytes)
                try:
                    result = await _visit(
                        found, frontier, bytes_max=bytes_max, requests=requests, reader=reader
                    )
                except CrawlTimeOver:
                    yield _ended(f"it must not take more than {limits.seconds:g} s", frontier)
                    return
                yield result
            left_bytes -= result.html_bytes
            frontier.finish(result.address, result.links, depth=found.depth)
        if frontier.dropped:
            yield _ended(f"{frontier.visits} addresses were visited", frontier)


def _ended(why: str, frontier: Frontier) -> CrawlFailure:
    start = frontier.start
    reason = f"the crawl ended because {why}; at least {frontier.left} known addresses were not"
    return CrawlFailure(
        asked=start, address=start, depth=0, kind="limit", reason=f"{reason} visited"
    )


async def _visit(
    found: FoundAddress,
    frontier: Frontier,
    *,
    bytes_max: int,
    requests: PageRequests,
    reader: PageReader,
) -> CrawlResult:
    asked, depth, address, read_bytes = found.address, found.depth, found.address, 0
    try:
        address, answer = await requests.get_page(asked, frontier, depth=depth, bytes_max=bytes_max)
        read_bytes = len(answer.body)
        content_type = _page_type(answer, address)
        header = header_tags(answer.headers.get_list("x-robots-tag"))
        contents = await reader.read(
            answer.body,
            PageTask(
                address=address,
                content_type=content_type,
                charset=charset_of(answer),
                links_max=reader.limits.links_max,
                text_chars_max=reader.limits.text_chars_max,
            ),
        )
    except PageRefused as error:
        return CrawlFailure(
            asked=asked,
            address=error.address,
            depth=depth,
            kind=error.kind,
            reason=str(error),
            html_bytes=max(read_bytes, error.read_bytes),
        )
    except PageUnreadable as error:
        return CrawlFailure(
            asked=asked,
            address=address,
            depth=depth,
            kind="parse",
            reason=str(error),
            html_bytes=read_bytes,
        )
    links = () if header.nofollow else contents.links
    if header.noindex or contents.noindex:
        return CrawlFailure(
            asked=asked,
            address=address,
            depth=depth,
            kind="noindex",
            reason="the page asks robots not to use its text (noindex)",
            links=links,
            html_bytes=read_bytes,
        )
    return CrawledPage(
        asked=asked,
        address=address,
        depth=depth,
        title=contents.title,
        text=contents.text,
        links=links,
        html_bytes=read_bytes,
        content_type=content_type,
    )


def _page_type(answer: HttpAnswer, address: str) -> str:
    """Return the media type of an answer.

    Raises:
        PageRefused: it is no page.
    """
    if not 200 <= answer.status < 300:
        raise PageRefused(
            f"the server answered with status {answer.status}", kind="status", address=address
        )
    said = answer.content_type
    if said not in PAGE_TYPES:
        raise PageRefused(
            f"it is no page of text: its type is {said:.80}", kind="type", address=address
        )
    begin = answer.body[:_SNIFFED_BYTES]
    if b"\0" in begin and not begin.startswith(_UTF_16):
        raise PageRefused("it is no page of text: it has binary data", kind="type", address=address)
    if said:
        return said
    return "text/html" if begin.lstrip().startswith((b"<", b"\xef\xbb\xbf<")) else "text/plain"
