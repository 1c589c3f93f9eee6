"""A small HTTP client: what it costs is the same for every server, and little beside theirs."""

from __future__ import annotations

import asyncio
import json
from types import TracebackType
from typing import Any, NamedTuple, Self


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Connection:
    """A connection to this machine, kept open: ``async with Connection(port) as asking: …``"""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Self:
        self.reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._writer.close()

    async def ask(
        self, method: str, path: str, value: Any = None, headers: dict[str, str] | None = None
    ) -> Response:
        """Send a request with a value as JSON, and return the response."""
        await self.send(method, path, value, headers)
        status, answered = await self.read_head()
        if answered.get("transfer-encoding") == "chunked":
            body = b"".join([chunk async for chunk in self.read_chunks()])
        else:
            body = await self.reader.readexactly(int(answered.get("content-length", "0")))
        return Response(status, answered, body)

    async def send(
        self, method: str, path: str, value: Any = None, headers: dict[str, str] | None = None
    ) -> None:
        """Send a request."""
        body = b"" if value is None else json.dumps(value).encode()
        lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self._port}"]
        lines += [f"{name}: {text}" for name, text in (headers or {}).items()]
        if value is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await self._writer.drain()

    async def read_head(self) -> tuple[int, dict[str, str]]:
        """Return the status and the headers of a response."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        pairs = [line.split(":", 1) for line in head[1:] if line]
        return int(head[0].split()[1]), {name.lower(): text.strip() for name, text in pairs}

    async def read_chunks(self) -> Any:
        """Yield the chunks of a body."""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readexactly(2)
