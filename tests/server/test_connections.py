"""Connections that end early or ask for the head only, and what the logs say of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, get_args

import httpx
import pytest
from litestar.params import HeaderParameter

from holdfast import Holdfast
from holdfast.server import Rate, ServerOptions, asgi
from holdfast.server.binding import listening_socket
from holdfast.server.process import listen, loop_factory
from holdfast.server.routes import HANDLERS
from holdfast.server.routing import described_routes
from tests.server.callers import key_for
from tests.server.graphs import GRAPHS, Order, orders

TOKEN = "secret-token"


@asynccontextmanager
async def connected(
    hf: Holdfast, **given: Any
) -> AsyncIterator[tuple[Any, asyncio.StreamReader, Any]]:
    """Yield a server as a process serves it, and one connection to it."""
    on, options = listening_socket("127.0.0.1", 0), ServerOptions(**given)
    app = asgi(hf, GRAPHS, options=options, worker=False)
    async with (
        asyncio.timeout(20),
        app.lifespan(),
        listen(on, options, requests_seconds_max=1) as listener,
    ):
        listener.app = app
        reader, writer = await asyncio.open_connection(*on.getsockname())
        try:
            yield app, reader, writer
        finally:
            writer.close()


def request(line: str, *headers: str) -> bytes:
    return "\r\n".join([f"{line} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


async def test_head_of_a_stream_ends_with_its_headers(hf: Holdfast) -> None:
    run = await hf.start(orders, Order("book"))
    async with connected(hf) as (app, reader, writer):
        for path in (f"/v1/runs/{run.id}/stream", "/v1/streams/runs"):
            writer.write(request(f"HEAD {path}"))
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            # The connection is free for the next request.
            writer.write(request("GET /healthz"))
            await reader.readuntil(b'{"status":"ok"}')
        assert app.services.streams.followers == 0


async def test_a_client_that_leaves_before_its_body_arrived_is_no_error(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def accept(*given: Any) -> None: ...

    monkeypatch.setattr(type(hf.callbacks), "check", accept)
    caplog.set_level(logging.INFO)
    async with connected(hf) as (_, _, writer):
        head = request(f"POST /v1/callbacks/{TOKEN}", "Content-Length: 10")
        writer.write(head + b"{")
        await writer.drain()
        writer.close()
    (record,) = [each for each in caplog.records if each.name == "holdfast.access"]
    assert record.fields["status"] == 400  # type: ignore[attr-defined]
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
    assert TOKEN not in caplog.text


async def test_an_internal_error_is_logged_without_the_token_of_a_callback(
    http: httpx.AsyncClient,
    hf: Holdfast,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(*given: Any, **named: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(type(hf.callbacks), "check", fail)
    answer = await http.post(f"/v1/callbacks/{TOKEN}", json=1)
    assert answer.status_code == 500
    assert "a bug" in caplog.text
    assert "POST /v1/callbacks/{token} failed" in caplog.text
    assert TOKEN not in caplog.text


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/runs/none/ws", 404), ("/v1/streams/runs/ws?limit=0", 400)]
)
async def test_a_refused_websocket_is_logged_with_the_status_of_its_response(
    hf: Holdfast, caplog: pytest.LogCaptureFixture, path: str, status: int
) -> None:
    caplog.set_level(logging.INFO)
    upgrade = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
    async with connected(hf) as (_, reader, writer):
        key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
        writer.write(request(f"GET {path}", *upgrade, key))
        answer = (await reader.read()).decode()
    (record,) = [each for each in caplog.records if each.name == "holdfast.access"]
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert record.fields["status"] == status  # type: ignore[attr-defined]
    assert f"x-request-id: {record.fields['request']}" in answer  # type: ignore[attr-defined]
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


async def test_a_body_that_is_too_large_is_refused_with_the_limit(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/runs", json={"graph": "orders", "input": "x" * 5_000_000})
    assert answer.status_code == 413
    assert answer.json()["detail"] == "the body must have at most 4,194,304 bytes"


def test_the_loop_of_a_server_leaves_logs_as_they_are() -> None:
    logging.getLogger("uvicorn").handlers.clear()
    loop_factory()
    assert logging.getLogger("uvicorn").handlers == []


async def test_a_page_may_send_every_header_that_a_route_reads(hf: Holdfast) -> None:
    """A page that follows a stream with a key uses fetch, and sends Last-Event-ID itself."""
    page = "https://app.example.com"
    read = {
        name
        for described in described_routes(HANDLERS)
        for name, (hint, _) in described.parameters.items()
        if any(isinstance(each, HeaderParameter) for each in get_args(hint)[1:])
    }
    app = asgi(hf, GRAPHS, options=ServerOptions(authentication=True, cors_origins=(page,)))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        asked = {
            "Origin": page,
            "Access-Control-Request-Method": "GET",
            "Access-Control-Request-Headers": ", ".join([*read, "Authorization", "If-None-Match"]),
        }
        answer = await client.options("/v1/runs", headers=asked)
    assert read >= {"Idempotency-Key", "Last-Event-ID", "Prefer"}
    assert (answer.status_code, answer.text) == (204, "")


@pytest.mark.parametrize("trusted", [(), ("127.0.0.0/8",)])
async def test_callers_behind_a_trusted_proxy_fail_each_for_itself(
    hf: Holdfast, trusted: tuple[str, ...]
) -> None:
    secret = await key_for(hf)
    rare = Rate(0.001, 1)

    async def ask(address: str, key: str) -> bytes:
        headers = (f"Authorization: Bearer {key}", f"X-Forwarded-For: 10.9.9.9, {address}")
        writer.write(request("GET /v1/keys", *headers))
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split()[0]))
        return head.split()[1]

    async with connected(hf, authentication=True, failure_rate=rare, trusted_proxies=trusted) as (
        _,
        reader,
        writer,
    ):
        assert await ask("203.0.113.1", "wrong") == b"401"
        assert await ask("203.0.113.1", secret) == b"429"
        assert await ask("203.0.113.2", secret) == (b"200" if trusted else b"429")
