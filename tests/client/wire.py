"""The way of requests to a server: it remembers them, and may cut a response off."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx

__all__ = ["Wire"]


class Wire(httpx.AsyncBaseTransport):
    """Carries requests to an application, as a network would."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner
        self.paths: list[str] = []
        self.cut_after: bytes | None = None
        """The next stream is cut before the second time that it has these bytes."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.paths.append(request.url.path)
        response = await self._inner.handle_async_request(request)
        if self.cut_after is None or not request.url.path.endswith("/stream"):
            return response
        mark, self.cut_after = self.cut_after, None
        body = await response.aread()
        return httpx.Response(200, stream=_Cut(body[: body.index(mark, body.index(mark) + 1)]))


class _Cut(httpx.AsyncByteStream):
    def __init__(self, sent: bytes) -> None:
        self._sent = sent

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._sent
        raise httpx.ReadError("cut")
