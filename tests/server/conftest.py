"""A server on a SQLite file, asked without a network."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from holdfast import Holdfast
from holdfast.server import ServerOptions, asgi
from tests.server.graphs import GRAPHS


@pytest.fixture
async def hf(tmp_path: Path) -> AsyncIterator[Holdfast]:
    async with Holdfast(f"sqlite:///{tmp_path}/runs.db") as opened:
        yield opened


@pytest.fixture
async def http(hf: Holdfast) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server with a worker and without authentication."""
    app = asgi(hf, GRAPHS, options=ServerOptions())
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.lifespan(),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield client
