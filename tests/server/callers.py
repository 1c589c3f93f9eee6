"""Callers of a server with authentication, and the server itself, without a network or on one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn

from holdfast import Holdfast, KeyRole
from holdfast.server import ServerApp, ServerOptions, asgi
from holdfast.server.protocol import limited_protocol
from tests.server.graphs import GRAPHS

__all__ = ["bearer", "key_for", "listening", "serving"]


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def key_for(hf: Holdfast, role: KeyRole = "admin", *, tenant: str = "default") -> str:
    return (await hf.keys.create(f"{tenant}-{role}", tenant=tenant, role=role)).secret


@asynccontextmanager
async def serving(
    hf: Holdfast, options: ServerOptions | None = None
) -> AsyncIterator[tuple[httpx.AsyncClient, ServerApp]]:
    """Yield a client of a server with authentication, and the server."""
    app = asgi(hf, GRAPHS, options=options or ServerOptions(authentication=True), worker=False)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=("10.0.0.1", 1))
    async with (
        app.lifespan(),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield client, app


class _Server(uvicorn.Server):
    """Says when it has started, and leaves the signals of the process alone."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.has_started = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.has_started.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def listening(app: Any, options: ServerOptions, **settings: Any) -> AsyncIterator[int]:
    """Serve an application as ``holdfast serve`` does; yield the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    given = {
        "http": limited_protocol(options),
        "log_config": None,
        "lifespan": "off",
        "server_header": False,
        "proxy_headers": False,
        **settings,
    }
    server = _Server(uvicorn.Config(app, **given))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    await server.has_started.wait()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        await task
        listener.close()
