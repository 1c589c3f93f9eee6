"""What servers and pages ask of robots is obeyed."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from holdfast.integrations.crawling import CrawledPage, CrawlFailure
from holdfast.integrations.crawling.robots_files import ROBOTS_BYTES_MAX, robots_rules
from holdfast.integrations.crawling.robots_tags import RobotsTags, header_tags
from holdfast.network.bounded_gets import HttpAnswer
from tests.integrations.crawling.site import Site, answer, page, redirect


def robots(text: str) -> bytes:
    return answer(text, type="text/plain")


async def test_what_robots_txt_forbids_is_not_asked_for(site: Site) -> None:
    site.pages |= {
        "/robots.txt": robots("User-agent: *\nDisallow: /private\nAllow: /private/open"),
        "/": page("/private/a", "/private/open", "/b"),
        "/private/open": page(),
        "/b": redirect("/private/b"),
        "/private/a": page(),
        "/private/b": page(),
    }
    results = await site.results()
    kinds = [each.kind if isinstance(each, CrawlFailure) else "page" for each in results]
    assert kinds == ["page", "robots", "page", "robots"]
    assert site.asked == ["/robots.txt", "/", "/private/open", "/b"]
    assert isinstance(results[1], CrawlFailure)
    assert results[1].reason == "robots.txt forbids it"


async def test_a_group_for_the_crawler_counts_before_the_one_for_all(site: Site) -> None:
    site.pages |= {"/": page()}
    site.pages["/robots.txt"] = robots(
        "User-agent: *\nDisallow: /\n\nUser-agent: Holdfast\nAllow: /"
    )
    assert await site.text()
    site.pages["/robots.txt"] = robots(
        "User-agent: holdfast/1\nDisallow: /\nUser-agent: *\nAllow: /"
    )
    assert (await site.failure()).kind == "robots"
    site.pages["/robots.txt"] = robots("User-agent: holdfaster\nUser-agent: hold\nDisallow: /")
    assert await site.text()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
async def test_without_a_robots_txt_everything_is_permitted(site: Site, status: int) -> None:
    site.pages |= {"/robots.txt": answer("User-agent: *\nDisallow: /", status=status), "/": page()}
    assert await site.text()


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_with_a_robots_txt_that_cannot_be_read_nothing_is(site: Site, status: int) -> None:
    site.pages |= {"/robots.txt": answer(status=status), "/": page("/a"), "/a": page()}
    failed = await site.failure()
    assert failed.kind == "robots"
    assert failed.reason == f"robots.txt could not be read: status {status}"
    assert site.asked == ["/robots.txt"]


async def test_a_robots_txt_that_is_cut_off_permits_nothing(site: Site) -> None:
    async def cut(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nUser-agent: *")
        writer.close()

    site.pages |= {"/robots.txt": cut, "/": page()}
    failed = await site.failure()
    assert failed.kind == "network"
    assert "robots.txt could not be read" in failed.reason


async def test_redirects_of_robots_txt_are_followed(site: Site) -> None:
    site.pages |= {
        "/robots.txt": redirect("/elsewhere"),
        "/elsewhere": robots("User-agent: *\nDisallow: /"),
        "/": page(),
    }
    assert (await site.failure()).kind == "robots"
    site.pages["/elsewhere"] = redirect("/robots.txt")
    assert await site.text()  # one that leads nowhere is none


async def test_the_begin_of_an_endless_robots_txt_counts(site: Site) -> None:
    rules = "User-agent: *\nDisallow: /private\n"
    endless = rules + "# padding\n" * (ROBOTS_BYTES_MAX // 10) + "Disallow: /\n"
    site.pages |= {"/robots.txt": robots(endless), "/": page("/private")}
    first, second = await site.results()
    assert isinstance(first, CrawledPage)
    assert isinstance(second, CrawlFailure)
    assert second.kind == "robots"


@pytest.mark.parametrize("page_path", ["/", "/meta"])
async def test_a_page_that_must_not_be_indexed_has_no_text(site: Site, page_path: str) -> None:
    site.pages |= {
        "/": answer('<a href="/a">a</a>', more="x-robots-tag: noindex\r\n"),
        "/meta": page("/a", head='<meta name="ROBOTS" content="NoIndex">'),
        "/a": page(),
    }
    failed, following = await site.results(page_path)
    assert isinstance(failed, CrawlFailure)
    assert failed.kind == "noindex"
    assert isinstance(following, CrawledPage)  # its links may be followed


@pytest.mark.parametrize(
    "told",
    [
        answer('<a href="/a">a</a>', more="x-robots-tag: nofollow\r\n"),
        page("/a", head='<meta name="robots" content="max-snippet:5, nofollow">'),
        page("/a", head='<meta name="holdfast" content="nofollow">'),
        answer('<a rel="external nofollow" href="/a">a</a>'),
        answer('<a rel="UGC" href="/a">a</a><a rel=sponsored href="/a">a</a>'),
    ],
    ids=["header", "meta", "by-name", "link", "ugc"],
)
async def test_links_that_must_not_be_followed_are_not(site: Site, told: bytes) -> None:
    site.pages |= {"/": told, "/a": page()}
    (only,) = await site.results()
    assert isinstance(only, CrawledPage)
    assert only.links == ()


@pytest.mark.parametrize(
    ("values", "tags"),
    [
        (["noindex"], RobotsTags(noindex=True)),
        (["none"], RobotsTags(noindex=True, nofollow=True)),
        (["otherbot: noindex, nofollow"], RobotsTags()),
        (["otherbot: noindex", "nofollow"], RobotsTags(nofollow=True)),
        (["Holdfast: noindex"], RobotsTags(noindex=True)),
        (["unavailable_after: 25 Jun 2010 15:00:00 PST, noindex"], RobotsTags(noindex=True)),
        (["otherbot: noindex, holdfast: nofollow"], RobotsTags(nofollow=True)),
        (["all", ""], RobotsTags()),
    ],
)
def test_headers_for_robots(values: list[str], tags: RobotsTags) -> None:
    assert header_tags(values) == tags


def test_a_robots_txt_that_names_many_robots_needs_no_more_memory() -> None:
    """Protego keeps each rule once for each robot of its group: here it would be 10^8 of them."""
    names = "".join(f"User-agent: robot{number}\n" for number in range(12_000))
    rules = "".join(f"Disallow: /{number}\n" for number in range(12_000))
    body = f"{names}{rules}User-agent: *\nDisallow: /x\n".encode()
    assert len(body) < ROBOTS_BYTES_MAX
    found = robots_rules(HttpAnswer(200, httpx.Headers(), body))
    assert found.permits("http://a.example/1")
    assert not found.permits("http://a.example/x")
    assert found.parsed is not None
    assert len(found.parsed._user_agents) == 2


@pytest.mark.parametrize("delay", ["-1", "nan", "inf", "1e999", "x", ""])
def test_a_delay_that_is_none(delay: str) -> None:
    body = f"User-agent: *\nCrawl-delay: {delay}".encode()
    assert robots_rules(HttpAnswer(200, httpx.Headers(), body)).delay_seconds == 0


def test_a_rate_is_a_delay() -> None:
    body = b"User-agent: *\nRequest-rate: 2/6s"
    assert robots_rules(HttpAnswer(200, httpx.Headers(), body)).delay_seconds == 3
