"""A load balancer: each connection goes to the next server that accepts one."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


class Balancer:
    """Alternates between servers, and leaves out those that refuse connections."""

    def __init__(self, *addresses: str) -> None:
        self._targets = [urlsplit(address) for address in addresses]
        self._next = 0
        self.address = ""
        self.served = [0] * len(addresses)
        """How many connections each server has got."""

    async def forward(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Serve one connection."""
        for _ in self._targets:
            number = self._next
            self._next = (number + 1) % len(self._targets)
            target = self._targets[number]
            with suppress(ConnectionError):
                far_reader, far_writer = await asyncio.open_connection(target.hostname, target.port)
                self.served[number] += 1
                await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
                return
        writer.close()


async def _copy(reader: StreamReader, writer: StreamWriter) -> None:
    with suppress(ConnectionError):
        while some := await reader.read(65536):
            writer.write(some)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def balancing(*addresses: str) -> AsyncIterator[Balancer]:
    """Run a load balancer in front of servers."""
    balancer = Balancer(*addresses)
    server = await asyncio.start_server(balancer.forward, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    balancer.address = f"http://{host}:{port}"
    try:
        yield balancer
    finally:
        server.close()
