"""A server on a port of this process, and what the tests of streams share."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

import uvicorn

from holdfast import Holdfast
from holdfast.server import ServerApp, ServerOptions, asgi
from holdfast.server.streams.message import StreamMessage
from holdfast.server.streams.registry import OpenStream
from tests.server.graphs import GRAPHS
from tests.server.stream_clients import Opens, Received
from tests.server.stream_process import stories

SECONDS_MAX = 20


@dataclass
class Served:
    """A server that listens."""

    app: ServerApp
    port: int

    async def read(self, opens: Opens, path: str, **query: str) -> list[Received]:
        """Return all messages of a stream, without the heartbeats."""
        async with asyncio.timeout(SECONDS_MAX), opens(self.port, path, **query) as messages:
            return [message async for message in messages if message.kind != "heartbeat"]


@asynccontextmanager
async def served(hf: Holdfast, options: ServerOptions | None = None) -> AsyncIterator[Served]:
    """Run a server with a worker on a free port."""
    app = asgi(hf, [*GRAPHS, stories], options=options)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    task = asyncio.create_task(server._serve([listener]))
    try:
        yield Served(app, listener.getsockname()[1])
    finally:
        await app.services.streams.shut_down()
        server.should_exit = True
        await task


async def is_valid() -> bool:
    return True


async def messages_of(stream: OpenStream) -> list[StreamMessage]:
    """Return all messages of a stream to its end, and close it."""
    found: list[StreamMessage] = []
    async with asyncio.timeout(SECONDS_MAX), aclosing(stream.batches(is_valid)) as batches:
        async for batch in batches:
            found += batch
    stream.close()
    return found
