"""Attacks on a server by name: forged, expired and revoked keys, tenants, injections, web pages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import Holdfast
from holdfast.access.key_text import new_key_text
from holdfast.clock import ManualClock
from holdfast.server import Rate, ServerOptions
from tests.server.callers import bearer, key_for, open_socket, serving
from tests.server.graphs import Order, orders

MARK = "crown-jewels"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def timed(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Holdfast]:
    """A Holdfast with a clock that stands still."""
    async with Holdfast(f"sqlite:///{tmp_path}/timed.db", clock=clock) as opened:
        yield opened


async def status(http: httpx.AsyncClient, secret: str, path: str = "/v1/runs") -> int:
    return (await http.get(path, headers=bearer(secret))).status_code


def key_reads(hf: Holdfast) -> int:
    """Return how often keys were read; what runs beside the requests uses the store, too."""
    rows = hf.meter.report().rows
    return sum(row.calls for row in rows if (row.purpose, row.operation) == ("key", "get"))


# --- keys -----------------------------------------------------------------------------------------


async def test_a_forged_key_is_refused(hf: Holdfast) -> None:
    good = await key_for(hf)
    forged = new_key_text(b"\1" * 32)
    headers: list[dict[str, str]] = [
        bearer(forged),
        bearer(good[:-1]),
        bearer(good + "a"),
        bearer(good.upper()),
        bearer(""),
        {"Authorization": good},
        {"Authorization": f"Basic {good}"},
        {"Authorization": f"Bearer {good} {good}"},
        {"X-API-Key": good},
        {},
    ]
    async with serving(hf) as (http, _):
        assert await status(http, good) == 200
        for each in headers:
            answer = await http.get("/v1/runs", headers=each)
            assert answer.status_code == 401, each
            assert good not in answer.text
        assert (await http.get(f"/v1/runs?key={good}&access_token={good}")).status_code == 401
        twice = [("Authorization", f"Bearer {good}"), ("Authorization", f"Bearer {forged}")]
        assert (await http.get("/v1/runs", headers=twice)).status_code == 422


async def test_an_expired_key_is_refused_to_the_millisecond(
    timed: Holdfast, clock: ManualClock
) -> None:
    made = await timed.keys.create("ci", tenant="default", role="viewer", expires=10)
    async with serving(timed) as (http, _):
        clock.advance(9.999)
        assert await status(http, made.secret) == 200
        clock.advance(0.001)  # the key is in the cache
        answer = await http.get("/v1/runs", headers=bearer(made.secret))
    assert answer.status_code == 401
    assert answer.json()["detail"] == "the API key has expired"


async def test_a_revoked_key_is_refused_within_three_seconds(
    timed: Holdfast, clock: ManualClock
) -> None:
    made = await timed.keys.create("ci", tenant="default", role="viewer")
    async with serving(timed) as (http, _):
        assert await status(http, made.secret) == 200
        await timed.keys.revoke(made.id)
        clock.advance(2.999)
        assert await status(http, made.secret) == 200  # cached
        clock.advance(0.001)
        assert await status(http, made.secret) == 401
        clock.advance(3)
        assert await status(http, made.secret) == 401


async def test_one_read_serves_many_requests(timed: Holdfast, clock: ManualClock) -> None:
    secret = await key_for(timed)
    async with serving(timed) as (http, app):
        await status(http, secret)
        timed.meter.reset()
        for _ in range(20):
            await app.services._credentials.identify(secret)
        assert key_reads(timed) == 0
        clock.advance(3)
        await app.services._credentials.identify(secret)
        assert key_reads(timed) == 1


async def test_a_flood_of_forged_keys_costs_little(timed: Holdfast) -> None:
    good = await key_for(timed)
    options = ServerOptions(authentication=True, failure_rate=Rate(5, 20))
    async with serving(timed, options) as (http, app):
        assert await status(http, good) == 200
        timed.meter.reset()
        for number in range(100):
            assert await status(http, f"hf_{number}") in (401, 429)
        assert key_reads(timed) == 0
        for number in range(100):
            assert await status(http, new_key_text(number.to_bytes(32, "little"))) == 429
        assert key_reads(timed) == 0
        # The attacker's address is throttled, and a key that was valid is not.
        assert await status(http, good) == 200
        cache = app.services._credentials._keys
        assert len(cache._refused) == len(cache._reading) == 0


async def test_the_caches_are_bounded(timed: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.server.key_cache._ENTRIES_MAX", 10)
    monkeypatch.setattr("holdfast.server.throttling._BUCKETS_MAX", 10)
    good = await key_for(timed)
    async with serving(timed) as (http, app):
        assert await status(http, good) == 200
        for number in range(30):
            await status(http, new_key_text(number.to_bytes(32, "little")))
        credentials = app.services._credentials
        assert len(credentials._keys._refused) == 10
        assert await status(http, good) == 200
        assert len(credentials._keys._valid) == len(credentials._admitted) == 1
        for number in range(30):
            credentials._failures.count(str(number))
        assert len(credentials._failures._full_at) == 10


async def test_a_stream_learns_that_its_key_was_revoked(
    timed: Holdfast, clock: ManualClock
) -> None:
    made = await timed.keys.create("ci", tenant="default", role="viewer")
    async with serving(timed) as (_, app):
        identity = await app.services._credentials.identify(made.secret)
        requester: Any = type("Requester", (), {"identity": identity})()
        assert made.secret not in repr(identity)
        assert await app.services.still_valid(requester)
        await timed.keys.revoke(made.id)
        clock.advance(3)
        assert not await app.services.still_valid(requester)


# --- rates ----------------------------------------------------------------------------------------


async def test_a_caller_that_asks_too_often_is_told_when_to_come_back(
    timed: Holdfast, clock: ManualClock
) -> None:
    options = ServerOptions(authentication=True, key_rate=Rate(0.5, 3), tenant_rate=Rate(10, 5))
    one, other = await key_for(timed, "viewer"), await key_for(timed, "admin")
    async with serving(timed, options) as (http, _):
        assert [await status(http, one) for _ in range(4)] == [200, 200, 200, 429]
        answer = await http.get("/v1/runs", headers=bearer(one))
        assert answer.headers["retry-after"] == "2"
        assert answer.json()["code"] == "too_many_requests"
        clock.advance(1.999)
        assert await status(http, one) == 429
        clock.advance(0.001)
        assert await status(http, one) == 200
        clock.advance(100)
        assert [await status(http, one) for _ in range(3)] == [200] * 3
        # Two keys of one tenant share its rate.
        assert [await status(http, other) for _ in range(3)] == [200, 200, 429]


async def test_a_caller_has_a_limit_on_open_requests(hf: Holdfast) -> None:
    secret = await key_for(hf)
    async with serving(hf, ServerOptions(authentication=True, requests_at_once_max=2)) as (
        http,
        app,
    ):
        credentials = app.services._credentials
        name = (await credentials.identify(secret)).caller
        credentials.open_request(name)
        assert await status(http, secret) == 200
        assert await status(http, secret) == 200  # the first one ended
        credentials.open_request(name)
        assert await status(http, secret) == 429
        assert (await http.head("/v1/runs", headers=bearer(secret))).status_code in (405, 429)
        credentials.close_request(name)
        assert await status(http, secret) == 200
        assert credentials._at_once == {name: 1}


# --- tenants: the routes themselves are in `test_tenants` -----------------------------------------


async def test_a_caller_cannot_choose_another_tenant(hf: Holdfast) -> None:
    await hf.start(orders, Order(MARK), id=MARK, tenant="a")
    theirs, every = await key_for(hf, tenant="b"), await key_for(hf, tenant="*")
    async with serving(hf) as (http, _):

        async def ask(secret: str, tenant: str, path: str = f"/v1/runs/{MARK}") -> int:
            headers = {**bearer(secret), "Holdfast-Tenant": tenant}
            return (await http.get(path, headers=headers)).status_code

        assert await ask(theirs, "a") == 403
        assert await ask(theirs, "*") == 403
        assert await ask(theirs, "") == 403
        assert await ask(theirs, "b", "/v1/runs") == 200
        assert await ask(every, "a") == 200
        assert await ask(every, "b") == 404
        for name in ("*", "", "a#b", "a/b", "..", "x" * 65):
            assert await ask(every, name) == 422
        twice = [
            ("Authorization", f"Bearer {every}"),
            ("Holdfast-Tenant", "b"),
            ("Holdfast-Tenant", "a"),
        ]
        assert (await http.get(f"/v1/runs/{MARK}", headers=twice)).status_code == 422


# --- injection ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "id",
    [
        "a%2Fb",
        "..%2F..%2Fkeys",
        "%2e%2e",
        "a%00b",
        "a%0d%0aX-Evil:%201",
        "a%23b",
        "a%7Eb",
        "%F0%9F",
        "%25",
        "x" * 129,
        "%C2%85",
    ],
)
async def test_an_id_cannot_leave_its_place(hf: Holdfast, id: str) -> None:
    await hf.start(orders, Order(MARK), id=MARK)
    secret = await key_for(hf)
    async with serving(hf) as (http, _):
        answer = await http.get(f"/v1/runs/{id}", headers=bearer(secret))
    assert answer.status_code in (400, 404, 405, 422)
    assert "x-evil" not in answer.headers
    assert MARK not in answer.text


# --- web pages ------------------------------------------------------------------------------------


@pytest.fixture
async def local(hf: Holdfast) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server without authentication."""
    async with serving(hf, ServerOptions(allowed_hosts=("holdfast.internal",))) as (http, _):
        yield http


@pytest.mark.parametrize(
    ("host", "admitted"),
    [
        ("localhost", True),
        ("localhost:8080", True),
        ("127.0.0.1:1", True),
        ("[::1]:8080", True),
        ("[::1]", True),
        ("LOCALHOST", True),
        ("holdfast.internal:80", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("localhost:80.evil.example", False),
        ("evil.example:localhost", False),
        ("", False),
    ],
)
async def test_a_name_that_resolves_to_this_machine_is_refused(
    local: httpx.AsyncClient, host: str, admitted: bool
) -> None:
    answer = await local.get("/v1/runs", headers={"Host": host})
    assert answer.status_code == (200 if admitted else 421)


@pytest.mark.parametrize(
    ("origin", "admitted"),
    [
        ("http://localhost", True),
        ("http://localhost:3000", False),
        ("https://evil.example", False),
        ("null", False),
        ("", False),
    ],
)
async def test_a_page_of_another_origin_cannot_drive_a_local_server(
    local: httpx.AsyncClient, origin: str, admitted: bool
) -> None:
    body = {"name": "x", "role": "admin"}
    answer = await local.post("/v1/keys", json=body, headers={"Origin": origin})
    assert answer.status_code == (201 if admitted else 403)


async def test_a_websocket_of_another_origin_is_refused(hf: Holdfast) -> None:
    async with serving(hf, ServerOptions()) as (_, app):
        [closed] = await open_socket(app, "/v1/runs/x/ws", {"Origin": "https://evil.example"})
    assert closed == {"type": "websocket.close", "code": 1008}


async def test_no_origin_may_read_unless_it_is_listed(hf: Holdfast) -> None:
    secret = await key_for(hf)
    page = "https://app.example.com"
    for allowed in ((), (page,)):
        options = ServerOptions(authentication=True, cors_origins=allowed)
        async with serving(hf, options) as (http, _):
            for origin in (page, "https://evil.example", "null"):
                asked = {"Origin": origin, "Access-Control-Request-Method": "GET"}
                preflight = await http.options("/v1/runs", headers=asked)
                answer = await http.get("/v1/runs", headers={**bearer(secret), "Origin": origin})
                told = {
                    each.headers.get("access-control-allow-origin") for each in (preflight, answer)
                }
                assert told == ({page} if origin in allowed else {None}), (allowed, origin)
                assert "access-control-allow-credentials" not in answer.headers


async def test_every_response_has_security_headers(hf: Holdfast) -> None:
    secret = await key_for(hf)
    async with serving(hf) as (http, _):
        for path in ("/v1/runs", "/v1/none", "/v1/runs/none", f"/v1/runs?{'x' * 9000}"):
            answer = await http.get(path, headers=bearer(secret))
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert answer.headers["content-security-policy"].startswith("default-src 'none'")
            assert "server" not in answer.headers
