"""A crawl reaches public addresses and permitted ones, wherever links, redirects and names lead."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import httpcore
import pytest

from holdfast.integrations.crawling import CrawledPage, CrawlFailure, crawl
from tests.integrations.crawling.site import Site, answer, page, redirect, running_site

PRIVATE = [
    "http://127.0.0.1/",
    "http://localhost/",
    "http://10.0.0.1/",
    "http://192.168.1.1/",
    "http://172.16.0.1/",
    "http://169.254.169.254/latest/meta-data/",
    "http://100.100.100.200/latest/meta-data/",
    "http://0.0.0.0/",
    "http://[::1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[fd00:ec2::254]/latest/",
    "http://[fe80::1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://2130706433/",
    "http://0x7f.1/",
    "http://127.1/",
]


class Names:
    """Answers each question with the next list of addresses; the last one stays."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        if host == "127.0.0.1":
            return [host]
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.mark.parametrize("target", PRIVATE)
async def test_a_redirect_to_a_private_address_is_refused(site: Site, target: str) -> None:
    site.pages["/"] = redirect(target)
    failed = await site.failure()
    assert failed.kind == "refused", failed
    assert "public" in failed.reason


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_every_kind_of_redirect_is_checked(site: Site, status: int) -> None:
    async with running_site() as secret:
        secret.pages["/"] = page(text="secret")
        site.pages["/"] = redirect(secret.url(), status=status)
        failed = await site.failure()
        assert failed.kind == "refused"
        assert secret.asked == []


async def test_an_address_that_parsers_read_differently_is_not_followed(site: Site) -> None:
    site.pages["/"] = redirect("http://0177.0.0.1/")
    failed = await site.failure()
    assert failed.kind == "network"
    assert "Invalid IPv4 address" in failed.reason


@pytest.mark.parametrize("target", ["file:///etc/passwd", "gopher://127.0.0.1/", "http://u:p@h/"])
async def test_a_redirect_to_no_page_is_refused(site: Site, target: str) -> None:
    site.pages["/"] = redirect(target)
    assert (await site.failure()).kind == "redirect"


async def test_the_list_is_empty_by_default(site: Site) -> None:
    failed = await site.failure(allow=[])
    assert failed.kind == "refused"
    assert "must be a public address, got 'http://127.0.0.1" in failed.reason
    assert "pass it in allow" in failed.reason
    assert site.asked == []


async def test_a_name_of_a_private_address_is_refused(site: Site) -> None:
    for addresses in (["10.0.0.1"], ["93.184.216.34", "127.0.0.1"], ["::ffff:169.254.169.254"]):
        site.pages["/"] = redirect("http://wiki.example/")
        failed = await site.failure(resolve=Names(addresses))
        assert failed.kind == "refused", failed
        assert "not public" in failed.reason
        assert not any(address in failed.reason for address in addresses)


async def test_a_name_that_changes_its_meaning_between_check_and_use(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is public while robots.txt is read, and private when the page is asked for."""
    site.pages |= {"/": page("/"), "/robots.txt": answer(status=404, more="connection: close\r\n")}
    connected: list[str] = []
    connect = httpcore.AnyIOBackend.connect_tcp

    async def connect_tcp(self: httpcore.AnyIOBackend, host: str, port: int, *rest: Any) -> object:
        connected.append(host)
        return await connect(self, "127.0.0.1", site.port, *rest)

    monkeypatch.setattr("httpcore.AnyIOBackend.connect_tcp", connect_tcp)
    names = Names(["93.184.216.34"], ["127.0.0.1"])
    async with aclosing(crawl("http://rebinding.example/", resolve=names)) as results:
        (failed,) = [each async for each in results]
    assert isinstance(failed, CrawlFailure)
    assert failed.kind == "refused"
    assert connected == ["93.184.216.34"]
    assert site.asked == ["/robots.txt"]


async def test_a_connection_goes_to_the_address_that_was_checked(site: Site) -> None:
    """The second answer of the name server would be another machine."""
    site.pages["/robots.txt"] = answer("User-agent: *\nAllow: /")
    site.pages["/"] = page("/a")
    site.pages["/a"] = page()
    names = Names(["127.0.0.1"], ["127.0.0.2"])
    start = f"http://wiki.example:{site.port}/"
    site.pages["/go"] = redirect(start)
    allow = [site.host, f"wiki.example:{site.port}"]
    results = await site.results("/go", resolve=names, allow=allow)
    assert [type(each) for each in results] == [CrawledPage, CrawledPage]
    assert names.asked == ["wiki.example"]
    assert {each["host"] for each in site.headers} == {site.host, f"wiki.example:{site.port}"}


async def test_links_to_private_places_are_refused_one_by_one(site: Site) -> None:
    async with running_site() as secret:
        site.pages["/"] = page(secret.url("/admin"), "http://169.254.169.254/", "/ok")
        site.pages["/ok"] = page()
        results = await site.results(hosts=[secret.host, "169.254.169.254"])
        kinds = [each.kind if isinstance(each, CrawlFailure) else "page" for each in results]
        assert kinds == ["page", "refused", "refused", "page"]
        assert secret.asked == []


@pytest.mark.parametrize("port", [22, 25, 6379, 8080])
async def test_other_ports_are_refused(site: Site, port: int) -> None:
    site.pages["/"] = redirect(f"http://93.184.216.34:{port}/")
    failed = await site.failure()
    assert failed.kind == "refused"
    assert "must have the port 80 or 443" in failed.reason


async def test_robots_txt_cannot_lead_into_the_private_network(site: Site) -> None:
    async with running_site() as secret:
        secret.pages["/"] = page()
        site.pages |= {"/": page(), "/robots.txt": redirect(secret.url())}
        failed = await site.failure()
        assert failed.kind == "refused"
        assert secret.asked == []
