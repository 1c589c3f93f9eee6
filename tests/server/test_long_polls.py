"""Requests that wait for the end of a run."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from holdfast import Holdfast
from holdfast.errors import StoreUnavailable
from holdfast.handle import RunHandle
from holdfast.server import asgi
from holdfast.server.long_polls import preferred_seconds
from tests.server.graphs import GRAPHS

ORDER = {"graph": "orders", "input": {"item": "book"}, "id": "o-1"}


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        (None, 0),
        ("", 0),
        ("wait=10", 10),
        ("respond-async, wait=10", 10),
        ('Wait="7"', 7),
        ("wait=99999", 60),
        ("wait=-1", 0),
        ("wait=soon", 0),
        ("await=5", 0),
        ("wait=1.5", 0),
    ],
)
def test_the_preference_is_a_number_of_seconds(prefer: str | None, seconds: int) -> None:
    assert preferred_seconds(prefer) == seconds


async def test_a_start_waits_for_the_result(http: httpx.AsyncClient) -> None:
    starting = asyncio.create_task(http.post("/v1/runs", json=ORDER, headers={"Prefer": "wait=30"}))
    while (await http.get("/v1/runs/o-1")).status_code == 404:
        await asyncio.wait((starting,), timeout=0.01)
    sent = await http.post("/v1/runs/o-1/signals", json={"name": "approved", "payload": True})
    assert sent.status_code == 200
    response = await starting
    assert response.status_code == 201
    answer = response.json()
    assert answer["status"] == "finished"
    assert answer["result"] == {"item": "book", "cents": 100, "approved": True}
    again = await http.post("/v1/runs", json=ORDER, headers={"Prefer": "wait=1"})
    assert (again.status_code, again.json()["result"]) == (200, answer["result"])


async def test_a_wait_that_is_too_short_says_what_the_run_does(http: httpx.AsyncClient) -> None:
    started = await http.post("/v1/runs", json=ORDER, headers={"Prefer": "wait=1"})
    assert (started.status_code, started.json()["result"]) == (201, None)
    assert started.json()["status"] == "waiting"
    asked = await http.get("/v1/runs/o-1/result", headers={"Prefer": "wait=1"})
    assert (asked.status_code, asked.json()["status"]) == (202, "waiting")


async def test_a_run_that_ends_without_a_result_ends_the_wait(http: httpx.AsyncClient) -> None:
    starting = asyncio.create_task(http.post("/v1/runs", json=ORDER, headers={"Prefer": "wait=30"}))
    while (await http.get("/v1/runs/o-1")).status_code == 404:
        await asyncio.wait((starting,), timeout=0.01)
    assert (await http.post("/v1/runs/o-1/cancel")).status_code == 204
    started = await starting
    assert (started.status_code, started.json()["status"]) == (201, "cancelled")
    asked = await http.get("/v1/runs/o-1/result", headers={"Prefer": "wait=30"})
    assert (asked.status_code, asked.json()["code"]) == (409, "run_cancelled")


async def test_a_shutdown_ends_the_wait(hf: Holdfast) -> None:
    app = asgi(hf, GRAPHS)
    transport = httpx.ASGITransport(app)
    async with (
        app.lifespan(),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        starting = asyncio.create_task(
            client.post("/v1/runs", json=ORDER, headers={"Prefer": "wait=30"})
        )
        while (await client.get("/v1/runs/o-1")).status_code == 404:
            await asyncio.wait((starting,), timeout=0.01)
        app.services.readiness.shut_down()
        async with asyncio.timeout(10):
            assert (await starting).json()["result"] is None


async def test_a_wait_is_as_long_as_the_caller_prefers(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await http.post("/v1/runs", json=ORDER)
    waits: list[float] = []

    async def wait(run: RunHandle[Any], **given: float) -> None:
        waits.append(given["timeout"])
        raise TimeoutError

    monkeypatch.setattr(RunHandle, "result", wait)
    asked = await http.get("/v1/runs/o-1/result", headers={"Prefer": "wait=1"})
    assert (asked.status_code, waits) == (202, [1])


async def test_a_result_that_exists_is_answered_during_a_shutdown(hf: Holdfast) -> None:
    app = asgi(hf, GRAPHS)
    async with (
        app.lifespan(),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://localhost"
        ) as client,
    ):
        await client.post("/v1/runs", json=ORDER)
        await client.post("/v1/runs/o-1/signals", json={"name": "approved", "payload": True})
        await hf.run("o-1").result(timeout=10)
        app.services.readiness.shut_down()
        for headers in ({}, {"Prefer": "wait=30"}):
            asked = await client.get("/v1/runs/o-1/result", headers=headers)
            assert (asked.status_code, asked.json()["result"]["approved"]) == (200, True)


async def test_a_start_is_answered_also_if_the_store_fails_during_the_wait(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*given: Any, **named: Any) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(RunHandle, "result", fail)
    started = await http.post("/v1/runs", json=ORDER, headers={"Prefer": "wait=1"})
    assert (started.status_code, started.json()["id"], started.json()["status"]) == (
        201,
        "o-1",
        None,
    )
