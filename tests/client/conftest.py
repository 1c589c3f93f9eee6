"""A server on a SQLite file, and a client of it without a network."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from holdfast import Holdfast
from holdfast.client import Client
from tests.client.graphs import GRAPHS
from tests.client.stub import StubServer


@pytest.fixture
async def hf(tmp_path: Path) -> AsyncIterator[Holdfast]:
    async with Holdfast(f"sqlite:///{tmp_path}/runs.db") as opened:
        yield opened


@pytest.fixture
async def server(hf: Holdfast) -> AsyncIterator[StubServer]:
    app = StubServer(hf, GRAPHS)
    async with app.lifespan():
        yield app


@pytest.fixture
async def client(server: StubServer) -> AsyncIterator[Client]:
    transport = httpx.ASGITransport(server)
    async with Client("http://server", transport=transport, timeout=5) as opened:
        yield opened
