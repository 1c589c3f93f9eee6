"""`EventStream`: a stream as a response of server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from litestar.response import Stream
from litestar.types import Receive, Scope, Send

from holdfast.server.streams.message import event_frame
from holdfast.server.streams.registry import OpenStream

__all__ = ["EventStream"]

_HEADERS = {
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx passes each message on at once
}


class EventStream(Stream):
    """Sends the messages of a stream until it ends or the client leaves."""

    def __init__(self, stream: OpenStream, still_valid: Callable[[], Awaitable[bool]]) -> None:
        self._frames = _frames(stream, still_valid)
        self._stream = stream
        super().__init__(self._frames, media_type="text/event-stream", headers=_HEADERS)

    def to_asgi_response(self, app: Any, request: Any, **options: Any) -> Any:
        """Return the response as an application, which frees the stream however it ends."""
        response = super().to_asgi_response(  # pyright: ignore[reportUnknownMemberType]
            app, request, **options
        )

        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await response(scope, receive, send)
            finally:
                self._stream.close()
                await self._frames.aclose()

        return respond


async def _frames(
    stream: OpenStream, still_valid: Callable[[], Awaitable[bool]]
) -> AsyncGenerator[bytes, None]:
    async with aclosing(stream.batches(still_valid)) as batches:
        async for batch in batches:
            yield b"".join(map(event_frame, batch))
