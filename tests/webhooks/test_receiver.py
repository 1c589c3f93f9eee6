"""Webhooks to a real receiver: signatures, and answers of every kind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from standardwebhooks import Webhook as Verifier
from standardwebhooks.webhooks import WebhookVerificationError

from holdfast import Context, Graph, Holdfast, signal
from holdfast.network.addresses import AllowList
from holdfast.server import ServerOptions, asgi
from holdfast.webhooks.messages import WebhookMessage
from holdfast.webhooks.sending import HttpSender
from tests.network.receiver import Receiver, receiving


@dataclass
class Order:
    paid: bool = False


orders = Graph("orders", Order)


@orders.node
async def pay(order: Order, ctx: Context) -> Order:
    return replace(order, paid=await ctx.wait(signal("paid")))


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as running:
        yield running


@pytest.fixture
async def hf(tmp_path: Path) -> AsyncIterator[Holdfast]:
    async with Holdfast(f"sqlite:///{tmp_path}/runs.db") as opened:
        yield opened


@pytest.fixture
async def http(hf: Holdfast, receiver: Receiver) -> AsyncIterator[httpx.AsyncClient]:
    app = asgi(hf, [orders], options=ServerOptions(webhook_allow=(receiver.host,)))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.lifespan(),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield client


async def test_a_receiver_gets_signed_messages_in_order(
    hf: Holdfast, http: httpx.AsyncClient, receiver: Receiver
) -> None:
    added = await http.post("/v1/webhooks", json={"url": receiver.url})
    assert added.status_code == 201
    secret = added.json()["secret"]
    run = await hf.start(orders, Order(), id="o-1")
    await receiver.wait_for(2)
    await run.signal("paid", True)
    requests = await receiver.wait_for(3)
    verifier = Verifier(secret)
    told = [verifier.verify(request.body, request.headers) for request in requests]
    assert [message["type"] for message in told] == ["run.started", "run.paused", "run.finished"]
    assert len({request.headers["webhook-id"] for request in requests}) == 3
    with pytest.raises(WebhookVerificationError):
        Verifier("whsec_" + "QUFB" * 10).verify(requests[0].body, requests[0].headers)
    with pytest.raises(WebhookVerificationError):
        verifier.verify(requests[0].body + b" ", requests[0].headers)
    listed = await http.get(f"/v1/webhooks/{added.json()['webhook']['id']}/deliveries")
    (delivery,) = listed.json()["deliveries"]
    assert (delivery["run"], delivery["event"], delivery["state"]) == (
        "o-1",
        "run.finished",
        "delivered",
    )


async def test_routes_of_webhooks(http: httpx.AsyncClient, receiver: Receiver) -> None:
    body = {"url": receiver.url, "events": ["run.failed"], "graph": "orders"}
    added = (await http.post("/v1/webhooks", json=body)).json()["webhook"]
    assert added["events"] == ["run.failed"]
    path = f"/v1/webhooks/{added['id']}"
    assert (await http.get("/v1/webhooks")).json() == {"webhooks": [added]}
    assert (await http.get(path)).json() == added
    tested = await http.post(f"{path}/test")
    assert (tested.status_code, tested.json()["state"]) == (200, "delivered")
    assert json.loads(receiver.requests[0].body)["type"] == "webhook.test"
    receiver.answer = lambda _: 500
    tested = await http.post(f"{path}/test")
    assert (tested.json()["state"], tested.json()["error"]) == ("failed", "status 500")
    other = {"Holdfast-Tenant": "acme"}
    for method, at in (("GET", path), ("DELETE", path), ("POST", f"{path}/test")):
        assert (await http.request(method, at, headers=other)).status_code == 404
    assert (await http.get(f"{path}/deliveries", headers=other)).status_code == 404
    assert (await http.delete(path)).status_code == 204
    assert (await http.get(path)).status_code == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"url": "http://127.0.0.1:1/"}, 422),
        ({"url": "https://169.254.169.254/latest"}, 422),
        ({"url": "https://[fd00:ec2::254]/"}, 422),
        ({"url": "ftp://x"}, 422),
        ({"url": "https://x.example", "graph": "a#b"}, 422),
        ({"url": "https://x.example", "secret": "short"}, 422),
        ({"url": "https://x.example", "events": []}, 422),
        ({"url": "https://x.example", "events": ["run.nothing"]}, 400),
        ({"url": 5}, 400),
        ({"url": "https://x.example", "more": 1}, 400),
        ({}, 400),
        ([], 400),
    ],
)
async def test_a_wrong_webhook_is_refused(
    http: httpx.AsyncClient, body: object, status: int
) -> None:
    response = await http.post("/v1/webhooks", json=body)
    assert (response.status_code, response.headers["content-type"]) == (
        status,
        "application/problem+json",
    )


async def test_a_slow_receiver_does_not_slow_the_run(
    hf: Holdfast, http: httpx.AsyncClient, receiver: Receiver
) -> None:
    receiver.hangs = True
    await hf.webhooks.add(receiver.url)
    run = await hf.start(orders, Order(), id="o-1")
    await receiver.wait_for(1)
    await run.signal("paid", True)
    async with asyncio.timeout(5):
        assert (await run.result()).paid
    receiver.hangs = False


# --- one attempt ----------------------------------------------------------------------------------


SECRET = "whsec_" + "QUFB" * 10
MESSAGE = WebhookMessage("msg_1", "run.finished", b'{"type":"run.finished"}')


async def attempt(hf: Holdfast, url: str, *allow: str) -> tuple[str, bool]:
    async with HttpSender(AllowList(allow)) as sender:
        return await sender.send(url, SECRET, MESSAGE, now_ms=1_700_000_000_000)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_only_2xx_is_success(hf: Holdfast, receiver: Receiver, status: int) -> None:
    receiver.answer = lambda _: status
    assert await attempt(hf, receiver.url, receiver.host) == ("", False)


@pytest.mark.parametrize("status", [301, 302, 307, 400, 404, 410, 429, 500])
async def test_other_answers_are_failures(hf: Holdfast, receiver: Receiver, status: int) -> None:
    receiver.answer = lambda _: status
    receiver.more_headers = "location: http://127.0.0.1:1/\r\n"
    outcome = await attempt(hf, receiver.url, receiver.host)
    assert outcome == (f"status {status}", status == 410)
    assert len(receiver.requests) == 1


async def test_a_large_answer_is_not_read_to_its_end(hf: Holdfast, receiver: Receiver) -> None:
    receiver.answer_body = b"x" * 50_000_000
    assert await attempt(hf, receiver.url, receiver.host) == ("", False)


async def test_a_hanging_receiver_times_out(
    hf: Holdfast, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.webhooks.sending._TIMEOUT_SECONDS", 0.1)
    receiver.hangs = True
    error, _ = await attempt(hf, receiver.url, receiver.host)
    assert error == "no answer within 0.1 s"


@pytest.mark.parametrize("url", ["https://169.254.169.254/", "http://127.0.0.1:1/", "https://0/"])
async def test_a_refused_target_is_an_outcome(hf: Holdfast, url: str) -> None:
    error, _ = await attempt(hf, url)
    assert "must be" in error or "not public" in error


async def test_a_closed_port_is_an_outcome(hf: Holdfast) -> None:
    error, _ = await attempt(hf, "http://127.0.0.1:1/", "127.0.0.1:1")
    assert error.startswith("ConnectError")


async def test_an_error_does_not_show_the_secret(hf: Holdfast) -> None:
    async with HttpSender(hf.webhooks.allow) as sender:
        outcome = await sender.send("https://0/", "whsec_???", MESSAGE, now_ms=0)
    assert outcome.error
    assert "???" not in outcome.error
