"""Reads responses of services within bounds: a body may be a compression bomb, or endless."""

# httpx is an extra: see openai.py.
from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NoReturn

from holdfast.clock import SystemClock
from holdfast.errors import AnswerTooLarge, ModelUnavailable
from holdfast.model.answer_limits import (
    ANSWER_BYTES_MAX,
    ANSWER_SECONDS_MAX,
    BODY_BYTES_MAX,
    ERROR_BYTES_MAX,
    LINE_BYTES_MAX,
    RETRY_AFTER_SECONDS_MAX,
    STREAM_BYTES_MAX,
    STREAM_EVENTS_MAX,
    TOOL_CALLS_MAX,
)

if TYPE_CHECKING:
    import httpx

__all__ = [
    "AnswerSize",
    "limit_time",
    "parse_retry_after",
    "raise_too_large",
    "read_body",
    "read_error_body",
    "read_events",
]

_PIECE_BYTES = 64 * 1024
_GZIP = 16 + zlib.MAX_WBITS
# Each event is a line with data and an empty line.
_LINES_MAX = 2 * STREAM_EVENTS_MAX
_SECONDS = re.compile(r"[0-9]+(\.[0-9]*)?")


class AnswerSize:
    """Counts the text and the tool calls of an answer as it arrives."""

    def __init__(self) -> None:
        self.bytes = 0
        self._calls = 0

    def add(self, text: str) -> str:
        """Count a piece of text, and return it.

        Raises:
            AnswerTooLarge: the answer has more text than allowed.
            ModelUnavailable: the text cannot be stored.
        """
        try:
            self.bytes += len(text.encode())
        except UnicodeEncodeError:
            raise ModelUnavailable(
                "text with a lone surrogate cannot be stored", reason="malformed"
            ) from None
        if self.bytes > ANSWER_BYTES_MAX:
            raise_too_large("bytes of text and arguments", ANSWER_BYTES_MAX)
        return text

    def add_call(self) -> None:
        """Count a tool call.

        Raises:
            AnswerTooLarge: the answer has more tool calls than allowed.
        """
        self._calls += 1
        if self._calls > TOOL_CALLS_MAX:
            raise_too_large("calls of tools", TOOL_CALLS_MAX)


def raise_too_large(what: str, limit: int) -> NoReturn:
    """Raise the error for an answer that exceeds a limit."""
    raise AnswerTooLarge(
        f"an answer must not have more than {limit} {what}", field=what, limit=limit
    )


@asynccontextmanager
async def limit_time() -> AsyncGenerator[None]:
    """Limit the time that an answer may take.

    Raises:
        AnswerTooLarge: the answer took longer.
    """
    timeout = asyncio.timeout(ANSWER_SECONDS_MAX)
    try:
        async with timeout:
            yield
    except TimeoutError:
        if not timeout.expired():
            raise
        raise_too_large("seconds to come", ANSWER_SECONDS_MAX)


async def read_body(response: httpx.Response) -> bytes:
    """Return the body of a response that is not streamed.

    Raises:
        AnswerTooLarge: the unpacked body is larger than allowed.
        ModelUnavailable: it cannot be unpacked.
    """
    body = bytearray()
    async for piece in _read_pieces(response):
        body += piece
        if len(body) > BODY_BYTES_MAX:
            raise_too_large("bytes", BODY_BYTES_MAX)
    return bytes(body)


async def read_error_body(response: httpx.Response) -> bytes:
    """Return the beginning of the body of an error; as much as can be read."""
    body = bytearray()
    try:
        async for piece in _read_pieces(response):
            body += piece
            if len(body) >= ERROR_BYTES_MAX:
                break
    except ModelUnavailable:
        pass  # its status says enough
    return bytes(body[:ERROR_BYTES_MAX])


async def read_events(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the data of each event of a stream; lines end with a line feed only.

    Raises:
        AnswerTooLarge: the stream, one of its lines, or their number exceeds its limit.
        ModelUnavailable: it cannot be unpacked.
    """
    left = bytearray()
    size = lines = 0
    async for piece in _read_pieces(response):
        size += len(piece)
        if size > STREAM_BYTES_MAX:
            raise_too_large("bytes in its stream", STREAM_BYTES_MAX)
        begin = 0
        while (end := piece.find(b"\n", begin)) >= 0:
            lines += 1
            if lines > _LINES_MAX:
                raise_too_large("events in its stream", STREAM_EVENTS_MAX)
            left += piece[begin:end]
            begin = end + 1
            if data := _event_data(left):
                yield data
            left.clear()
        left += piece[begin:]
        if len(left) > LINE_BYTES_MAX:
            raise_too_large("bytes in a line", LINE_BYTES_MAX)
    if data := _event_data(left):
        yield data


def _event_data(line: bytearray) -> bytes:
    return bytes(line[5:].strip()) if line.startswith(b"data:") else b""


async def _read_pieces(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield a body, unpacked in small pieces.

    httpx unpacks all that arrived at once, and a few KB can become gigabytes.
    """
    if response.is_stream_consumed:  # read by the caller's client, which has unpacked it
        yield response.content
        return
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", "x-gzip"):
        raise ModelUnavailable(
            f"content-encoding must be identity or gzip, got {encoding:.40}", reason="malformed"
        )
    if encoding == "identity":
        async for piece in response.aiter_raw():
            yield piece
        return
    unpacker = zlib.decompressobj(_GZIP)
    clock = SystemClock()
    async for packed in response.aiter_raw():
        try:
            while packed and not unpacker.eof:
                yield unpacker.decompress(packed, _PIECE_BYTES)
                packed = unpacker.unconsumed_tail
                await clock.sleep(0)  # let other runs of the process continue
        except zlib.error as error:
            raise ModelUnavailable(
                f"the answer cannot be unpacked: {error}", reason="malformed"
            ) from error


def parse_retry_after(said: str) -> float | None:
    """Return how long a service asks to wait, up to a limit; dates are ignored."""
    if not _SECONDS.fullmatch(said):
        return None
    return min(float(said), float(RETRY_AFTER_SECONDS_MAX))
