"""What a server starts and ends: tasks beside requests, followers, the address of callbacks."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from holdfast import Holdfast
from holdfast.server import ServerOptions, asgi
from tests.network.receiver import receiving
from tests.server.graphs import GRAPHS, Order, called_back, orders
from tests.server.processes import Served, serving
from tests.server.stream_clients import Received, open_events, open_socket
from tests.server.test_metrics import samples


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


def others() -> set[str]:
    """Return the names of the tasks besides the test's own."""
    return {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}


async def ask(app: Any, path: str) -> httpx.Response:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        return await http.get(path)


@pytest.mark.parametrize("worker", [True, False])
async def test_nothing_runs_beside_requests_before_and_after_the_lifespan(
    hf: Holdfast, worker: bool
) -> None:
    unhandled: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    await hf.list()
    before = others()
    app = asgi(hf, GRAPHS, worker=worker)
    assert (await ask(app, "/v1/runs")).status_code == 200
    assert others() == before
    async with app.lifespan():
        assert "holdfast webhooks" in others()
        assert (await ask(app, "/readyz")).status_code == 200
    assert others() == before
    assert unhandled == []


async def test_a_probe_that_hangs_ends_with_the_lifespan(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def hang() -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(hf.fleet, "ping", hang)
    app = asgi(hf, GRAPHS, worker=False)
    async with app.lifespan():
        asking = asyncio.create_task(ask(app, "/readyz"))
        await asked.wait()
        asking.cancel()
        await asyncio.wait([asking])
    assert "holdfast readiness" not in others()


async def last_of(messages: AsyncIterator[Received]) -> Received:
    last = None
    async for message in messages:
        last = message
    assert last is not None
    return last


async def test_followers_are_told_where_to_resume_before_the_server_stops(url: str) -> None:
    async with serving(url) as server, Holdfast(url) as hf, AsyncExitStack() as stack:
        run = await hf.start(orders, Order("book"), id="o-1")
        await run.until("waiting", timeout=30)
        recorded = [entry.cursor async for entry in run.events(follow=False) if entry.cursor]
        port = urlsplit(server.address).port or 0
        streams = [
            await stack.enter_async_context(opens(port, "/v1/runs/o-1/stream"))
            for opens in (open_events, open_socket)
        ]
        for messages in streams:
            assert (await anext(messages)).kind == "snapshot"
        server.process.send_signal(signal.SIGTERM)
        ends = [await last_of(messages) for messages in streams]
        assert (await server.ended())[0] == 0
    for end in ends:
        assert (end.kind, end.data["reason"]) == ("end", "shutdown")
        assert end.data["resume"] == "~" or end.data["resume"].startswith(recorded[-1])


# --- callbacks and webhooks of a process ----------------------------------------------------------


async def address_of_callback(url: str, id: str) -> str:
    async with Holdfast(url) as hf:
        run = await hf.start(called_back, Order(""), id=id)
        await run.until("waiting", "failed", timeout=30)
        return (await run.state()).item


async def post_to_callback(server: Served, address: str, host: str) -> int:
    """Post as a proxy does, which keeps the name under which it was asked."""
    path = urlsplit(address).path
    async with httpx.AsyncClient(base_url=server.address) as http:
        return (await http.post(path, json=True, headers={"Host": host})).status_code


async def test_callbacks_begin_with_the_address_of_the_server(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_PUBLIC_URL", raising=False)
    async with serving(url) as server:
        address = await address_of_callback(url, "o-1")
        assert address.startswith(f"{server.address}/v1/callbacks/")
        assert await post_to_callback(server, address, urlsplit(address).netloc) == 202


async def test_callbacks_begin_with_the_public_address(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_PUBLIC_URL", "https://env.example")
    async with serving(url) as server:
        address = await address_of_callback(url, "o-1")
        assert address.startswith("https://env.example/v1/callbacks/")
    async with serving(url, "--public-url", "https://shop.example/flows/") as server:
        address = await address_of_callback(url, "o-2")
        assert address.startswith("https://shop.example/flows/v1/callbacks/")
        token = address.removeprefix("https://shop.example/flows")
        assert await post_to_callback(server, token, "shop.example") == 202
        async with httpx.AsyncClient(base_url=server.address) as http:
            refused = await http.get("/v1/runs", headers={"Host": "shop.example"})
        assert refused.status_code == 421


async def test_webhooks_reach_networks_that_are_allowed_and_are_counted(url: str) -> None:
    async with (
        receiving() as receiver,
        serving(url, "--webhook-allow", receiver.host) as server,
        httpx.AsyncClient(base_url=server.address, timeout=30) as http,
    ):
        added = await http.post("/v1/webhooks", json={"url": receiver.url})
        assert added.status_code == 201, added.text
        path = f"/v1/webhooks/{added.json()['webhook']['id']}/test"
        assert (await http.post(path)).json()["state"] == "delivered"
        receiver.answer = lambda _: 500
        assert (await http.post(path)).json()["state"] == "failed"
        page = (await http.get("/metrics")).text
    assert samples(page)["holdfast_webhook_deliveries_total"] == {
        (("outcome", "delivered"),): 1,
        (("outcome", "failed"),): 1,
    }


async def test_metrics_have_the_counts_of_the_real_fleet(hf: Holdfast) -> None:
    app = asgi(hf, GRAPHS, options=ServerOptions())
    async with app.lifespan():
        run = await hf.start(orders, Order("book"), id="o-1")
        await run.until("waiting")
        await app.services.metrics.refresh()
        found = samples((await ask(app, "/metrics")).text)
    runs = {dict(labels)["state"]: count for labels, count in found["holdfast_runs"].items()}
    assert runs == {
        **dict.fromkeys(("ready", "running", "failed", "quarantined", "stuck", "unserved"), 0),
        "waiting": 1,
    }
    assert found["holdfast_workers"] == {(("state", "alive"),): 1, (("state", "dead"),): 0}
