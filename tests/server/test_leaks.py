"""Secrets and payloads never appear in logs, errors or responses."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest
from joserfc import jwt
from joserfc.jwk import OctKey

from holdfast import Holdfast
from holdfast.server import JwtOptions, ServerApp, ServerOptions, asgi
from tests.server.callers import key_for, listening
from tests.server.graphs import GRAPHS
from tests.server.route_table import NAMED, routes_of
from tests.server.test_limits import exchange

PAYLOAD = "the-patient-has-a-secret"
SECRET = "a-secret-that-issuers-share-with-servers"
OPTIONS = ServerOptions(
    authentication=True, key_rate=None, tenant_rate=None, jwt=JwtOptions(secret=SECRET)
)


@pytest.fixture
async def app(hf: Holdfast) -> AsyncIterator[ServerApp]:
    made = asgi(hf, GRAPHS, options=OPTIONS, worker=False)
    async with made.lifespan():
        yield made


async def test_no_log_shows_a_secret_or_a_payload(
    hf: Holdfast,
    app: ServerApp,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Everything is logged at DEBUG, with uvicorn's access log and traces of its messages."""
    for name in ("", "uvicorn", "uvicorn.error", "uvicorn.access", "holdfast"):
        caplog.set_level(logging.DEBUG, logger=name)
    key, weak = await key_for(hf), await key_for(hf, "viewer")
    claims = {"exp": 10**10, "tenant": "default", "role": "admin", "sub": "ann"}
    token = jwt.encode({"alg": "HS256"}, claims, OctKey.import_key(SECRET))
    expired = jwt.encode({"alg": "HS256"}, {**claims, "exp": 1}, OctKey.import_key(SECRET))
    created = ""
    async with listening(app, OPTIONS, access_log=True) as port:
        for secret in (key, weak, token, expired, key[:-1], token[:-4]):
            for route in routes_of(app):
                if route.method == "WS" or "stream" in route.path:  # they do not end
                    continue
                path = route.filled(NAMED)
                body = f'{{"name": "n", "role": "viewer", "input": "{PAYLOAD}"}}'
                answer = await exchange(port, request(route.method, path, secret, body))
                assert_clean(answer.decode(), key, weak, token, expired)
        body = '{"name": "n", "role": "viewer"}'
        answer = await exchange(port, request("POST", "/v1/keys", key, body))
        assert b" 201 " in answer
        created = answer.decode().rpartition('"secret":"')[2].partition('"')[0]
        assert created.startswith("hf_")
        broken = request("GET", "/v1/runs", key, "").replace(b"HTTP/1.1", b"HTTP/1.1\0")
        await exchange(port, broken)
    logged = caplog.text + "".join(capfd.readouterr())
    assert "GET /v1/keys" in logged  # the access log is there
    assert_clean(logged, key, weak, token, expired, created, PAYLOAD, SECRET)


async def test_an_error_of_a_handler_shows_nothing(
    hf: Holdfast,
    app: ServerApp,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = await key_for(hf)

    async def fail(*given: object, **named: object) -> None:
        raise RuntimeError("a mistake in the server")

    monkeypatch.setattr(hf.keys, "list", fail)
    async with listening(app, OPTIONS) as port:
        answer = await exchange(port, request("GET", "/v1/keys", key, ""))
    assert b" 500 " in answer
    assert b"a mistake" not in answer
    assert "a mistake in the server" in caplog.text
    assert_clean(answer.decode() + caplog.text, key)


def request(method: str, path: str, secret: str, body: str) -> bytes:
    return (
        f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"Connection: close\r\n\r\n{body}"
    ).encode()


def assert_clean(text: str, *secrets: str) -> None:
    for secret in secrets:
        # A key without its id, and a token without its header, which is no secret.
        kept = secret.rpartition("_")[2] if secret.startswith("hf_") else secret[-40:]
        assert kept not in text, secret
