"""A server on a SQLite file, and a client of it without a network."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from holdfast import Holdfast
from holdfast.client import Client
from holdfast.server import asgi
from tests.client.graphs import GRAPHS
from tests.client.wire import Wire


@pytest.fixture
async def hf(tmp_path: Path) -> AsyncIterator[Holdfast]:
    async with Holdfast(f"sqlite:///{tmp_path}/runs.db") as opened:
        yield opened


@pytest.fixture
async def wire(hf: Holdfast) -> AsyncIterator[Wire]:
    """The way to a server with a worker and without authentication."""
    app = asgi(hf, GRAPHS)
    async with app.lifespan():
        yield Wire(httpx.ASGITransport(app))


@pytest.fixture
async def client(wire: Wire) -> AsyncIterator[Client]:
    async with Client("http://localhost", transport=wire, timeout=30) as opened:
        yield opened
