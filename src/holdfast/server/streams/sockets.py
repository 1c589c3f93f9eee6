"""Streams over WebSockets: the handshake, its refusals, and the messages.

A browser cannot set headers of a WebSocket. So the key may come as the subprotocol
``holdfast.bearer.<key>``, beside ``holdfast.v1``, which is the one that the server selects. It
never comes in the address, which logs show.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import aclosing
from typing import Any, cast
from urllib.parse import urlsplit

from litestar import Request, WebSocket
from litestar.connection import ASGIConnection
from litestar.exceptions import WebSocketDisconnect
from litestar.types import Scope, Send

from holdfast.errors import Forbidden
from holdfast.server.problems import problem_of
from holdfast.server.streams.message import CLOSE_CODES, EndReason, socket_text
from holdfast.server.streams.registry import OpenStream

__all__ = [
    "SUBPROTOCOL",
    "HandshakeRefusals",
    "check_origin",
    "note_socket_error",
    "serve_socket",
    "subprotocol_key",
]

SUBPROTOCOL = "holdfast.v1"
"""The subprotocol that the server selects if the client offers it."""

_KEY_PREFIX = "holdfast.bearer."
_ERROR = "holdfast_error"


def subprotocol_key(connection: ASGIConnection[Any, Any, Any, Any]) -> str | None:
    """Return the key or token that a WebSocket offers as a subprotocol; None if it offers none."""
    if connection.scope["type"] != "websocket":
        return None
    offered: list[str] = cast("Any", connection.scope).get("subprotocols", [])
    keys = (each.removeprefix(_KEY_PREFIX) for each in offered if each.startswith(_KEY_PREFIX))
    return next(keys, None)


def check_origin(socket: WebSocket[Any, Any, Any], origins: Collection[str]) -> None:
    """Check that a browser opens a WebSocket from a page of this server, or of one of the origins.

    Browsers do not apply CORS to WebSockets. Without this, any page could follow the runs of a
    server that needs no credentials.

    Raises:
        Forbidden: the page belongs to another origin.
    """
    origin = socket.headers.get("origin")
    if origin is None or origin in origins:
        return
    if urlsplit(origin).netloc != socket.headers.get("host"):
        raise Forbidden(f"a page of {origin!r:.200} must not open a WebSocket of this server")


async def serve_socket(
    socket: WebSocket[Any, Any, Any],
    stream: OpenStream,
    still_valid: Callable[[], Awaitable[bool]],
) -> None:
    """Accept a WebSocket, send a stream until it ends or the client leaves, and close both."""
    try:
        await _exchange(socket, stream, still_valid)
    finally:
        stream.close()


async def _exchange(
    socket: WebSocket[Any, Any, Any],
    stream: OpenStream,
    still_valid: Callable[[], Awaitable[bool]],
) -> None:
    offered = cast("Any", socket.scope).get("subprotocols", [])
    await socket.accept(subprotocols=SUBPROTOCOL if SUBPROTOCOL in offered else None)
    tasks = {
        asyncio.create_task(_send(socket, stream, still_valid)),
        asyncio.create_task(_wait_for_disconnect(socket)),
    }
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _send(
    socket: WebSocket[Any, Any, Any],
    stream: OpenStream,
    still_valid: Callable[[], Awaitable[bool]],
) -> None:
    reason: EndReason = "error"
    async with aclosing(stream.batches(still_valid)) as batches:
        async for batch in batches:
            for message in batch:
                await socket.send_text(socket_text(message))
                reason = message.reason or reason
    await socket.close(CLOSE_CODES[reason], reason)


async def _wait_for_disconnect(socket: WebSocket[Any, Any, Any]) -> None:
    """Read and ignore what the client sends, until it leaves."""
    try:
        while True:
            await socket.receive_data("text")
    except WebSocketDisconnect:
        return


async def note_socket_error(error: Exception, scope: Scope) -> None:
    """Remember why a WebSocket is refused, for `HandshakeRefusals`."""
    if scope["type"] == "websocket":
        cast("Any", scope)[_ERROR] = error


class HandshakeRefusals:
    """Sends events of a WebSocket, and answers a refused handshake as HTTP does: with a problem.

    Servers that cannot do that close the WebSocket with a code from 4400 on.
    """

    def __init__(self, scope: Any, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._is_open = False

    async def __call__(self, event: Any) -> None:
        if event["type"] == "websocket.accept":
            self._is_open = True
        if event["type"] != "websocket.close" or self._is_open or _ERROR not in self._scope:
            await self._send(event)
            return
        scope: Any = {**self._scope, "type": "http", "method": "GET"}
        request: Request[Any, Any, Any] = Request(scope)
        response = problem_of(request, self._scope[_ERROR])
        status, body = response.status_code or 500, response.content
        if "websocket.http.response" not in self._scope.get("extensions", {}):
            await self._send({"type": "websocket.close", "code": 4000 + status, "reason": ""})
            return
        headers = {"content-type": str(response.media_type), **response.headers}
        start: Any = {
            "type": "websocket.http.response.start",
            "status": status,
            "headers": [(name.lower().encode(), text.encode()) for name, text in headers.items()],
        }
        await self._send(start)
        await self._send(cast("Any", {"type": "websocket.http.response.body", "body": body}))
