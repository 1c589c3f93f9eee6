"""Reads the bodies of requests within their limits: bytes, seconds and depth."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from litestar.exceptions import ClientException, HTTPException
from litestar.exceptions.http_exceptions import RequestEntityTooLarge

from holdfast.server.options import ServerOptions
from holdfast.server.problems import LEFT

__all__ = ["LimitedReceive", "Message", "is_too_deep"]

Message: TypeAlias = MutableMapping[str, Any]

_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NEITHER_BRACKETS_NOR_QUOTES = bytes(byte for byte in range(256) if byte not in b'[]{}"')


class LimitedReceive:
    """An ASGI ``receive`` that returns the whole body at once, when the application asks for it.

    Later calls wait for the client to disconnect, as ASGI says.
    """

    def __init__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        options: ServerOptions,
        *,
        size: int | None,
    ) -> None:
        """``size`` is what the client says in Content-Length."""
        self._scope = scope
        self._receive = receive
        self._options = options
        self._size = size
        self._is_read = False

    async def __call__(self) -> Message:
        """Return the next message of the request.

        It raises what becomes the response if the body is too large (413), takes too long (408) or
        is nested too deeply (400).
        """
        if self._is_read:
            return await self._receive()
        self._is_read = True
        if self._size is not None and self._size > self._options.body_bytes_max:
            raise self._too_large()
        first = await self._receive_in_time()
        if first["type"] == "http.disconnect":
            self._scope[LEFT] = True
        if is_too_deep(first.get("body", b""), self._options.json_depth_max):
            raise ClientException(
                f"the body must be nested at most {self._options.json_depth_max} deep"
            )
        return first

    async def _receive_in_time(self) -> Message:
        try:
            async with asyncio.timeout(self._options.body_seconds):
                return await self._receive_all()
        except TimeoutError:
            raise HTTPException(
                status_code=408,
                detail=f"the body must arrive within {self._options.body_seconds:g} seconds",
            ) from None

    async def _receive_all(self) -> Message:
        message = await self._receive()
        if not message.get("more_body"):
            return self._checked(message, message.get("body", b""))
        parts = bytearray()
        while message["type"] == "http.request":
            parts += message.get("body", b"")
            self._checked(message, parts)
            if not message.get("more_body"):
                return {"type": "http.request", "body": bytes(parts), "more_body": False}
            message = await self._receive()
        return message

    def _checked(self, message: Message, body: bytes | bytearray) -> Message:
        if len(body) > self._options.body_bytes_max:
            raise self._too_large()
        return message

    def _too_large(self) -> RequestEntityTooLarge:
        return RequestEntityTooLarge(
            f"the body must have at most {self._options.body_bytes_max:,} bytes"
        )


def is_too_deep(body: bytes, depth_max: int) -> bool:
    """Return whether JSON is nested deeper than a limit, without decoding it.

    For text that is not JSON the result means nothing.
    """
    if body.count(b"[") + body.count(b"{") <= depth_max:
        return False
    if b"\\" in body:
        body = body.replace(rb"\\", b"").replace(rb"\"", b"")
    marks = body.translate(_ONE_KIND, _NEITHER_BRACKETS_NOR_QUOTES).replace(b'""', b"")
    # Every second part is inside quotes. Two quotes side by side divide nothing.
    brackets = b"".join(marks.split(b'"')[::2])
    for _ in range(depth_max):  # each round takes the innermost pairs away
        size = len(brackets)
        brackets = brackets.replace(b"[]", b"")
        if len(brackets) == size:
            break
    return bool(brackets)
