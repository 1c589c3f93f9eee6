"""A crawl of a small site: its order, its limits, and how it goes on after an interruption."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from holdfast.clock import SystemClock
from holdfast.errors import InvalidRequest, TargetRefused
from holdfast.integrations.crawling import CrawledPage, CrawlFailure, CrawlLimits, crawl
from tests.integrations.crawling.site import Site, answer, page, redirect, running_site


def tree(site: Site) -> None:
    site.pages |= {
        "/": page("/a", "/b", "/a#part", "/missing"),
        "/a": page("/a1", "/b", "/", text="Text of a."),
        "/b": page("/b1", text="Text of b."),
        "/a1": page("/a2"),
        "/b1": page(),
        "/a2": page("/a3"),
        "/a3": page(),
    }


def paths(results: list[CrawledPage | CrawlFailure]) -> list[str]:
    return ["/" + each.asked.split("/", 3)[3] for each in results]


async def test_pages_come_breadth_first_and_once(site: Site) -> None:
    tree(site)
    results = await site.results(limits={"depth_max": 2})
    assert paths(results) == ["/", "/a", "/b", "/missing", "/a1", "/b1"]
    assert [each.depth for each in results] == [0, 1, 1, 1, 2, 2]
    assert site.asked == ["/robots.txt", *paths(results)]
    first, missing = results[0], results[3]
    assert isinstance(first, CrawledPage)
    assert first.text.startswith("A text.")
    assert first.links == (site.url("/a"), site.url("/b"), site.url("/missing"))
    assert first.content_type == "text/html"
    assert isinstance(missing, CrawlFailure)
    assert (missing.kind, missing.reason) == ("status", "the server answered with status 404")


async def test_the_depth_is_limited(site: Site) -> None:
    tree(site)
    assert paths(await site.results(limits={"depth_max": 0})) == ["/"]
    assert "/a2" in paths(await site.results(limits={"depth_max": 3}))
    assert "/a3" in paths(await site.results(limits={"depth_max": 4}))


async def test_a_site_without_an_end_is_left_after_some_pages(site: Site) -> None:
    for day in range(40):
        site.pages[f"/calendar?day={day}"] = page(
            *(f"/calendar?day={day + more}" for more in range(1, 5))
        )
    results = await site.results("/calendar?day=0", limits={"pages_max": 7, "depth_max": 1_000})
    pages, last = results[:-1], results[-1]
    assert paths(pages) == [f"/calendar?day={day}" for day in range(7)]
    assert isinstance(last, CrawlFailure)
    assert last.kind == "limit"
    assert "7 addresses were visited" in last.reason
    assert len(site.asked) == 8


async def test_the_bytes_of_all_pages_are_limited(site: Site) -> None:
    for number in range(9):
        site.pages[f"/{number}"] = page(f"/{number + 1}", text="x" * 1_000)
    results = await site.results("/0", limits={"total_bytes_max": 2_500, "depth_max": 9})
    kinds = [each.kind if isinstance(each, CrawlFailure) else "page" for each in results]
    assert kinds == ["page", "page", "size"]  # the third does not fit, so there are no more links
    site.pages["/0"] = page("/1", "/2", "/3", text="x" * 3_000)
    results = await site.results("/0", limits={"total_bytes_max": 4_000})
    kinds = [each.kind if isinstance(each, CrawlFailure) else "page" for each in results]
    assert kinds == ["page", "size", "limit"]


async def test_a_crawl_goes_on_where_it_was_interrupted(site: Site) -> None:
    tree(site)
    site.pages["/b"] = redirect("/moved")
    site.pages["/moved"] = page("/b1", "/c")
    whole = await site.results(limits={"depth_max": 2})
    for length in range(len(whole) + 1):
        site.asked.clear()
        rest = await site.results(limits={"depth_max": 2}, earlier=whole[:length])
        assert rest == whole[length:]
        assert set(site.asked) <= {"/robots.txt", "/moved", *paths(rest)}
        assert ("/moved" in site.asked) == ("/b" in paths(rest))


async def test_a_failure_that_is_left_out_is_tried_again(site: Site) -> None:
    tree(site)
    whole = await site.results(limits={"depth_max": 1})
    site.pages["/missing"] = page(text="Here again.")
    earlier = [each for each in whole if isinstance(each, CrawledPage)]
    (again,) = await site.results(limits={"depth_max": 1}, earlier=earlier)
    assert isinstance(again, CrawledPage)
    assert again.text.startswith("Here again.")


async def test_other_sites_are_left_alone_unless_they_are_named(site: Site) -> None:
    async with running_site() as other:
        other.pages["/"] = page()
        site.pages["/"] = page(other.url("/"))
        allow = [site.host, other.host]
        (alone,) = await site.results(allow=allow)
        assert isinstance(alone, CrawledPage)
        assert alone.links == (other.url("/"),)
        assert other.asked == []
        results = await site.results(allow=allow, hosts=[other.host])
        assert [each.asked for each in results] == [site.url("/"), other.url("/")]
        assert other.asked == ["/robots.txt", "/"]


async def test_the_start_may_lead_to_another_site_and_links_may_not(site: Site) -> None:
    async with running_site() as other:
        other.pages["/"] = page("/next")
        other.pages["/next"] = redirect(site.url("/back"))
        site.pages["/"] = redirect(other.url("/"))
        site.pages["/back"] = page()
        start, following = await site.results(allow=[site.host, other.host])
        assert isinstance(start, CrawledPage)
        assert (start.asked, start.address) == (site.url("/"), other.url("/"))
        assert isinstance(following, CrawledPage)  # the site of the start was not left

        other.pages["/next"] = redirect("http://elsewhere.example/")
        failed = (await site.results(allow=[site.host, other.host]))[1]
        assert isinstance(failed, CrawlFailure)
        assert failed.kind == "redirect"
        assert "another site: http://elsewhere.example/" in failed.reason


async def test_redirects_in_circles_end(site: Site) -> None:
    site.pages |= {"/": redirect("/a"), "/a": redirect("/b"), "/b": redirect("/a")}
    failed = await site.failure()
    assert (failed.kind, failed.address) == ("redirect", site.url("/b"))
    assert "circles" in failed.reason
    assert site.asked == ["/robots.txt", "/", "/a", "/b"]


async def test_the_number_of_redirects_is_limited(site: Site) -> None:
    for number in range(9):
        site.pages[f"/{number}"] = redirect(f"/{number + 1}")
    failed = await site.failure("/0")
    assert failed.kind == "redirect"
    assert "more than 5 times" in failed.reason
    assert len(site.asked) == 1 + 6


async def test_a_page_that_redirects_lead_to_is_crawled_once(site: Site) -> None:
    site.pages |= {"/": page("/old", "/new"), "/old": redirect("/new"), "/new": page("/older")}
    site.pages["/older"] = redirect("/new")
    results = await site.results()
    assert site.asked.count("/new") == 1
    assert paths(results) == ["/", "/old", "/older"]
    last = results[-1]
    assert isinstance(last, CrawlFailure)
    assert "is crawled" in last.reason


async def test_one_request_at_a_time_with_a_pause(site: Site) -> None:
    class Clock(SystemClock):
        """Sleeps no time, and remembers for how long it was asked to."""

        def __init__(self) -> None:
            self.past = 0.0
            self.slept: list[float] = []

        def monotonic(self) -> float:
            return self.past

        async def sleep(self, seconds: float) -> None:
            self.slept.append(seconds)
            self.past += seconds
            await super().sleep(0)

    tree(site)
    clock = Clock()
    await site.results(limits={"depth_max": 1, "delay_seconds": 2.0}, clock=clock)
    assert clock.slept == [2.0] * 3  # four pages
    assert site.at_once_max == 1

    clock, site.pages["/robots.txt"] = Clock(), answer("User-agent: *\nCrawl-delay: 3", type="")
    await site.results(limits={"depth_max": 1, "delay_seconds": 2.0}, clock=clock)
    assert clock.slept == [3.0] * 3

    clock, site.pages["/robots.txt"] = Clock(), answer("User-agent: *\nCrawl-delay: 9999", type="")
    await site.results(limits={"depth_max": 1}, clock=clock)
    assert clock.slept == [10.0] * 3

    clock = Clock()
    results = await site.results(limits={"depth_max": 1, "seconds": 25}, clock=clock)
    assert paths(results) == ["/", "/a", "/b", "/"]
    assert isinstance(results[-1], CrawlFailure)
    assert results[-1].kind == "limit"
    assert "25 s; at least 1 known" in results[-1].reason


async def test_requests_say_who_asks(site: Site) -> None:
    site.pages["/"] = page()
    await site.only(contact="https://crawler.example/about")
    assert {each["user-agent"] for each in site.headers} == {
        "holdfast/1 (+https://crawler.example/about)"
    }
    assert not any("cookie" in each for each in site.headers)


async def test_cookies_are_not_kept(site: Site) -> None:
    site.pages |= {"/": answer('<a href="/a">a</a>', more="set-cookie: a=b; path=/\r\n")}
    site.pages["/a"] = page()
    await site.results()
    assert not any("cookie" in each for each in site.headers)


async def test_a_reader_may_stop_at_any_page(site: Site) -> None:
    tree(site)
    limits = CrawlLimits(delay_seconds=0)
    async with aclosing(crawl(site.url(), limits=limits, allow=[site.host])) as results:
        async for each in results:
            assert each.depth == 0
            break
    assert site.asked == ["/robots.txt", "/"]


@pytest.mark.parametrize(
    "address",
    [
        "file:///etc/passwd",
        "ftp://a.example/",
        "http://u:p@a.example/",
        "a.example",
        "",
        "http:///",
    ],
)
def test_an_address_that_is_none_is_refused_at_once(address: str) -> None:
    with pytest.raises(TargetRefused, match="address must be an http or https address"):
        crawl(address)


@pytest.mark.parametrize("contact", ["", "a b", "a)\r\nx: y", "x" * 201, "é"])
def test_a_contact_is_an_address(contact: str) -> None:
    with pytest.raises(InvalidRequest, match="contact must be"):
        crawl("https://a.example/", contact=contact)


@pytest.mark.parametrize(
    "limits",
    [
        {"pages_max": 0},
        {"pages_max": 2.5},
        {"depth_max": -1},
        {"seconds": float("nan")},
        {"page_seconds": 0},
        {"links_max": True},
        {"delay_seconds": "1"},
    ],
    ids=str,
)
def test_limits_are_checked(limits: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match=f"{next(iter(limits))} must be"):
        CrawlLimits(**limits)  # type: ignore[arg-type]
