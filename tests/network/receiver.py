"""A real HTTP receiver on this machine, for tests of what is sent to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple


class Received(NamedTuple):
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """Answers every request with a status, and keeps it."""

    def __init__(self) -> None:
        self.requests: list[Received] = []
        self.answer: Callable[[Received], int] = lambda _: 200
        self.hangs = False
        self.more_headers = ""
        self.answer_body = b""
        self.port = 0
        self._news = asyncio.Condition()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}/hook"

    async def wait_for(self, count: int, *, seconds: float = 20) -> list[Received]:
        """Return when there were so many requests."""
        async with asyncio.timeout(seconds), self._news:
            await self._news.wait_for(lambda: len(self.requests) >= count)
        return self.requests

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                headers: dict[str, str] = {}
                while (header := (await reader.readline()).decode().strip()) != "":
                    name, _, value = header.partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                received = Received(line.decode().split()[1], headers, body)
                async with self._news:
                    self.requests.append(received)
                    self._news.notify_all()
                if self.hangs:
                    await asyncio.Event().wait()
                status, sent = self.answer(received), self.answer_body
                writer.write(
                    f"HTTP/1.1 {status} X\r\n{self.more_headers}content-length: {len(sent)}\r\n\r\n"
                    .encode() + sent
                )  # fmt: skip
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """Run a receiver on a free port."""
    receiver = Receiver()
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.ensure_future(receiver.handle(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
