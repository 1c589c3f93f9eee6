"""Answers that are too large, too slow, cut off or of another type fail alone."""

from __future__ import annotations

import asyncio
import gzip
import zlib

import pytest

from holdfast.integrations.crawling import CrawledPage, CrawlFailure
from tests.integrations.crawling.site import Site, answer, page

GZIP = "content-encoding: gzip\r\n"


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"x" * 65_536)
        await writer.drain()


async def silent(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def silent_within_the_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-ty")
    await writer.drain()
    await asyncio.Event().wait()


async def silent_within_the_body(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 9\r\n\r\nabc")
    await writer.drain()
    await asyncio.Event().wait()


async def cut(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 9\r\n\r\nabc")
    await writer.drain()
    writer.close()


async def cut_at_once(writer: asyncio.StreamWriter) -> None:
    writer.close()


async def no_http(writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
    await writer.drain()
    writer.close()


async def endless_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while not writer.is_closing():
        writer.write(b"x-header: " + b"x" * 60_000 + b"\r\n")
        await writer.drain()


async def test_a_body_has_a_size(site: Site) -> None:
    site.pages |= {"/": page("/endless", "/declared", "/ok"), "/ok": page(), "/endless": endless}
    site.pages["/declared"] = answer(b"x" * 100_001)
    results = await site.results(limits={"page_bytes_max": 100_000})
    kinds = [each.kind if isinstance(each, CrawlFailure) else "page" for each in results]
    assert kinds == ["page", "size", "size", "page"]
    assert isinstance(results[1], CrawlFailure)
    assert results[1].reason == "the answer has more than 100,000 bytes"
    assert results[1].html_bytes == 100_000


async def test_a_bomb_is_noticed_before_it_is_unpacked(site: Site) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packer.compress(b"\0" * 2**20) for _ in range(1_024)) + packer.flush()
    twice = gzip.compress(bomb)
    site.pages |= {"/": page("/bomb", "/twice", "/empty", "/ok"), "/ok": page()}
    site.pages["/bomb"] = answer(bomb, more=GZIP)
    site.pages["/twice"] = answer(twice, more="content-encoding: gzip, gzip\r\n")
    site.pages["/empty"] = answer(gzip.compress(b"") * 20_000, more=GZIP)  # unpacks to nothing
    results = await site.results(limits={"page_bytes_max": 100_000})
    kinds = [each.kind if isinstance(each, CrawlFailure) else "page" for each in results]
    assert kinds == ["page", "size", "network", "size", "page"]


@pytest.mark.parametrize("encoding", ["br", "zstd", "deflate", "compress", "x"])
async def test_only_what_was_offered_is_unpacked(site: Site, encoding: str) -> None:
    site.pages["/"] = answer(b"xx", more=f"content-encoding: {encoding}\r\n")
    failed = await site.failure()
    assert failed.kind == "network"
    assert failed.reason == f"content-encoding must be gzip or none, got {encoding}"
    assert {each["accept-encoding"] for each in site.headers} == {"gzip"}


async def test_packed_pages_are_read(site: Site) -> None:
    packed = gzip.compress(b"<p>Packed ") + gzip.compress(b"in two members.") + b"\0" * 9
    site.pages["/"] = answer(packed, more=GZIP)
    assert await site.text() == "Packed in two members."
    site.pages["/"] = answer(packed[:-30], more=GZIP)
    assert (await site.failure()).reason == "the answer was cut off"
    site.pages["/"] = answer(b"<p>not packed", more=GZIP)
    assert "cannot be unpacked" in (await site.failure()).reason


@pytest.mark.parametrize(
    "slow", [silent, silent_within_the_head, silent_within_the_body], ids=lambda each: each.__name__
)
async def test_a_server_that_is_silent_costs_one_page(site: Site, slow: object) -> None:
    site.pages |= {"/": page("/slow", "/ok"), "/slow": slow, "/ok": page()}  # type: ignore[dict-item]
    # The pages that do answer have enough time on a busy machine, or fail in the same way.
    results = await site.results(limits={"page_seconds": 2.0})
    assert isinstance(results[1], CrawlFailure)
    assert results[1].kind == "time"
    assert isinstance(results[2], CrawledPage)


@pytest.mark.parametrize("broken", [cut, cut_at_once, no_http, endless_head])
async def test_an_answer_that_is_none_costs_one_page(site: Site, broken: object) -> None:
    site.pages |= {"/": page("/broken", "/ok"), "/broken": broken, "/ok": page()}  # type: ignore[dict-item]
    _, failed, following = await site.results()
    assert isinstance(failed, CrawlFailure)
    assert failed.kind == "network"
    assert "the server cannot be reached" in failed.reason
    assert isinstance(following, CrawledPage)


async def test_a_server_that_closed_an_idle_connection_is_asked_again(site: Site) -> None:
    async def once(writer: asyncio.StreamWriter) -> None:
        if site.asked.count("/") == 1:
            writer.close()
        else:
            writer.write(page(text="Second."))

    site.pages["/"] = once
    assert (await site.text()).startswith("Second.")


async def test_no_server(site: Site) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        raise OSError("no such name")

    site.pages["/"] = answer(status=302, more="location: http://nowhere.example/\r\n")
    failed = await site.failure(resolve=resolve)
    assert failed.kind == "network"
    assert "cannot be resolved" in failed.reason


@pytest.mark.parametrize("type", ["application/pdf", "image/svg+xml", "image/png", "text/css"])
async def test_what_is_no_page_is_named_and_not_read(site: Site, type: str) -> None:
    site.pages |= {"/": page("/file"), "/file": answer(b"<svg><script>1</script></svg>", type=type)}
    _, failed = await site.results()
    assert isinstance(failed, CrawlFailure)
    assert (failed.kind, failed.html_bytes) == ("type", 0)
    assert failed.reason == f"it is no page of text: its type is {type}"


async def test_binary_data_with_a_type_of_text_is_no_page(site: Site) -> None:
    for type in ("text/html", "text/plain", ""):
        site.pages["/"] = answer(b"MZ\x90\0\3\0\0\0", type=type)
        assert (await site.failure()).kind == "type"


async def test_text_without_a_type(site: Site) -> None:
    site.pages["/"] = answer(" <!doctype html><p>Some <b>text</b>", type="")
    assert await site.text() == "Some text"
    site.pages["/"] = answer("1 < 2", type="")
    assert await site.text() == "1 < 2"


async def test_an_error_has_no_text(site: Site) -> None:
    site.pages["/"] = answer("<p>Internal details", status=500)
    failed = await site.failure()
    assert (failed.kind, failed.reason) == ("status", "the server answered with status 500")
