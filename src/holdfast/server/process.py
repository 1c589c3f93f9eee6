"""Runs an application on a socket, and shuts it down so that no caller loses anything."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import msgspec
import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from holdfast.clock import SystemClock
from holdfast.server.asgi import ServerApp
from holdfast.server.options import ServerOptions
from holdfast.server.problems import PROBLEM_JSON, Problem
from holdfast.server.protocol import limited_protocol
from holdfast.server.services import Services

__all__ = ["Listener", "listen", "loop_factory", "shut_down"]

# Longer than the idle timeout of load balancers (60 s), so that they close connections, not we.
_KEEP_ALIVE_SECONDS = 75
# Followers send small messages only.
_WEBSOCKET_MESSAGE_BYTES_MAX = 64 * 1024
_TRY_AGAIN_LATER = 1013
_PROBES = ("/healthz", "/readyz")
# How long a request waits for a server that starts; then it gets a 503.
_START_SECONDS = 5.0
_STARTING = "The server starts; try again soon."
_WITHOUT_STORE = "The server waits until it can use its store."


class Listener:
    """A server that accepts connections, also before it has an application."""

    def __init__(self, options: ServerOptions, *, requests_seconds_max: float) -> None:
        self._app: ServerApp | None = None
        self._why_not = _STARTING
        self._is_settled = asyncio.Event()
        self._server = _Uvicorn(_config(self, options, requests_seconds_max))
        self._serving: asyncio.Task[None] | None = None

    @property
    def app(self) -> ServerApp | None:
        """Answers requests; until there is one, they wait shortly and then get a 503."""
        return self._app

    @app.setter
    def app(self, app: ServerApp) -> None:
        self._app = app
        self._is_settled.set()

    def wait_for_store(self) -> None:
        """Answer requests at once, until there is an application: the store cannot be used."""
        self._why_not = _WITHOUT_STORE
        self._is_settled.set()

    async def open(self, on: socket.socket) -> None:
        """Accept connections on a socket that listens."""
        self._serving = asyncio.create_task(self._server.serve([on]), name="holdfast server")
        await self._server.opened.wait()

    async def close(self) -> None:
        """Accept no more connections, and wait until the requests under way have ended."""
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._app is None and scope["path"] not in _PROBES:
            with suppress(TimeoutError):
                async with asyncio.timeout(_START_SECONDS):
                    await self._is_settled.wait()
        if self._app is None:
            await _answer_not_open(scope, send, detail=self._why_not)
        else:
            await self._app(scope, receive, send)


@asynccontextmanager
async def listen(
    on: socket.socket, options: ServerOptions, *, requests_seconds_max: float
) -> AsyncGenerator[Listener]:
    """Listen on a socket. At the end, requests have ``requests_seconds_max`` to finish."""
    listener = Listener(options, requests_seconds_max=requests_seconds_max)
    await listener.open(on)
    try:
        yield listener
    finally:
        await listener.close()


async def shut_down(listener: Listener, services: Services, *, delay_seconds: float) -> None:
    """Take a server out of service; then its lifespan may end, which drains the worker.

    First it is no longer ready, for ``delay_seconds``: load balancers send it no more requests.
    Then it tells followers where to resume. Then it accepts no more connections, and lets the
    requests under way finish.
    """
    services.readiness.shut_down()
    await SystemClock().sleep(delay_seconds)
    await services.streams.shut_down()
    await listener.close()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the loop of a server's process: that of uvloop, if it is installed."""
    return uvicorn.Config("", loop="auto", log_config=None).get_loop_factory()


def _config(app: Any, options: ServerOptions, requests_seconds_max: float) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=limited_protocol(options),
        ws=_WebSocketProtocol,
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=bool(options.trusted_proxies),
        forwarded_allow_ips=list(options.trusted_proxies),
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, round(requests_seconds_max)),
        ws_max_size=_WEBSOCKET_MESSAGE_BYTES_MAX,
    )


class _WebSocketProtocol(WebSocketsSansIOProtocol):
    """Takes a handshake that was refused with a response as complete, as uvicorn's others do.

    Without this, uvicorn logs an error for each of them.
    """

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            self.handshake_complete = True


class _Uvicorn(uvicorn.Server):
    """Leaves signals to the process: a shutdown has more steps than uvicorn knows."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.opened = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.opened.set()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


async def _answer_not_open(scope: Any, send: Any, *, detail: str) -> None:
    """Answer a request before there is an application: the process lives, and is not ready."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": _TRY_AGAIN_LATER})
        return
    if scope["path"] == "/healthz":
        status, body, media_type = 200, b'{"status":"ok"}', b"application/json"
    else:
        problem = Problem("Service Unavailable", 503, "starting", detail)
        status, body, media_type = 503, msgspec.json.encode(problem), PROBLEM_JSON.encode()
    headers = [
        (b"content-type", media_type),
        (b"content-length", str(len(body)).encode()),
        (b"retry-after", b"1"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
