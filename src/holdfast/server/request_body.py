"""`RequestBody`: the body of a request, read piece by piece by a route that stores it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from litestar.types import Scope

from holdfast.errors import FileTooLarge, UploadInterrupted

__all__ = ["BODY", "HEAD", "RequestBody", "body_of", "is_head"]

Message: TypeAlias = MutableMapping[str, Any]

BODY = "holdfast.body"
"""Where a request's scope has its body."""
HEAD = "holdfast.head"
"""What a request's scope has if the client asked for headers only."""


class RequestBody:
    """The bytes of a request as they arrive. It keeps none of them."""

    def __init__(
        self, receive: Callable[[], Awaitable[Message]], *, size: int | None, seconds: float
    ) -> None:
        self._receive = receive
        self._seconds = seconds
        self.size = size
        """What the client says in Content-Length; None if it says nothing."""

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body.

        Raises:
            UploadInterrupted: the client left, or sent nothing for too long.
        """
        while True:
            try:
                async with asyncio.timeout(self._seconds):
                    message = await self._receive()
            except TimeoutError:
                raise UploadInterrupted(
                    f"no byte arrived for {self._seconds:g} seconds: ask where the upload stands, "
                    "and send the rest"
                ) from None
            if message["type"] == "http.disconnect":
                raise UploadInterrupted("the client left")
            if chunk := message.get("body", b""):
                yield chunk
            if not message.get("more_body"):
                return

    async def read(self, *, bytes_max: int) -> bytes:
        """Return the whole body.

        Raises:
            FileTooLarge: it has more than ``bytes_max`` bytes.
            UploadInterrupted: the client left, or sent nothing for too long.
        """
        parts = bytearray()
        async for chunk in self.chunks():
            parts += chunk
            if len(parts) > bytes_max:
                raise FileTooLarge(f"the body must have at most {bytes_max:,} bytes")
        return bytes(parts)


def body_of(scope: Scope) -> RequestBody:
    """Return the body of a request that no other part of the server has read."""
    found: Any = dict(scope)[BODY]
    return found


def is_head(scope: Scope) -> bool:
    """Return whether a request asks for the headers of an answer only."""
    return HEAD in dict(scope)
