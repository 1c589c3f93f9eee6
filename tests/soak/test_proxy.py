"""The proxy does what it says: what it loses was carried out, what it cuts was not."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import NamedTuple

import pytest

from soak.proxy import Proxy

DEADLINE_SECONDS = 20


class Service(NamedTuple):
    """A server that counts the lines it gets, and a proxy before it."""

    heard: list[bytes]
    proxy: Proxy

    async def ask(self) -> bytes:
        """Send a line; return the answer, empty where none comes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.proxy.port)
        try:
            writer.write(b"question\n")
            await writer.drain()
            return await reader.readline()
        except ConnectionError:
            return b""
        finally:
            writer.transport.abort()


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    heard: list[bytes] = []

    async def answer(reader: StreamReader, writer: StreamWriter) -> None:
        while (line := await reader.readline()).endswith(b"\n"):
            heard.append(line)
            writer.write(b"answer\n")
        writer.transport.abort()

    async with asyncio.timeout(DEADLINE_SECONDS):
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with Proxy(server.sockets[0].getsockname()[1]).serving() as proxy:
            yield Service(heard, proxy)
        server.close()


async def test_it_forwards(service: Service) -> None:
    assert await service.ask() == b"answer\n"
    assert service.heard == [b"question\n"]


async def test_a_lost_answer_is_one_to_a_request_that_was_carried_out(service: Service) -> None:
    service.proxy.ail("lose")
    assert await service.ask() == b""
    assert service.heard == [b"question\n"]
    assert service.proxy.struck == {"lose": 1}
    service.proxy.heal()
    assert await service.ask() == b"answer\n"


async def test_a_request_that_is_cut_does_not_arrive_whole(service: Service) -> None:
    service.proxy.ail("cut")
    assert await service.ask() == b""
    assert service.heard == []


async def test_a_delayed_answer_comes(service: Service) -> None:
    service.proxy.ail("delay", delay_seconds=0.001)
    assert await service.ask() == b"answer\n"
    assert service.proxy.struck == {"delay": 1}


async def test_it_refuses_and_accepts_again_on_its_port(service: Service) -> None:
    port = service.proxy.port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"question\n")
    assert await reader.readline() == b"answer\n"
    await service.proxy.refuse()
    with suppress(ConnectionError):
        assert await reader.readline() == b""
    with pytest.raises(ConnectionRefusedError):
        await service.ask()
    await service.proxy.accept()
    assert service.proxy.port == port
    assert await service.ask() == b"answer\n"
    writer.transport.abort()
