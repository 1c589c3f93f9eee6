"""What is read of a page, and what a page cannot do to the process that asks for it."""

from __future__ import annotations

import asyncio
import dataclasses
import signal

import pytest

from holdfast.clock import SystemClock
from holdfast.integrations.crawling import CrawledPage, CrawlFailure, CrawlLimits
from holdfast.integrations.crawling.page_reader import PageReader, PageUnreadable
from holdfast.integrations.crawling.page_reading import decoded
from holdfast.integrations.crawling.page_tasks import PageTask
from tests.integrations.crawling.site import Site, answer, page

NEVER_READ = b"<p>" * 1_000_000  # parsers need minutes for it


def task(*, chars_max: int = 1_000, links_max: int = 10, type: str = "text/html") -> PageTask:
    return PageTask(
        address="http://a.example/b/c",
        content_type=type,
        charset="",
        links_max=links_max,
        text_chars_max=chars_max,
    )


async def test_scripts_styles_and_navigation_are_no_text(site: Site) -> None:
    body = "A long sentence of the text, as documents have them, with a few words more. " * 9
    site.pages["/"] = answer(
        "<html><head><title> The\n title </title><style>.x{}</style><script>evil()</script></head>"
        "<body onload='evil()'><nav><a href='/n'>Menu</a></nav><main><article><h1>Head</h1>"
        f"<p>{body}</p><svg><script>evil()</script></svg><table><tr><td>Cell</td></tr></table>"
        "<noscript>evil()</noscript></article></main><!-- evil() --></body></html>"
    )
    result = await site.only()
    assert isinstance(result, CrawledPage)
    assert result.title == "The title"
    assert "A long sentence" in result.text
    assert "Cell" in result.text
    assert "evil" not in result.text
    assert "Menu" not in result.text
    assert result.links == (site.url("/n"),)


async def test_code_is_no_text_of_a_page_without_a_main_text() -> None:
    body = b"""<script>evil()</script><svg><text>evil</text></svg><template>evil</template>
        <noscript>evil</noscript><style>.evil{}</style>
        <form>A <b>form</b><script>evil</script>.</form>"""
    async with PageReader(CrawlLimits()) as reader:
        contents = await reader.read(body, task())
    assert "form" in contents.text
    assert "evil" not in contents.text


async def test_links_are_relative_to_the_base_of_a_page() -> None:
    body = b"""<base href="/base/"><a href="x#y">1</a><a href="/z?utm_source=q">2</a>
        <a href="x">3</a><a href="javascript:evil()">4</a><a href="mailto:a@b">5</a><a>6</a>
        <a href="//o.example">7</a><area href="data:text/html,x"><a href="http://[">8</a>
        <a href="http://u:p@a.example/">9</a>"""
    async with PageReader(CrawlLimits()) as reader:
        contents = await reader.read(body, task())
    assert contents.links == (
        "http://a.example/base/x",
        "http://a.example/z",
        "http://o.example/",
    )


async def test_text_and_links_are_limited() -> None:
    body = b"word " * 1_000 + b"".join(b"<a href=/%d>x</a>" % number for number in range(100))
    async with PageReader(CrawlLimits()) as reader:
        contents = await reader.read(body, task(chars_max=42, links_max=3))
        plain = await reader.read(b"x" * 100 + b"\x1b[31m", task(chars_max=42, type="text/plain"))
        steering = await reader.read(b"a\x1b[31mb\xc2\x9bc\r\nd", task(type="text/plain"))
    assert len(contents.text) == 42
    assert contents.links == tuple(f"http://a.example/{number}" for number in range(3))
    assert plain.text == "x" * 42
    assert steering.text == "a[31mbc\nd"


@pytest.mark.parametrize(
    ("body", "charset", "text"),
    [
        ("Grüße".encode(), "", "Grüße"),
        ("Grüße".encode("latin-1"), "", "Grüße"),
        ("Grüße".encode("latin-1"), "ISO-8859-1", "Grüße"),
        (b"\x93x\x94", "iso-8859-1", "“x”"),
        ("Привет".encode("koi8-r"), "koi8-r", "Привет"),
        ("日本".encode("shift_jis"), "Shift_JIS", "日本"),
        ("日本".encode("utf-16"), "koi8-r", "日本"),
        (b"\xef\xbb\xbfx", "utf-16", "x"),
        ('<meta charset="koi8-r">Привет'.encode("koi8-r"), "", '<meta charset="koi8-r">Привет'),
        ("Grüße".encode(), "no-such-charset", "Grüße"),
        (b"x\x9c", "zlib", "xœ"),
        ("Grüße".encode(), "hex", "Grüße"),
        (b"x\xff", "utf-8", "x\ufffd"),
        (b"", "", ""),
    ],
    ids=str,
)
def test_charsets(body: bytes, charset: str, text: str) -> None:
    assert decoded(body, charset) == text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   ",
        b"\xff" * 50,
        b"<div>" * 100_000,
        b"<a href=x>" * 20_000,
        b"<" * 100_000,
        b"<!DOCTYPE x [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;&a;&a;'>]><p>&b;&b;</p>",
        b"<!DOCTYPE x [<!ENTITY a SYSTEM 'file:///etc/passwd'>]><p>&a;</p>",
        b"&#0;&#55296;&#x110000;" * 100,
        b"<table><tr><td>" * 10_000,
    ],
    ids=[
        "empty",
        "blank",
        "bytes",
        "deep",
        "links",
        "tags",
        "entities",
        "xxe",
        "numbers",
        "tables",
    ],
)
async def test_odd_pages_are_read_or_fail_alone(body: bytes) -> None:
    async with PageReader(CrawlLimits(parse_seconds=30)) as reader:
        try:
            contents = await reader.read(body, task())
        except PageUnreadable:
            pass
        else:
            assert "root:" not in contents.text
            contents.text.encode()
        assert (await reader.read(b"<p>Next", task())).text == "Next"


async def test_a_page_that_takes_too_long_fails_alone() -> None:
    patient = CrawlLimits(parse_seconds=60)
    async with PageReader(patient) as reader:
        assert (await reader.read(b"<p>a", task())).text == "a"
        process = reader._process
        assert process is not None
        process.send_signal(signal.SIGSTOP)  # like a parser that never ends
        reader.limits = dataclasses.replace(patient, parse_seconds=0.05)
        with pytest.raises(PageUnreadable, match=r"could not be read within 0\.05 s"):
            await reader.read(b"<p>b", task())
        assert process.returncode == -signal.SIGKILL
        reader.limits = patient
        assert (await reader.read(b"<p>c", task())).text == "c"


async def test_a_parser_has_a_limit_on_its_time() -> None:
    """The system ends the process, should its parent not be there to do it."""
    async with PageReader(CrawlLimits()) as reader:
        await reader.read(b"<p>a", task())
        process = reader._process
        assert process is not None
        process.send_signal(signal.SIGXCPU)
        with pytest.raises(PageUnreadable, match="the process that reads pages failed"):
            await reader.read(b"<p>b", task())


async def test_a_page_that_needs_too_much_memory_fails_alone(site: Site) -> None:
    site.pages |= {"/": page("/large", "/ok"), "/ok": page()}
    site.pages["/large"] = answer(b"<b>x</b>" * 600_000)
    results = await site.results(limits={"parse_memory_bytes": 50_000_000})
    assert isinstance(results[1], CrawlFailure)
    assert results[1].kind == "parse"
    assert isinstance(results[2], CrawledPage)


async def test_a_process_that_dies_is_replaced() -> None:
    async with PageReader(CrawlLimits()) as reader:
        assert (await reader.read(b"<p>a", task())).text == "a"
        process = reader._process
        assert process is not None
        process.send_signal(signal.SIGSEGV)
        await process.wait()
        with pytest.raises(PageUnreadable, match="the process that reads pages failed"):
            await reader.read(b"<p>b", task())
        assert (await reader.read(b"<p>c", task())).text == "c"


async def test_no_process_outlives_its_reader() -> None:
    async with PageReader(CrawlLimits()) as reader:
        await reader.read(b"<p>a", task())
        process = reader._process
        assert process is not None
        reading = asyncio.ensure_future(reader.read(NEVER_READ, task()))
        await SystemClock().sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert process.returncode == -signal.SIGKILL
        await reader.read(b"<p>a", task())
        process = reader._process
        assert process is not None
    assert process.returncode is not None


async def test_the_process_has_nothing_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    async with PageReader(CrawlLimits()) as reader:
        await reader.read(b"<p>a", task())
        process = reader._process
        assert process is not None
        with open(f"/proc/{process.pid}/environ", "rb") as environment:  # noqa: ASYNC230
            assert b"secret" not in environment.read()
        with open(f"/proc/{process.pid}/limits") as limits:  # noqa: ASYNC230
            told = limits.read()
    bounds = {line[:26].strip(): line[26:].split()[0] for line in told.splitlines()}
    assert int(bounds["Max address space"]) < 2_000_000_000
    assert bounds["Max file size"] == bounds["Max core file size"] == "0"
    assert int(bounds["Max cpu time"]) <= 30
