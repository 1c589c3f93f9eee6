"""Gets a body from an address that others chose: within a size and a time, through the guard."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

import httpx

__all__ = ["BodyWanted", "GetFailed", "GetFailedKind", "HttpAnswer", "get_answer"]

GetFailedKind = Literal["network", "size", "time"]
BodyWanted = Callable[["HttpAnswer"], bool]

_GZIP = 16 + zlib.MAX_WBITS
_PIECE_BYTES = 64 * 1024
_SENDINGS_MAX = 2


class GetFailed(OSError):
    """No usable answer came from an address."""

    def __init__(self, message: str, kind: GetFailedKind) -> None:
        super().__init__(message)
        self.kind: GetFailedKind = kind


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The answer of a server, with its body if that was wanted."""

    status: int
    headers: httpx.Headers
    body: bytes = b""

    @property
    def content_type(self) -> str:
        """The media type without parameters, in lower case; empty if there is none."""
        said: str = self.headers.get("content-type", "")
        return said.partition(";")[0].strip().lower()


async def get_answer(
    client: httpx.AsyncClient,
    address: str,
    *,
    headers: Mapping[str, str],
    wanted: BodyWanted,
    body_bytes_max: int,
    seconds: float,
    cut: bool = False,
) -> HttpAnswer:
    """Get an address; read the body, unpacked, if ``wanted`` says so of status and headers.

    It follows no redirect. ``cut`` returns the beginning of a body that is larger than
    ``body_bytes_max``.

    Raises:
        GetFailed: no answer came in time, it was cut off, or the body is too large.
        TargetRefused: the address is not public, and not on the allow-list.
    """
    try:
        async with asyncio.timeout(seconds):
            return await _answer(
                client, address, _headers(headers), wanted=wanted, cut=cut, bytes_max=body_bytes_max
            )
    except TimeoutError:
        raise GetFailed(f"there was no whole answer within {seconds:g} s", "time") from None
    except httpx.TimeoutException:
        raise GetFailed("the server was silent for too long", "time") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        why = str(error) or type(error).__name__
        raise GetFailed(f"the server cannot be reached: {why:.200}", "network") from None


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    # gzip only: it can be unpacked in small pieces, so that a bomb is noticed early.
    return {**headers, "accept-encoding": "gzip"}


async def _answer(
    client: httpx.AsyncClient,
    address: str,
    headers: Mapping[str, str],
    *,
    wanted: BodyWanted,
    bytes_max: int,
    cut: bool,
) -> HttpAnswer:
    for sending in range(1, _SENDINGS_MAX + 1):
        begun = False
        try:
            async with client.stream("GET", address, headers=headers) as response:
                begun = True
                answer = HttpAnswer(response.status_code, response.headers)
                if not wanted(answer):
                    return answer
                body = await _body(response, bytes_max=bytes_max, cut=cut)
                return HttpAnswer(answer.status, answer.headers, body)
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
            # A server may close an idle connection at the moment at which it is used again.
            if begun or sending == _SENDINGS_MAX:
                raise
    raise AssertionError("the last attempt returns or raises")


async def _body(response: httpx.Response, *, bytes_max: int, cut: bool) -> bytes:
    body = bytearray()
    async with aclosing(_pieces(response, bytes_max=bytes_max, cut=cut)) as pieces:
        async for piece in pieces:
            body += piece
            if len(body) > bytes_max:
                if cut:
                    break
                raise GetFailed(f"the answer has more than {bytes_max:,} bytes", "size")
    return bytes(body[:bytes_max])


async def _pieces(response: httpx.Response, *, bytes_max: int, cut: bool) -> AsyncGenerator[bytes]:
    """Yield a body in pieces, unpacked; httpx would unpack all that arrived at once."""
    encoding = response.headers.get("content-encoding", "").strip().lower() or "identity"
    if encoding not in ("identity", "gzip", "x-gzip"):
        raise GetFailed(f"content-encoding must be gzip or none, got {encoding:.40}", "network")
    if encoding == "identity":
        async for piece in response.aiter_raw():
            yield piece
        return
    async for piece in _unpacked(response, packed_bytes_max=bytes_max + _PIECE_BYTES, cut=cut):
        yield piece


async def _unpacked(
    response: httpx.Response, *, packed_bytes_max: int, cut: bool
) -> AsyncGenerator[bytes]:
    unpacker = zlib.decompressobj(_GZIP)
    packed_bytes = members = 0
    within = False
    async for packed in response.aiter_raw():
        packed_bytes += len(packed)
        if packed_bytes > packed_bytes_max:  # much that unpacks to nothing
            if cut:
                return
            raise GetFailed(f"the answer has more than {packed_bytes_max:,} packed bytes", "size")
        while packed := packed if within or not members else packed.lstrip(b"\0"):
            try:
                piece = unpacker.decompress(packed, _PIECE_BYTES)
            except zlib.error as error:
                if members and not within:
                    return  # what follows the last member is not ours
                raise GetFailed(f"the answer cannot be unpacked: {error}", "network") from None
            packed, within = unpacker.unconsumed_tail, True
            if unpacker.eof:
                packed, within = unpacker.unused_data, False
                members += 1
                unpacker = zlib.decompressobj(_GZIP)
            if piece:
                yield piece
    if within:
        raise GetFailed("the answer was cut off", "network")
