"""Requests that two programs could read in two ways: real bytes to a real socket.

A proxy in front of a server must agree with it on where each request ends. So the server refuses
what is ambiguous and closes the connection. The second request in each attack must never run.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.server import ServerOptions
from tests.server.callers import listening
from tests.server.test_limits import exchange

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /a HTTP/1.1\r\nHost: x\r\n"

ATTACKS: dict[str, bytes] = {
    "both lengths": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both lengths, chunked first": POST
    + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 0\r\nContent-Length: 5\r\n\r\n",
    "two equal lengths": POST + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "a list of lengths": POST + b"Content-Length: 0, 5\r\n\r\n",
    "a signed length": POST + b"Content-Length: +0\r\n\r\n",
    "a negative length": POST + b"Content-Length: -1\r\n\r\n",
    "a length in hex": POST + b"Content-Length: 0x0\r\n\r\n",
    "a length with a space inside": POST + b"Content-Length: 0 0\r\n\r\n",
    "a huge length": POST + b"Content-Length: 99999999999999999999999\r\n\r\n",
    "space before the colon": POST + b"Content-Length : 0\r\n\r\n",
    "tab before the colon": POST + b"Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "chunked is not last": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "two encodings": POST
    + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "an unknown encoding": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "an encoding in quotes": POST + b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n',
    "an encoding with a vertical tab": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "an encoding after a NUL": POST + b"Transfer-Encoding: \x00chunked\r\n\r\n0\r\n\r\n",
    "an encoding in a folded line": POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "a folded header": POST + b"X: a\r\n Content-Length: 5\r\n\r\n",
    "a bare line feed after a header": POST + b"X: a\nContent-Length: 5\r\n\r\n",
    "bare line feeds": b"POST /a HTTP/1.1\nHost: x\nContent-Length: 0\n\n",
    "a bare carriage return": POST + b"X: a\rContent-Length: 5\r\n\r\n",
    "a NUL in a header": POST + b"X: a\x00b\r\n\r\n",
    "an empty name of a header": POST + b": x\r\n\r\n",
    "a name with a space": POST + b"Content Length: 5\r\n\r\n",
    "a chunk size in a sign": POST + b"Transfer-Encoding: chunked\r\n\r\n+0\r\n\r\n",
    "a chunk size with 0x": POST + b"Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n",
    "a chunk size with an underscore": POST + b"Transfer-Encoding: chunked\r\n\r\n0_0\r\n\r\n",
    "a huge chunk size": POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\n",
    "a chunk without its end": POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\naXX0\r\n\r\n",
    "a chunk that ends with a line feed": POST
    + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\n0\r\n\r\n",
    "a line feed in a chunk extension": POST
    + b"Transfer-Encoding: chunked\r\n\r\n1;a\nb\r\na\r\n0\r\n\r\n",
    "a chunked body in HTTP/1.0": POST.replace(b"1.1", b"1.0")
    + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "no version": b"GET /a\r\n\r\n",
    "a wrong version": b"GET /a HTTP/1.10\r\nHost: x\r\n\r\n",
    "a lower-case version": b"GET /a http/1.1\r\nHost: x\r\n\r\n",
    "a line feed in the path": b"GET /a\nb HTTP/1.1\r\nHost: x\r\n\r\n",
    "a method with a line end": b"GE\r\nT /a HTTP/1.1\r\nHost: x\r\n\r\n",
}


class Seen:
    """An application that remembers the paths that it was asked for."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.paths.append(scope["path"])
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


async def smuggled(attack: bytes, **settings: Any) -> tuple[bytes, list[str]]:
    """Return what the server answers to an attack that another request follows, and what ran."""
    seen = Seen()
    options = ServerOptions(header_seconds=0.5)
    async with listening(seen, options, timeout_keep_alive=1, **settings) as port:
        answer = await exchange(port, attack + SMUGGLED)
    return answer, seen.paths


@pytest.mark.parametrize("name", sorted(ATTACKS))
async def test_an_ambiguous_request_is_refused_and_the_connection_closed(name: str) -> None:
    answer, paths = await smuggled(ATTACKS[name])
    assert "/smuggled" not in paths, answer
    assert answer.count(b"HTTP/1.1 ") <= 2


async def test_the_attack_itself_works_on_a_request_that_is_fine() -> None:
    answer, paths = await smuggled(POST + b"Content-Length: 0\r\n\r\n")
    assert paths == ["/a", "/smuggled"]
    assert answer.count(b"HTTP/1.1 200 ") == 2
