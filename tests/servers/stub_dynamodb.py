"""A DynamoDB that does as it is told: it stands before a real one, and loses or makes up answers.

What a test has not planned is forwarded, so that lost answers are those of writes that happened.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import aiohttp


@dataclass(frozen=True)
class Asked:
    """One request that arrived."""

    operation: str
    body: bytes
    headers: Mapping[str, str]

    @property
    def fields(self) -> dict[str, Any]:
        return json.loads(self.body)

    @property
    def access_key(self) -> str:
        return self.headers["authorization"].partition("Credential=")[2].partition("/")[0]


@dataclass(frozen=True)
class Said:
    """One answer."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    def encoded(self) -> bytes:
        headers = {**self.headers, "Content-Length": str(len(self.body))}
        lines = [f"HTTP/1.1 {self.status} -", *(f"{name}: {headers[name]}" for name in headers)]
        return "\r\n".join([*lines, "", ""]).encode() + self.body


Step = Callable[["Stub", Asked], Awaitable[Said | None]]
"""What becomes of a request: an answer, or None where the connection breaks without one."""


class Stub:
    """The endpoint, what it was asked, and what it shall do."""

    def __init__(self, upstream: str, session: aiohttp.ClientSession) -> None:
        self.endpoint = ""
        self.asked: list[Asked] = []
        self.connections = 0
        self.under_way = 0
        self.under_way_max = 0
        self._upstream = upstream
        self._session = session
        self._plans: defaultdict[str, deque[Step]] = defaultdict(deque)
        self._always: dict[str, Step] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def plan(self, operation: str, *steps: Step) -> None:
        """Do this with the next requests for that operation, one after the other."""
        self._plans[operation].extend(steps)

    def always(self, operation: str, step: Step) -> None:
        """Do this with every request for that operation that has no plan."""
        self._always[operation] = step

    def asked_for(self, operation: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.operation == operation]

    def planned(self) -> int:
        """Return how many steps were not taken yet."""
        return sum(map(len, self._plans.values()))

    async def forward(self, asked: Asked) -> Said:
        """Return the real answer."""
        async with self._session.post(
            self._upstream, data=asked.body, headers=asked.headers
        ) as response:
            body = await response.read()
            kept = ("content-type", "x-amz-crc32")
            headers = {name: response.headers[name] for name in kept if name in response.headers}
            return Said(response.status, body, headers)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                while await self._serve_one(reader, writer):
                    pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:-2]
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in head)
        }
        body = await reader.readexactly(int(headers.pop("content-length")))
        asked = Asked(headers["x-amz-target"].partition(".")[2], body, headers)
        self.asked.append(asked)
        self.under_way += 1
        self.under_way_max = max(self.under_way_max, self.under_way)
        try:
            said = await self._step(asked.operation)(self, asked)
        finally:
            self.under_way -= 1
        if said is None:
            return False
        writer.write(said.encoded())
        await writer.drain()
        return True

    def _step(self, operation: str) -> Step:
        if self._plans[operation]:
            return self._plans[operation].popleft()
        return self._always.get(operation, forward)


@asynccontextmanager
async def serve(upstream: str, *, port: int = 0) -> AsyncIterator[Stub]:
    """Run a stub before the endpoint of a real DynamoDB."""
    async with aiohttp.ClientSession() as session:
        stub = Stub(upstream, session)
        server = await asyncio.start_server(stub.serve, "127.0.0.1", port, limit=2**25)
        stub.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield stub
        finally:
            server.close()
            await stub.stop()
            await server.wait_closed()


async def forward(stub: Stub, asked: Asked) -> Said | None:
    """Answer as the real one does."""
    return await stub.forward(asked)


async def lose(stub: Stub, asked: Asked) -> Said | None:
    """Let it happen, and break the connection instead of answering."""
    await stub.forward(asked)
    return None


async def drop(stub: Stub, asked: Asked) -> Said | None:
    """Break the connection; nothing has happened."""
    return None


async def stall(stub: Stub, asked: Asked) -> Said | None:
    """Let it happen, and never answer."""
    await stub.forward(asked)
    await asyncio.get_running_loop().create_future()
    return None


async def fail(stub: Stub, asked: Asked) -> Said | None:
    """Let it happen, and answer that something went wrong inside."""
    await stub.forward(asked)
    return fault("InternalServerError", "The request processing has failed", status=500)


async def garble(stub: Stub, asked: Asked) -> Said | None:
    """Let it happen, and answer with something that is not JSON."""
    await stub.forward(asked)
    return Said(200, b"<html>", {})


async def corrupt(stub: Stub, asked: Asked) -> Said | None:
    """Let it happen, and answer with another body than the checksum is for."""
    said = await stub.forward(asked)
    return Said(said.status, b"{}", {**said.headers, "x-amz-crc32": str(crc32(b"{ }"))})


def say(said: Said) -> Step:
    """Answer so; nothing has happened."""

    async def step(stub: Stub, asked: Asked) -> Said | None:
        return said

    return step


def answer(**fields: Any) -> Said:
    """Return a successful answer with those fields, which has cost nothing if they do not say."""
    return Said(200, json.dumps({"ConsumedCapacity": [], **fields}).encode(), {})


def fault(code: str, message: str = "", *, status: int = 400, **fields: Any) -> Said:
    """Return an answer that says no."""
    kind = f"com.amazonaws.dynamodb.v20120810#{code}"
    body = json.dumps({"__type": kind, "message": message, **fields}).encode()
    return Said(status, body, {"Content-Type": "application/x-amz-json-1.0"})
