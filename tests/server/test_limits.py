"""Requests that are too large, too deep or too slow."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Holdfast
from holdfast.errors import InvalidRequest
from holdfast.server import Rate, ServerOptions, asgi
from holdfast.server.body_limits import is_too_deep
from tests.server.callers import bearer, key_for, listening, serving
from tests.server.graphs import GRAPHS

SMALL = ServerOptions(
    authentication=True,
    body_bytes_max=1000,
    body_seconds=0.2,
    header_seconds=0.2,
    header_bytes_max=2000,
    headers_max=20,
    url_bytes_max=500,
)


@pytest.fixture
async def http(hf: Holdfast) -> AsyncIterator[httpx.AsyncClient]:
    secret = await key_for(hf)
    async with serving(hf, SMALL) as (client, _):
        client.headers.update(bearer(secret))
        yield client


async def sent_in_parts(*parts: bytes) -> AsyncIterator[bytes]:
    for each in parts:
        yield each


async def test_a_body_that_is_too_large_is_refused(http: httpx.AsyncClient) -> None:
    fits = json.dumps({"name": "x", "role": "viewer"}).encode()
    kind = {"Content-Type": "application/json"}
    answer = await http.post("/v1/keys", content=fits + b" " * (1000 - len(fits)), headers=kind)
    assert answer.status_code == 201
    for body in (
        fits + b" " * 1000,
        sent_in_parts(fits, *[b" " * 100] * 10),  # without a Content-Length
    ):
        answer = await http.post("/v1/keys", content=body, headers=kind)
        assert answer.status_code == 413
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["connection"] == "close"


async def test_a_body_is_not_read_beyond_its_limit(hf: Holdfast) -> None:
    """Whatever the Content-Length says, and before it is complete."""
    secret, read = await key_for(hf), 0

    async def long() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(1000):
            read += 100
            yield b" " * 100

    async with serving(hf, SMALL) as (client, _):
        headers = {**bearer(secret), "Content-Length": "10", "Content-Type": "application/json"}
        answer = await client.post("/v1/keys", content=long(), headers=headers)
    assert answer.status_code == 413
    assert read <= 1200


async def test_a_body_is_not_read_without_credentials(hf: Holdfast) -> None:
    read = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        read += 1
        yield b"{}"

    async with serving(hf, SMALL) as (client, _):
        answer = await client.post("/v1/keys", content=body())
    assert (answer.status_code, read) == (401, 0)


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
async def test_deeply_nested_json_is_refused(hf: Holdfast, opening: bytes) -> None:
    secret = await key_for(hf)
    headers = {**bearer(secret), "Content-Type": "application/json"}
    async with serving(hf) as (client, _):
        for depth in (65, 1000, 100_000, 500_000):
            for body in (opening * depth, opening * depth + b"1" + b"]" * depth):
                answer = await client.post("/v1/keys", content=body, headers=headers)
                assert answer.status_code == 400, depth
                assert "nested" in answer.json()["detail"]


values = st.recursive(
    st.none() | st.text(st.sampled_from('[]{}"\\ a')),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text('[{"\\'), inner, max_size=3)
    ),
    max_leaves=40,
)


def depth_of(value: Any) -> int:
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 0


@given(values, st.integers(0, 6))
def test_the_depth_is_that_of_the_decoded_value(value: Any, limit: int) -> None:
    for body in (json.dumps(value).encode(), msgspec.json.encode(value)):
        assert is_too_deep(body, limit) == (depth_of(value) > limit)


@pytest.mark.parametrize(
    "body",
    [b'"\\"' * 1_300_000, b"[]" * 2_000_000, b'["' * 2_000_000, b"[{}" * 1_300_000, b'"\\' * 9],
)
def test_looking_for_depth_is_linear(body: bytes) -> None:
    is_too_deep(body, 64)  # a quadratic search would take hours


@pytest.mark.parametrize(
    "body", [b"[" * 2_000_000 + b"]" * 2_000_000, (b"[" * 900 + b"]" * 900) * 1_000]
)
def test_looking_for_depth_takes_no_longer_with_a_larger_limit(body: bytes) -> None:
    began = time.process_time()
    is_too_deep(body, 1_000)
    assert time.process_time() - began < 2  # to remove one level after the other took 20


async def test_long_urls_and_many_headers_are_refused(http: httpx.AsyncClient) -> None:
    assert (await http.get("/v1/runs?" + "x" * 600)).status_code == 414
    assert (await http.get("/v1/" + "x" * 600)).status_code == 414
    many = {f"X-{number}": "x" for number in range(30)}
    assert (await http.get("/v1/runs", headers=many)).status_code == 431
    assert (await http.get("/v1/runs", headers={"X": "x" * 2000})).status_code == 431


# --- on a socket ----------------------------------------------------------------------------------


@pytest.fixture
async def port(hf: Holdfast) -> AsyncIterator[int]:
    app = asgi(hf, GRAPHS, options=SMALL, worker=False)
    async with app.lifespan(), listening(app, SMALL) as opened:
        yield opened


async def exchange(port: int, *parts: bytes) -> bytes:
    """Send bytes; return everything until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)
        await writer.drain()
    async with asyncio.timeout(10):
        try:
            answer = await reader.read()
        except ConnectionError:
            answer = b""
    writer.close()
    return answer


async def test_a_slow_body_is_refused(hf: Holdfast, port: int) -> None:
    secret = await key_for(hf)
    head = f"POST /v1/keys HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n"
    begun = f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n" + "{"
    answer = await exchange(port, begun.encode())
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in answer


async def test_slow_headers_are_refused(port: int) -> None:
    begun = b"GET /v1/runs HTTP/1.1\r\nHost: x\r\nX-Slow: "
    assert (await exchange(port, begun)).startswith(b"HTTP/1.1 400 ")


async def test_an_unused_connection_is_closed(port: int) -> None:
    assert await exchange(port) == b""


async def test_many_small_headers_with_a_body_are_refused(port: int) -> None:
    line = b"POST /v1/runs HTTP/1.1\r\n" + b"X: x\r\n" * 30
    answer = await exchange(port, line + b"Content-Length: 2\r\n\r\n{}")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1


async def test_slow_headers_of_a_later_request_are_refused(port: int) -> None:
    first = b"GET /v1/runs HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = await exchange(port, first, b"GET /v1/runs HTTP/1.1\r\nX-Slow: ")
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"HTTP/1.1 400 " in answer


async def test_endless_headers_are_refused(port: int) -> None:
    line = b"GET /v1/runs HTTP/1.1\r\n"
    for endless in (
        line + b"X: " + b"x" * 20_000,
        line + b"X" * 20_000,
        line + b"X: x\r\n" * 2000,
        b"GET /" + b"x" * 20_000,
    ):
        answer = await exchange(port, endless)
        assert answer.startswith(b"HTTP/1.1 400 "), endless[:40]


async def test_a_server_does_not_name_its_software(port: int) -> None:
    answer = await exchange(port, b"GET /v1/runs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"uvicorn" not in answer.lower()
    assert b"\nserver:" not in answer.lower()


@pytest.mark.parametrize(
    "wrong",
    [
        {"cors_origins": ("*",)},
        {"cors_origins": ("https://a.example/",)},
        {"cors_origins": ("a.example",)},
        {"cors_origins": "https://a.example"},
        {"allowed_hosts": ["a"]},
        {"body_bytes_max": 0},
        {"body_seconds": float("nan")},
        {"header_seconds": -1},
        {"headers_max": 1.5},
        {"heartbeat_seconds": 0},
        {"trusted_proxies": ("proxy.internal",)},
        {"trusted_proxies": ("10.1.0.1/16",)},
        {"trusted_proxies": "10.1.0.1"},
        {"list_poll_seconds": float("inf")},
        {"followers_max": 0},
        {"stream_messages_max": 0},
        {"metrics_token": ""},
        {"metrics_token": "two words"},
        {"metrics_token": b"bytes"},
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        ServerOptions(**wrong)


@pytest.mark.parametrize("wrong", [(0, 1), (1, 0), (float("inf"), 1), ("1", 1), (1, 1.5)])
def test_wrong_rates_are_refused(wrong: tuple[Any, Any]) -> None:
    with pytest.raises(InvalidRequest):
        Rate(*wrong)
