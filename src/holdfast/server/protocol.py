"""HTTP as ``holdfast serve`` reads it from sockets: uvicorn on httptools, with limits on headers.

httptools refuses what request smuggling needs, and h11 accepts some of it; see
tests/server/test_smuggling.py. But uvicorn limits neither the size of the headers that httptools
collects nor the time that they take.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.server.options import ServerOptions

__all__ = ["limited_protocol"]

# What follows a header in the stream: a colon, a space and a line end.
_HEADER_OVERHEAD_BYTES = 4


def limited_protocol(options: ServerOptions) -> type[HttpToolsProtocol]:
    """Return the protocol for ``uvicorn.Config(http=…)`` that keeps to these options."""
    return type("LimitedHttpProtocol", (_LimitedHttpProtocol,), {"options": options})


class _LimitedHttpProtocol(HttpToolsProtocol):
    """Closes connections whose headers are too large or too slow."""

    options: ServerOptions
    _deadline: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _in_head = True
    _is_used = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._is_used = True
        self._head_bytes += len(data) if self._in_head else 0
        super().data_received(data)
        if self._in_head and self._head_bytes > self._head_bytes_max:
            self._refuse()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._deadline is None:  # not the first request of the connection
            self._begin_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > self.options.headers_max:
            self._refuse()

    def on_headers_complete(self) -> None:
        self._end_head()
        if not self.transport.is_closing():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.transport.is_closing():
            super().on_message_complete()
        self._in_head, self._head_bytes = True, 0

    @property
    def _head_bytes_max(self) -> int:
        options = self.options
        lines = options.headers_max * _HEADER_OVERHEAD_BYTES
        return options.header_bytes_max + options.url_bytes_max + lines

    def _begin_head(self) -> None:
        self._in_head = True
        self._deadline = self.loop.call_later(self.options.header_seconds, self._refuse)

    def _end_head(self) -> None:
        self._in_head = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self) -> None:
        if not self._is_used:
            self.transport.close()
        elif not self.transport.is_closing():
            self.send_400_response("The headers are too large or too slow.")
