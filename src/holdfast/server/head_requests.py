"""Requests with HEAD: they are answered as those with GET are, with the headers only."""

from __future__ import annotations

from typing import Any

__all__ = ["HeadRequest"]


class HeadRequest:
    """The two ends of an ASGI connection whose response ends with its headers.

    After these the client counts as gone, so that a stream ends at once.
    """

    def __init__(self, receive: Any, send: Any) -> None:
        self._receive = receive
        self._send = send
        self._is_answered = False

    async def receive(self) -> Any:
        """Return the next message of the request."""
        if self._is_answered:
            return {"type": "http.disconnect"}
        return await self._receive()

    async def send(self, message: Any) -> None:
        """Send the headers of the response; leave its body out."""
        if message["type"] == "http.response.start" and not self._is_answered:
            self._is_answered = True
            await self._send(message)
            await self._send({"type": "http.response.body", "body": b""})
