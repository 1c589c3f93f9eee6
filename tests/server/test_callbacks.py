"""Callbacks over HTTP: any system answers a run, and only who has the address can."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import BlockingContext, Context, Graph, Holdfast, days, signal
from holdfast.clock import ManualClock
from holdfast.engine.runs.signing import sign_token
from holdfast.errors import InvalidRequest, PublicUrlMissing, RunFailed, UnknownSignal
from holdfast.model.payload_limits import PayloadLimits
from holdfast.server import ServerOptions, asgi

PUBLIC = "https://pay.example.org/holdfast"
ADDRESSES: dict[str, list[str]] = {}
HELD: dict[str, asyncio.Event] = {}
MADE: dict[str, asyncio.Event] = {}


@dataclass
class Payment:
    cents: int


@dataclass
class Order:
    paid: Any = None
    late: bool = False


def note(ctx: Context | BlockingContext, address: str) -> None:
    ADDRESSES.setdefault(ctx.run_id, []).append(address)


plain = Graph("plain", Order)


@plain.node
async def pay(order: Order, ctx: Context) -> Order:
    note(ctx, await ctx.callback("payment"))
    if order.late:
        MADE[ctx.run_id].set()
        await HELD[ctx.run_id].wait()
    return replace(order, paid=await ctx.wait(signal("payment")))


typed = Graph("typed", Order, signals=[signal("payment", Payment)])


@typed.node
async def pay_typed(order: Order, ctx: Context) -> Order:
    note(ctx, await ctx.callback(signal("payment", Payment), expires=days(2)))
    return replace(order, paid=await ctx.wait(signal("payment", Payment)))


blocking = Graph("blocking", Order)


@blocking.node
def pay_blocking(order: Order, ctx: BlockingContext) -> Order:
    note(ctx, ctx.callback("payment"))
    return replace(order, paid=ctx.wait(signal("payment")))


undeclared = Graph("undeclared", Order, signals=[signal("other")])


@undeclared.node
async def pay_undeclared(order: Order, ctx: Context) -> Order:
    await ctx.callback("payment")
    return order


GRAPHS = [plain, typed, blocking, undeclared]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def hf(tmp_path: Path) -> AsyncIterator[Holdfast]:
    ADDRESSES.clear()
    HELD.clear()
    url, limits = f"sqlite:///{tmp_path}/runs.db", PayloadLimits(signal_bytes_max=100_000)
    async with Holdfast(url, public_url=PUBLIC + "/", limits=limits) as opened:
        yield opened


@pytest.fixture
async def http(hf: Holdfast) -> AsyncIterator[httpx.AsyncClient]:
    app = asgi(hf, GRAPHS, options=ServerOptions())
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.lifespan(),
        httpx.AsyncClient(transport=transport, base_url="http://server") as client,
    ):
        yield client


def path_of(address: str) -> str:
    assert address.startswith(f"{PUBLIC}/v1/callbacks/v1.")
    return address.removeprefix(PUBLIC)


async def waiting(hf: Holdfast, graph: Graph = plain, id: str = "o-1", **options: Any) -> str:
    """Start a run; return the path of its callback when the run waits."""
    run = await hf.start(graph, Order(), id=id, **options)
    await run.until("waiting")
    return path_of(ADDRESSES[id][-1])


async def test_a_post_answers_the_wait(hf: Holdfast, http: httpx.AsyncClient) -> None:
    path = await waiting(hf)
    response = await http.post(path, json={"cents": 5})
    assert (response.status_code, response.json()) == (202, {"repeated": False})
    assert (await hf.run("o-1", graph=plain).result()).paid == {"cents": 5}


async def test_a_repeat_changes_nothing(hf: Holdfast, http: httpx.AsyncClient) -> None:
    path = await waiting(hf)
    assert (await http.post(path, json={"cents": 5})).status_code == 202
    await hf.run("o-1", graph=plain).result()
    for body in ('{"cents": 5}', '{ "cents":5 }'):
        again = await http.post(path, content=body, headers={"Content-Type": "application/json"})
        assert (again.status_code, again.json()) == (200, {"repeated": True})
    other = await http.post(path, json={"cents": 6})
    assert (other.status_code, other.json()["code"]) == (410, "callback_expired")


@pytest.mark.parametrize("header", ["Idempotency-Key", "Webhook-Id"])
async def test_a_header_says_what_a_repeat_is(
    hf: Holdfast, http: httpx.AsyncClient, header: str
) -> None:
    path = await waiting(hf)
    first = await http.post(path, json={"cents": 5}, headers={header: "evt_1/#~%"})
    again = await http.post(path, json={"cents": 5}, headers={header: "evt_1/#~%"})
    changed = await http.post(path, json={"cents": 6}, headers={header: "evt_1/#~%"})
    assert [first.status_code, again.status_code, changed.status_code] == [202, 200, 409]


async def test_a_callback_may_come_before_the_pause(hf: Holdfast, http: httpx.AsyncClient) -> None:
    HELD["o-1"], MADE["o-1"] = asyncio.Event(), asyncio.Event()
    await hf.start(plain, Order(late=True), id="o-1")
    await MADE["o-1"].wait()
    response = await http.post(path_of(ADDRESSES["o-1"][0]), json={"cents": 5})
    assert response.status_code == 202
    HELD["o-1"].set()
    assert (await hf.run("o-1", graph=plain).result()).paid == {"cents": 5}


async def test_a_run_in_memory_is_stored_before_its_address_is_given_away(
    hf: Holdfast, http: httpx.AsyncClient
) -> None:
    HELD["o-1"], MADE["o-1"] = asyncio.Event(), asyncio.Event()
    starting = asyncio.create_task(
        hf.start(plain, Order(late=True), id="o-1", durability="on_pause")
    )
    await MADE["o-1"].wait()
    response = await http.post(path_of(ADDRESSES["o-1"][0]), json=1)
    HELD["o-1"].set()
    await starting
    assert response.status_code == 202
    assert (await hf.run("o-1", graph=plain).result()).paid == 1


async def test_two_posts_at_once_are_one_signal(hf: Holdfast, http: httpx.AsyncClient) -> None:
    path = await waiting(hf)
    both = await asyncio.gather(*(http.post(path, json={"cents": 5}) for _ in range(2)))
    assert sorted(response.status_code for response in both) == [200, 202]
    assert (await hf.run("o-1", graph=plain).result()).paid == {"cents": 5}


async def test_both_addresses_of_a_node_that_ran_twice_work(
    hf: Holdfast, http: httpx.AsyncClient
) -> None:
    await waiting(hf, id="o-1")
    await hf.run("o-1").signal("unrelated", None)
    first = path_of(ADDRESSES["o-1"][0])
    assert (await http.post(first, json=7)).status_code == 202
    assert (await hf.run("o-1", graph=plain).result()).paid == 7
    # The node ran again to take the answer, and made another address.
    assert len(set(ADDRESSES["o-1"])) == 2


async def test_a_plain_function_makes_one_too(hf: Holdfast, http: httpx.AsyncClient) -> None:
    path = await waiting(hf, blocking)
    assert (await http.post(path, json=7)).status_code == 202
    assert (await hf.run("o-1", graph=blocking).result()).paid == 7


# --- what is refused ------------------------------------------------------------------------------


async def test_a_forged_address_is_not_found(hf: Holdfast, http: httpx.AsyncClient) -> None:
    """Every byte of the token flipped: the answer is the same as for an unknown run."""
    path = await waiting(hf)
    token = path.removeprefix("/v1/callbacks/")
    seen = set()
    for place in range(len(token)):
        other = "A" if token[place] != "A" else "B"
        response = await http.post(f"/v1/callbacks/{token[:place]}{other}{token[place + 1 :]}")
        seen.add((response.status_code, response.text))
    expires = 1 << 42
    claims = ["default", "none", "generation", "payment", "nonce"]
    kernel = hf.callbacks._kernel
    unknown = await sign_token(kernel, "callback", claims, expires_ms=expires)
    purpose = await sign_token(kernel, "review", claims, expires_ms=expires)
    short = await sign_token(kernel, "callback", claims[:4], expires_ms=expires)
    for token in (unknown, purpose, short, "x", "v1.a.b"):
        response = await http.post(f"/v1/callbacks/{token}")
        seen.add((response.status_code, response.text))
    assert len(seen) == 1
    assert seen.pop()[0] == 404
    assert (await hf.run("o-1").get()).status == "waiting"


async def test_an_address_is_for_one_tenant_and_one_generation(
    hf: Holdfast, http: httpx.AsyncClient
) -> None:
    await waiting(hf, tenant="acme")
    row = await hf.run("o-1", tenant="acme").get()
    kernel = hf.callbacks._kernel
    for tenant, generation in (("default", row.generation), ("acme", "another")):
        claims = [tenant, "o-1", generation, "payment", "nonce"]
        token = await sign_token(kernel, "callback", claims, expires_ms=1 << 42)
        assert (await http.post(f"/v1/callbacks/{token}", json=1)).status_code == 404
    assert (await hf.run("o-1", tenant="acme").get()).status == "waiting"


async def test_a_token_of_another_store_is_refused(
    hf: Holdfast, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    await waiting(hf)
    row = await hf.run("o-1").get()
    async with Holdfast(f"sqlite:///{tmp_path}/other.db") as other:
        claims = ["default", "o-1", row.generation, "payment", "nonce"]
        token = await sign_token(other.callbacks._kernel, "callback", claims, expires_ms=1 << 42)
    assert (await http.post(f"/v1/callbacks/{token}", json=1)).status_code == 404


async def test_a_get_changes_nothing(hf: Holdfast, http: httpx.AsyncClient) -> None:
    path = await waiting(hf)
    for method in ("GET", "PUT", "DELETE", "PATCH"):
        response = await http.request(method, path)
        assert response.status_code == 405
        assert sorted(response.headers["allow"].split(", ")) == ["OPTIONS", "POST"]
    assert (await hf.run("o-1").get()).status == "waiting"


async def test_a_misfit_is_refused(hf: Holdfast, http: httpx.AsyncClient) -> None:
    path = await waiting(hf, typed)
    response = await http.post(path, json={"cents": "many"})
    assert (response.status_code, response.json()["code"]) == (422, "signal_misfit")
    assert (await http.post(path, json={"cents": 5})).status_code == 202
    assert (await hf.run("o-1", graph=typed).result()).paid == {"cents": 5}


async def test_bodies(hf: Holdfast, http: httpx.AsyncClient) -> None:
    form = await waiting(hf, id="form")
    assert (await http.post(form, data={"a": "1", "b": ["2", "3"], "c": ""})).status_code == 202
    paid = (await hf.run("form", graph=plain).result()).paid
    assert paid == {"a": "1", "b": ["2", "3"], "c": ""}
    empty = await waiting(hf, id="empty")
    assert (await http.post(empty)).status_code == 202
    assert (await hf.run("empty", graph=plain).result()).paid is None
    path = await waiting(hf, id="bad")
    for body, kind, status in (
        ("{", "application/json", 400),
        ("[" * 100_000, "application/json", 400),
        ("1e999", "application/json", 400),
        ("&".join(f"a{n}=1" for n in range(2000)), "application/x-www-form-urlencoded", 400),
        ("<paid/>", "application/xml", 415),
        ("hello", "text/plain", 415),
        (json.dumps("x" * 200_000), "application/json", 413),
        (json.dumps("x" * 5_000_000), "application/json", 413),
    ):
        response = await http.post(path, content=body, headers={"Content-Type": kind})
        assert response.status_code == status, (body[:20], response.text)
    assert (await hf.run("bad").get()).status == "waiting"


async def test_posts_to_one_address_are_throttled(hf: Holdfast, http: httpx.AsyncClient) -> None:
    path = await waiting(hf)
    answers = [await http.post(path, json={"cents": "x"}) for _ in range(40)]
    assert answers[-1].status_code == 429
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 10
    other = await waiting(hf, id="o-2")
    assert (await http.post(other, json=1)).status_code == 202


async def test_a_graph_must_declare_the_signal(hf: Holdfast, http: httpx.AsyncClient) -> None:
    run = await hf.start(undeclared, Order())
    with pytest.raises(RunFailed, match=UnknownSignal.__name__):
        await run.result()


async def test_without_a_public_address_the_node_fails(tmp_path: Path) -> None:
    async with Holdfast(f"sqlite:///{tmp_path}/runs.db") as hf, hf.worker([plain]):
        run = await hf.start(plain, Order())
        with pytest.raises(RunFailed, match=f"{PublicUrlMissing.__name__}.*HOLDFAST_PUBLIC_URL"):
            await run.result()


async def test_the_environment_has_the_public_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_PUBLIC_URL", "http://127.0.0.1:8080")
    async with Holdfast(f"sqlite:///{tmp_path}/runs.db") as hf:
        assert hf.callbacks.public_url == "http://127.0.0.1:8080"


@pytest.mark.parametrize(
    "url",
    [
        5,
        "",
        "example.org",
        "ftp://x",
        "https://u:p@x",
        "https://x?a=1",
        "https://x#a",
        "https://",
        "https://x:99999",
        "https://x/\n",
        "https://" + "x" * 2000,
    ],
)
async def test_a_public_address_is_checked(hf: Holdfast, url: Any) -> None:
    with pytest.raises(InvalidRequest, match="public_url must be an address"):
        hf.callbacks.set_public_url(url)


# --- time and keys --------------------------------------------------------------------------------


async def test_expiry_is_exact(tmp_path: Path, clock: ManualClock) -> None:
    async with Holdfast(f"sqlite:///{tmp_path}/runs.db", clock=clock) as hf:
        kernel = hf.callbacks._kernel
        claims = ["default", "none", "generation", "payment", "nonce"]
        token = await sign_token(kernel, "callback", claims, expires_ms=clock.now_ms() + 1_000)
        app = asgi(hf, [], worker=False)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
            clock.advance(0.999)
            assert (await http.post(f"/v1/callbacks/{token}")).status_code == 404
            clock.advance(0.001)
            assert (await http.post(f"/v1/callbacks/{token}")).status_code == 410


async def test_rotated_keys_verify_and_revoked_ones_do_not(
    hf: Holdfast, http: httpx.AsyncClient
) -> None:
    first = await waiting(hf, id="o-1")
    await hf.callbacks.rotate_keys()
    second = await waiting(hf, id="o-2")
    assert (await http.post(first, json=1)).status_code == 202
    third = await waiting(hf, id="o-3")
    await hf.callbacks.rotate_keys(revoke=True)
    assert (await http.post(second, json=1)).status_code == 404
    assert (await http.post(third, json=1)).status_code == 404
    assert (await http.post(await waiting(hf, id="o-4"), json=1)).status_code == 202


async def test_another_process_learns_of_a_new_key(tmp_path: Path, clock: ManualClock) -> None:
    """An unknown key id causes a read, but not one for every forged token."""
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Holdfast(url, clock=clock) as one, Holdfast(url, clock=clock) as two:
        claims = ["default", "none", "generation", "payment", "nonce"]
        expires = clock.now_ms() + 10**9
        kernel = one.callbacks._kernel
        old = await sign_token(kernel, "callback", claims, expires_ms=expires)
        app = asgi(two, [], worker=False)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
            # 404, because there is no such run: its code tells that the token was accepted.
            assert (await http.post(f"/v1/callbacks/{old}")).status_code == 404
            await one.callbacks.rotate_keys()
            clock.advance(2)
            row = await sign_token(kernel, "callback", claims, expires_ms=1)
            assert (await http.post(f"/v1/callbacks/{row}")).status_code == 410
            before = two.meter.report().by_purpose()["settings"].reads
            other = await sign_token(kernel, "callback", claims, expires_ms=1)
            await one.callbacks.rotate_keys()
            newest = await sign_token(kernel, "callback", claims, expires_ms=1)
            assert (await http.post(f"/v1/callbacks/{newest}")).status_code == 404
            assert (await http.post(f"/v1/callbacks/{other}")).status_code == 410
            assert two.meter.report().by_purpose()["settings"].reads == before
            clock.advance(1)
            assert (await http.post(f"/v1/callbacks/{newest}")).status_code == 410


async def test_the_body_of_a_forged_address_is_not_read(hf: Holdfast) -> None:
    """Anyone may post to the route."""
    read: list[str] = []

    async def body() -> AsyncIterator[bytes]:
        read.append("some")
        yield b"[" * 1_000_000

    transport = httpx.ASGITransport(asgi(hf, [], worker=False))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for token in ("abc", "a.b.c", "%00", "x" * 2000):
            answer = await client.post(f"/v1/callbacks/{token}", content=body())
            assert answer.status_code == 404
    assert read == []
