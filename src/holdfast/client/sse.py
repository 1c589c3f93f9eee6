"""A parser of server-sent events, which gets the bytes in pieces of any size."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.errors import InvalidResponse

__all__ = ["ServerSentEvent", "SseParser"]

# A piece of text or a row is far smaller; a stream without an end of line is not one of events.
_CHARS_MAX = 64 * 1024 * 1024


class ServerSentEvent(NamedTuple):
    """One message of a stream."""

    name: str
    data: str
    id: str
    """The last id of the stream so far: a message without an id keeps that of the one before."""
    retry_ms: int | None = None
    """How long to wait before a reconnect, if the message or one before it said so."""


class SseParser:
    """Collects bytes and yields the messages that they complete, as the standard says."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._rest = ""
        self._name = ""
        self._data: list[str] = []
        self._chars = 0
        self._id = ""
        self._retry_ms: int | None = None

    def feed(self, chunk: bytes) -> Iterator[ServerSentEvent]:
        """Yield the messages that end in this piece.

        Raises:
            InvalidResponse: a message is larger than any that a server sends.
        """
        text = self._rest + self._decoder.decode(chunk)
        # A line may end with CR, LF or both; a CR at the end may be the first half of both.
        held = "\r" if text.endswith("\r") else ""
        text = text.removesuffix("\r").replace("\r\n", "\n").replace("\r", "\n")
        *lines, self._rest = text.split("\n")
        self._rest += held
        self._chars += len(text)
        if self._chars > _CHARS_MAX:
            raise InvalidResponse("the server sent a message of more than 64 MB in a stream")
        for line in lines:
            message = self._take(line)
            if message is not None:
                self._chars = 0
                yield message

    def _take(self, line: str) -> ServerSentEvent | None:
        if not line:
            return self._complete()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "event":
                self._name = value
            case "data":
                self._data.append(value)
            case "id" if "\0" not in value:
                self._id = value
            case "retry" if value.isascii() and value.isdigit():
                self._retry_ms = int(value)
            case _:
                pass  # a comment, which is a heartbeat, or a field of a later standard
        return None

    def _complete(self) -> ServerSentEvent | None:
        name, data = self._name, self._data
        self._name, self._data = "", []
        if not data:
            self._chars = 0
            return None
        return ServerSentEvent(name or "message", "\n".join(data), self._id, self._retry_ms)
