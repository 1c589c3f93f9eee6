"""A real web site on this machine, for tests of the crawler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

from holdfast.integrations.crawling import CrawledPage, CrawlFailure, CrawlLimits, crawl

Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]

QUICK = {"delay_seconds": 0.0}


def answer(
    body: bytes | str = b"", *, status: int = 200, type: str = "text/html", more: str = ""
) -> bytes:
    """Return the bytes of a whole answer."""
    content = body.encode() if isinstance(body, str) else body
    kind = f"content-type: {type}\r\n" if type else ""
    head = f"HTTP/1.1 {status} X\r\n{kind}{more}content-length: {len(content)}\r\n\r\n"
    return head.encode("latin-1") + content


def redirect(location: str, *, status: int = 302) -> bytes:
    return answer(status=status, more=f"location: {location}\r\n")


def page(*links: str, text: str = "A text.", head: str = "") -> bytes:
    anchors = "".join(f'<a href="{link}">to</a> ' for link in links)
    return answer(f"<html><head>{head}</head><body><p>{text}</p>{anchors}</body></html>")


class Site:
    """Answers each path as it is told, and everything else with 404."""

    def __init__(self) -> None:
        self.pages: dict[str, Answer] = {}
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.at_once = self.at_once_max = 0
        self.port = 0

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, path: str = "/") -> str:
        return f"http://{self.host}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                headers: dict[str, str] = {}
                while (header := (await reader.readline()).decode("latin-1").strip()) != "":
                    name, _, value = header.partition(":")
                    headers[name.lower()] = value.strip()
                path = line.decode().split()[1]
                self.asked.append(path)
                self.headers.append(headers)
                self.at_once += 1
                self.at_once_max = max(self.at_once, self.at_once_max)
                try:
                    told = self.pages.get(path, answer("nothing here", status=404))
                    if isinstance(told, bytes):
                        writer.write(told)
                    else:
                        await told(writer)
                    await writer.drain()
                finally:
                    self.at_once -= 1
                if writer.is_closing():
                    return
        except (ConnectionError, asyncio.IncompleteReadError, ValueError):
            pass
        finally:
            writer.close()

    async def results(
        self, path: str = "/", *, limits: dict[str, Any] | None = None, **options: Any
    ) -> list[CrawledPage | CrawlFailure]:
        """Crawl from a path; permit this site and nothing else that is private."""
        options.setdefault("allow", [self.host])
        bounds = CrawlLimits(**QUICK | (limits or {}))
        async with aclosing(crawl(self.url(path), limits=bounds, **options)) as results:
            return [each async for each in results]

    async def only(self, path: str = "/", **options: Any) -> CrawledPage | CrawlFailure:
        """Crawl one page alone."""
        (result,) = await self.results(path, limits={"depth_max": 0}, **options)
        return result

    async def failure(self, path: str = "/", **options: Any) -> CrawlFailure:
        """Crawl one page alone, which fails."""
        result = await self.only(path, **options)
        assert isinstance(result, CrawlFailure), result
        return result

    async def text(self, path: str = "/", **options: Any) -> str:
        """Crawl one page alone, and return its text."""
        result = await self.only(path, **options)
        assert isinstance(result, CrawledPage), result
        return result.text


@asynccontextmanager
async def running_site() -> AsyncIterator[Site]:
    """Serve a site on a free port."""
    site = Site()
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.ensure_future(site.serve(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    site.port = server.sockets[0].getsockname()[1]
    try:
        yield site
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
