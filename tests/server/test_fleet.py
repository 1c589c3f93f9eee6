"""Workers, runs without progress, cost, health and readiness over HTTP."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import Holdfast
from holdfast.clock import ManualClock
from holdfast.errors import Throttled
from holdfast.server import asgi
from holdfast.server.asgi import ServerApp
from tests.server.callers import bearer, key_for, serving
from tests.server.graphs import GRAPHS, Order, orders


@pytest.fixture
async def late(tmp_path: Path) -> AsyncIterator[Holdfast]:
    """A store without a worker, with one run that is due for a minute."""
    clock = ManualClock(4_000_000_000_000)
    async with Holdfast(f"sqlite:///{tmp_path}/late.db", clock=clock) as opened:
        await opened.start(orders, Order("book"), id="o-1")
        clock.advance(60)
        yield opened


def client_of(app: ServerApp) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


async def test_workers_are_listed(hf: Holdfast, http: httpx.AsyncClient) -> None:
    response = await http.get("/v1/workers")
    assert response.status_code == 200
    (found,) = response.json()["workers"]
    served = {graph.name: [graph.version] for graph in GRAPHS}
    assert (found["alive"], found["graphs"], found["pools"]) == (True, served, [None])
    assert found["lease_until_at"].endswith("Z")


async def test_only_callers_of_every_tenant_see_where_workers_run(hf: Holdfast) -> None:
    seen: list[tuple[str, int | None]] = []
    async with hf.worker(GRAPHS), serving(hf) as (http, _):
        for tenant in ("*", "mine"):
            key = bearer(await key_for(hf, "admin", tenant=tenant))
            (found,) = (await http.get("/v1/workers", headers=key)).json()["workers"]
            seen.append((found["host"], found["pid"]))
    assert seen == [(socket.gethostname(), os.getpid()), ("", None)]


async def test_a_server_without_a_worker_publishes_its_graphs(hf: Holdfast) -> None:
    app = asgi(hf, GRAPHS, worker=False)
    async with asyncio.timeout(30), app.lifespan():
        while len(found := await hf.fleet.graphs()) < len(GRAPHS):
            pass
    published = {(graph.name, graph.version, graph.pools) for graph in found}
    assert published == {(graph.name, graph.version, ()) for graph in GRAPHS}
    assert await hf.fleet.workers() == []


async def test_unserved_and_stuck_runs_are_listed(late: Holdfast) -> None:
    async with client_of(asgi(late, GRAPHS, worker=False)) as http:
        for query in ("", "?all_tenants=true"):
            response = await http.get(f"/v1/fleet/unserved{query}")
            assert response.status_code == 200
            (found,) = response.json()["runs"]
            assert (found["id"], found["reason"]) == ("o-1", "no_worker")
        assert (await http.get("/v1/fleet/unserved?grace_seconds=61")).json()["runs"] == []
        other = await http.get("/v1/fleet/unserved", headers={"holdfast-tenant": "other"})
        assert other.json() == {"runs": [], "cursor": None}
        assert (await http.get("/v1/fleet/stuck")).json() == {"runs": [], "cursor": None}


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("/v1/fleet/stuck?limit=0", 400),
        ("/v1/fleet/stuck?limit=x", 400),
        ("/v1/fleet/stuck?all_tenants=true&cursor=x", 422),
        ("/v1/fleet/unserved?grace_seconds=nan", 400),
        ("/v1/cost?by=node", 422),
        ("/v1/cost?since=yesterday", 422),
        ("/v1/cost?status=lost", 400),
    ],
)
async def test_wrong_arguments_are_problems(
    http: httpx.AsyncClient, query: str, status: int
) -> None:
    response = await http.get(query)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"


async def test_an_overview_and_the_cost_are_read_as_the_library_shows_them(
    late: Holdfast,
) -> None:
    await late.fleet.publish(GRAPHS)
    async with client_of(asgi(late, GRAPHS, worker=False)) as http:
        overview = (await http.get("/v1/fleet/overview")).json()
        assert (overview["ready"]["runs"], overview["unserved"]["runs"]) == (1, 1)
        cost = (await http.get("/v1/cost?by=graph&status=ready&status=running")).json()
    assert [(group["key"], group["runs"]) for group in cost["groups"]] == [("orders", 1)]
    assert "head" in {each["purpose"] for each in cost["store"]}


async def test_a_caller_of_one_tenant_sees_nothing_of_the_others(late: Holdfast) -> None:
    mine = bearer(await key_for(late, "operator", tenant="mine"))
    admin = bearer(await key_for(late, "admin", tenant="mine"))
    async with serving(late) as (http, _):
        http.headers.update(mine)
        assert (await http.get("/v1/fleet/unserved")).json()["runs"] == []
        cost = (await http.get("/v1/cost")).json()
        assert (cost["groups"], cost["store"]) == ([], [])
        for refused in (
            "/v1/workers",
            "/v1/fleet/overview",
            "/v1/fleet/stuck?all_tenants=true",
            "/v1/fleet/unserved?all_tenants=true",
        ):
            assert (await http.get(refused)).status_code == 403
        assert (await http.get("/v1/workers", headers=admin)).json() == {"workers": []}


# --- health and readiness -------------------------------------------------------------------------


async def test_a_server_with_a_worker_is_healthy_and_ready(http: httpx.AsyncClient) -> None:
    for path in ("/healthz", "/readyz"):
        response = await http.get(path)
        assert (response.status_code, response.json()) == (200, {"status": "ok"})


async def test_a_server_that_shuts_down_is_healthy_but_not_ready(hf: Holdfast) -> None:
    app = asgi(hf, GRAPHS, worker=False)
    app.services.readiness.shut_down()
    async with client_of(app) as http:
        assert (await http.get("/healthz")).status_code == 200
        response = await http.get("/readyz")
    assert response.status_code == 503
    assert response.headers["content-type"] == "application/problem+json"
    assert (response.json()["code"], response.json()["detail"]) == (
        "not_ready",
        "the server shuts down",
    )


async def test_a_store_that_does_not_answer_is_asked_once_and_named_without_its_address(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    answers = asyncio.Event()

    async def fail() -> None:
        nonlocal asked
        asked += 1
        await answers.wait()
        raise Throttled("secret://user:password@host")

    monkeypatch.setattr(hf.fleet, "ping", fail)
    async with client_of(asgi(hf, GRAPHS, worker=False)) as http:
        requests = [asyncio.create_task(http.get("/readyz")) for _ in range(10)]
        while not asked:
            await asyncio.wait(requests, timeout=0.01)
        answers.set()
        responses = await asyncio.gather(*requests)
        responses.append(await http.get("/readyz"))
    assert asked == 1
    for response in responses:
        assert response.status_code == 503
        assert response.json()["detail"] == "the store cannot be used (throttled)"
        assert response.headers["retry-after"] == "1"


async def test_a_store_that_hangs_is_not_waited_for(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(hf.fleet, "ping", hang)
    monkeypatch.setattr("holdfast.server.readiness._PROBE_SECONDS_MAX", 0.01)
    async with client_of(asgi(hf, GRAPHS, worker=False)) as http:
        response = await http.get("/readyz")
    assert response.status_code == 503
    assert response.json()["detail"] == "the store did not answer within 0.01 seconds"


async def test_a_store_that_answers_again_is_ready_after_a_second(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    works: list[bool] = []

    async def ping() -> None:
        works.append(bool(works))
        if not works[-1]:
            raise Throttled("busy")

    monkeypatch.setattr(hf.fleet, "ping", ping)
    app = asgi(hf, GRAPHS, worker=False)
    async with client_of(app) as http:
        assert (await http.get("/readyz")).status_code == 503
        app.services.readiness._probed_at -= 1
        assert (await http.get("/readyz")).status_code == 200


async def test_a_worker_that_cannot_work_makes_the_server_unready(hf: Holdfast) -> None:
    app = asgi(hf, GRAPHS)
    async with app.lifespan(), client_of(app) as http:
        worker: Any = app.services.readiness._worker
        worker._owner.on_store_outage(Throttled("full"))
        response = await http.get("/readyz")
        assert response.status_code == 503
        assert response.json()["detail"] == "the worker cannot drive runs (throttled)"
