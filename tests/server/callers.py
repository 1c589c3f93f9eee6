"""Callers of a server with authentication, and the server itself, without a network or on one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import uvicorn

from holdfast import Holdfast, KeyRole
from holdfast.server import ServerApp, ServerOptions, asgi
from holdfast.server.protocol import limited_protocol
from tests.server.graphs import GRAPHS

__all__ = ["answer_to", "bearer", "key_for", "listening", "open_socket", "serving"]


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


async def answer_to(
    app: ServerApp,
    method: str,
    path: str,
    *,
    headers: dict[str, str],
    json: Any = None,
    query: str = "",
) -> tuple[int, str]:
    """Return the status and the text of a response; of a stream, its first part."""
    body = b"" if json is None else msgspec.json.encode(json)
    given = {"Host": "localhost", "Content-Type": "application/json", **headers}
    given["Content-Length"] = str(len(body))
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
        "client": ("10.0.0.1", 1),
        "server": ("localhost", 80),
        "scheme": "http",
        "http_version": "1.1",
    }
    parts = iter([{"type": "http.request", "body": body, "more_body": False}])
    seen, status, text = asyncio.Event(), 0, b""

    async def receive() -> Any:
        for part in parts:
            return part
        await seen.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal status, text
        status = message.get("status", status)
        text += message.get("body", b"")
        if text:
            seen.set()

    async with asyncio.timeout(20):
        await app(scope, receive, send)
    return status, text.decode()


async def open_socket(
    app: ServerApp, path: str, headers: dict[str, str], *, query: str = ""
) -> list[Any]:
    """Return what a server sends to a WebSocket that leaves after the first message."""
    sent: list[Any] = []
    seen = asyncio.Event()
    events = iter([{"type": "websocket.connect"}])

    async def receive() -> Any:
        for event in events:
            return event
        await seen.wait()
        return {"type": "websocket.disconnect", "code": 1001}

    async def send(message: Any) -> None:
        sent.append(message)
        if message["type"] != "websocket.accept":
            seen.set()

    scope = {
        "type": "websocket",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        + [(b"host", b"localhost")],
        "subprotocols": [],
        "client": ("10.0.0.1", 1),
        "scheme": "ws",
        "extensions": {},
    }
    async with asyncio.timeout(20):
        await app(scope, receive, send)
    return sent


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
