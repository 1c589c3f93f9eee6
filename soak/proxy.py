"""A network that goes wrong: forwards connections to a server on this machine, or does not.

============ =======================================================================================
``lose``     the server gets a request and answers it; the answer is dropped, the connection cut
``delay``    an answer comes later
``cut``      a connection is cut in the middle of a request
============ =======================================================================================

`refuse` lets nothing through at all: no connection is accepted, and those that there are, are cut.
"""

from __future__ import annotations

import asyncio
import random
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Literal, TypeAlias

from holdfast.clock import SystemClock

__all__ = ["Proxy", "Weather"]

CHUNK_BYTES = 64 * 1024

Weather: TypeAlias = Literal["lose", "delay", "cut"]


class Proxy:
    """Listens on a port of its own for as long as `serving` says."""

    def __init__(self, port: int, seed: int | str = 0) -> None:
        """Forward to that port of this machine."""
        self._server_port = port
        self._random = random.Random(f"{seed}/proxy")
        self._clock = SystemClock()
        self._weather: Weather | None = None
        self._rate = 0.0
        self._delay_seconds = 0.0
        self._listener: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0
        self.struck: Counter[str] = Counter()
        """How often each kind of trouble took effect."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[Proxy, None]:
        await self.accept()
        try:
            yield self
        finally:
            await self.refuse()

    def ail(self, weather: Weather, *, rate: float = 1.0, delay_seconds: float = 0.0) -> None:
        """Let this happen to a part of all requests from now on."""
        self._weather, self._rate, self._delay_seconds = weather, rate, delay_seconds

    def heal(self) -> None:
        """Forward everything at once from now on."""
        self._weather = None

    async def refuse(self) -> None:
        """Accept no connection from now on, and cut those that there are."""
        if self._listener is None:
            return
        self._listener.close()
        self._listener = None
        cut = list(self._connections)
        self.struck["refuse"] += 1
        for connection in cut:
            connection.cancel()
        await asyncio.gather(*cut, return_exceptions=True)

    async def accept(self) -> None:
        """Accept connections from now on, on the same port as before."""
        if self._listener is None:
            self._listener = await asyncio.start_server(
                self._accepted, "127.0.0.1", self.port, reuse_address=True
            )
            self.port = self._listener.sockets[0].getsockname()[1]

    async def _accepted(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with suppress(OSError):
                await self._forward(reader, writer)
        except asyncio.CancelledError:
            pass  # cut by `refuse`: asyncio would complain of a cancelled connection
        finally:
            self._connections.discard(task)
            # Not closed in an orderly way: whoever waits for an answer sees the connection break.
            writer.transport.abort()

    async def _forward(self, reader: StreamReader, writer: StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        requests = asyncio.ensure_future(self._carry_requests(reader, server_writer))
        answers = asyncio.ensure_future(self._carry_answers(server_reader, writer))
        try:
            await asyncio.wait({requests, answers}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for carrying in (requests, answers):
                carrying.cancel()
            await asyncio.gather(requests, answers, return_exceptions=True)
            server_writer.transport.abort()

    async def _carry_requests(self, reader: StreamReader, writer: StreamWriter) -> None:
        while data := await reader.read(CHUNK_BYTES):
            if self._strikes("cut"):
                writer.write(data[: len(data) // 2])
                await writer.drain()
                return
            writer.write(data)
            await writer.drain()

    async def _carry_answers(self, reader: StreamReader, writer: StreamWriter) -> None:
        # The server speaks only when it has carried a request out.
        while data := await reader.read(CHUNK_BYTES):
            if self._strikes("lose"):
                return
            if self._strikes("delay"):
                await self._clock.sleep(self._random.random() * self._delay_seconds)
            writer.write(data)
            await writer.drain()

    def _strikes(self, weather: Weather) -> bool:
        if self._weather != weather or self._random.random() >= self._rate:
            return False
        self.struck[weather] += 1
        return True
