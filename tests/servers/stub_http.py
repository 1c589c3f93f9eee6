"""An HTTP endpoint that does as it is told, one planned answer for each request."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Asked:
    """One request that arrived."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def fields(self) -> dict[str, Any]:
        return json.loads(self.body)


Step = Callable[[asyncio.StreamWriter], Awaitable[None]]
"""Writes an answer; the connection is closed when it returns."""


class Endpoint:
    """Where it is, what it was asked, and what it shall do."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[Asked] = []
        self._steps: deque[Step] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    def plan(self, *steps: Step) -> None:
        """Do this with the next requests, one after the other."""
        self._steps.extend(steps)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
                pairs = (line.partition(": ") for line in lines)
                headers = {name.lower(): value for name, _, value in pairs}
                body = await reader.readexactly(int(headers["content-length"]))
                self.asked.append(Asked(first.split(" ")[1], headers, body))
                await self._steps.popleft()(writer)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def quiet(self) -> None:
        """Return when every request that arrived has been dealt with."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self.quiet()


@asynccontextmanager
async def serve() -> AsyncIterator[Endpoint]:
    """Run an endpoint on this machine."""
    endpoint = Endpoint()
    server = await asyncio.start_server(endpoint.serve, "127.0.0.1", 0, limit=2**25)
    endpoint.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield endpoint
    finally:
        server.close()
        await endpoint.stop()
        await server.wait_closed()


def say(
    body: bytes | dict[str, Any], *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Step:
    """Answer with this, as a whole."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def step(writer: asyncio.StreamWriter) -> None:
        given = {"Content-Type": "application/json", **(headers or {})}
        writer.write(_head(status, {**given, "Content-Length": str(len(data))}) + data)
        await writer.drain()

    return step


def stream(
    pieces: Iterable[bytes],
    *,
    content_type: str,
    whole: bool = True,
    between: Callable[[int], Awaitable[object]] | None = None,
) -> Step:
    """Answer piece by piece; without ``whole`` the connection breaks after the last."""

    async def step(writer: asyncio.StreamWriter) -> None:
        head = {"Content-Type": content_type, "Transfer-Encoding": "chunked"}
        writer.write(_head(200, head))
        for number, piece in enumerate(pieces):
            if between is not None:
                await between(number)
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
        if whole:
            writer.write(b"0\r\n\r\n")
            await writer.drain()

    return step


async def drop(writer: asyncio.StreamWriter) -> None:
    """Break the connection without an answer."""


async def stall(writer: asyncio.StreamWriter) -> None:
    """Never answer."""
    await asyncio.get_running_loop().create_future()


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} -", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()
