"""Requests and responses by the rules of HTTP: methods, bodies, tags, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from holdfast import Holdfast
from holdfast.server import ServerOptions, asgi
from holdfast.server.openapi import api_description
from holdfast.server.routes import HANDLERS
from holdfast.server.routing import described_routes
from tests.server.graphs import GRAPHS, Order, orders

JSON = {"Content-Type": "application/json"}
BODY_BYTES_MAX = 2_000


@pytest.fixture
async def idle(hf: Holdfast) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server without a worker, so that only requests use the store."""
    app = asgi(hf, GRAPHS, options=ServerOptions(body_bytes_max=BODY_BYTES_MAX), worker=False)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


MALFORMED: list[tuple[str, str, dict[str, Any], int]] = [
    ("GET", "/v1/runs?status=sleeping", {}, 400),
    ("GET", "/v1/runs?limit=0", {}, 400),
    ("GET", "/v1/runs?limit=1001", {}, 400),
    ("GET", "/v1/runs?limit=many", {}, 400),
    ("GET", "/v1/runs?limit=1&limit=2", {}, 400),
    ("GET", "/v1/runs?colour=red", {}, 400),
    ("GET", "/v1/runs?cost_usd_min=-1", {}, 400),
    ("GET", "/v1/runs?cost_usd_min=nan", {}, 400),
    ("GET", "/v1/runs?since=yesterday", {}, 422),
    ("GET", "/v1/runs?label=red", {}, 422),
    ("GET", "/v1/runs?cursor=x", {}, 422),
    ("GET", "/v1/runs?reason=boredom", {}, 400),
    ("GET", f"/v1/runs/{'x' * 129}", {}, 400),
    ("GET", "/v1/runs/a%23b", {}, 422),
    ("GET", "/v1/runs/a%00b", {}, 422),
    ("GET", "/v1/runs/a/history?cursor=x", {}, 422),
    ("GET", "/v1/runs/a/waits?cursor=x", {}, 422),
    ("GET", "/v1/runs/a/state?at=x", {}, 422),
    ("GET", "/v1/ambiguous?cursor=x", {}, 422),
    ("GET", "/v1/runs/a", {"headers": {"Holdfast-Tenant": "a#b"}}, 422),
    ("GET", "/v1/nothing", {}, 404),
    ("GET", "/v1/runs/a/b/c", {}, 404),
    ("DELETE", "/v1/runs", {}, 405),
    ("POST", "/v1/runs", {"content": b"{", "headers": JSON}, 400),
    ("POST", "/v1/runs", {"content": b"", "headers": JSON}, 400),
    ("POST", "/v1/runs", {"content": b"\xff\xfe", "headers": JSON}, 400),
    ("POST", "/v1/runs", {"content": b'{"graph": "\\ud800"}', "headers": JSON}, 400),
    ("POST", "/v1/runs", {"content": b"[" * 1_900, "headers": JSON}, 400),
    ("POST", "/v1/runs", {"json": []}, 400),
    ("POST", "/v1/runs", {"json": {}}, 400),
    ("POST", "/v1/runs", {"json": {"graph": 5}}, 400),
    ("POST", "/v1/runs", {"json": {"graph": "orders", "colour": 1}}, 400),
    ("POST", "/v1/runs", {"json": {"graph": "orders", "input": "x" * BODY_BYTES_MAX}}, 413),
    ("POST", "/v1/runs", {"content": b"{}"}, 415),
    ("POST", "/v1/runs", {"content": b"{}", "headers": {"Content-Type": "text/plain"}}, 415),
    ("POST", "/v1/runs", {"data": {"graph": "orders"}}, 415),
    ("POST", "/v1/runs/a/cancel", {"content": b"x=1", "headers": {"Content-Type": "a/b"}}, 415),
    ("POST", "/v1/runs/a/extend", {"json": {"expires": 0}}, 422),
    ("PUT", "/v1/runs/a/budget", {"json": {"tokens": -1}}, 400),
    ("PUT", "/v1/runs/a/budget", {"json": {"tokens": "5"}}, 400),
    ("POST", "/v1/runs/a/signals", {"json": {"name": "#"}}, 422),
    ("GET", "/v1/reviews?status=open", {}, 400),
    ("GET", "/v1/reviews?mine=perhaps", {}, 400),
    ("GET", "/v1/reviews?mine=true&assignee=ana", {}, 422),
    ("GET", "/v1/reviews?assignee=", {}, 400),
    ("GET", "/v1/reviews?limit=1001", {}, 400),
    ("GET", "/v1/reviews/a", {}, 404),
    ("GET", f"/v1/reviews/{'x' * 146}", {}, 400),
    ("POST", "/v1/reviews/a/approve", {"json": {"by": "ana"}}, 400),
    ("POST", "/v1/reviews/a/approve", {"json": {"comment": 5}}, 400),
    ("POST", "/v1/reviews/a/approve", {"json": {"on_behalf_of": ""}}, 400),
    ("POST", "/v1/reviews/a/approve", {"content": b"x=1", "headers": {"Content-Type": "a/b"}}, 415),
    ("POST", "/v1/reviews/a/reject", {"json": {"values": {}}}, 400),
    ("POST", "/v1/reviews/a/comment", {"json": {}}, 400),
    ("POST", "/v1/reviews/a/comment", {"json": {"text": ""}}, 400),
    ("POST", "/v1/reviews/a/edit", {"json": {}}, 400),
    ("POST", "/v1/reviews/a/reassign", {"json": {"to": 5}}, 400),
    ("POST", "/v1/reviews/a/reassign", {"json": {"to": ["ana"] * 51}}, 400),
    ("POST", "/v1/reviews/a/link", {"json": {"expires": True}}, 400),
    ("POST", "/v1/runs/a/interrupts", {"json": {"resume": []}}, 400),
    ("POST", "/v1/runs/a/interrupts", {"json": {"resume": [{"interruptId": "a~b"}]}}, 400),
    ("POST", "/v1/bulk", {"json": {"action": "delete"}}, 400),
    ("POST", "/v1/bulk", {"json": {"action": "cancel"}}, 422),
    ("POST", "/v1/bulk", {"json": {"action": "retry", "filter": {"status": "waiting"}}}, 422),
    ("POST", "/v1/bulk", {"json": {"action": "retry", "filter": {"status": []}}}, 400),
]


@pytest.mark.parametrize(("method", "url", "given", "status"), MALFORMED)
async def test_a_malformed_request_is_a_problem_and_costs_no_store_operation(
    hf: Holdfast,
    idle: httpx.AsyncClient,
    method: str,
    url: str,
    given: dict[str, Any],
    status: int,
) -> None:
    before = hf.meter.report().calls
    response = await idle.request(method, url, **given)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == status
    assert problem["code"]
    assert problem["detail"]
    assert hf.meter.report().calls == before


@pytest.mark.parametrize(
    ("method", "url", "body", "told"),
    [
        ("GET", "/v1/runs?status=x", None, "expected one of ready, running, waiting, closing,"),
        ("GET", "/v1/nothing", None, "no such path; the API is described at /v1/openapi.json"),
        ("POST", "/v1/runs", {"graph": "a", "x": 1}, "the fields are budget, expires, graph, id,"),
        (
            "POST",
            "/v1/bulk",
            {"action": "cancel", "filter": {"x": 1}},
            "unknown field `x` - at `$.filter`; the fields are cost_usd_max,",
        ),
        ("POST", "/v1/bulk", {"action": "x"}, "'x' - at `$.action`; expected one of "),
        (
            "POST",
            "/v1/bulk",
            {"action": "cancel", "filter": {"status": ["x"]}},
            "Invalid enum value 'x' - at `$.filter.status[0]`; expected one of ready, running,",
        ),
        (
            "DELETE",
            "/v1/runs",
            None,
            "this path has no method 'DELETE'; it has GET, HEAD, OPTIONS, POST",
        ),
    ],
)
async def test_a_problem_says_what_would_be_right(
    idle: httpx.AsyncClient, method: str, url: str, body: Any, told: str
) -> None:
    response = await idle.request(method, url, **({} if body is None else {"json": body}))
    assert told in response.json()["detail"]


async def test_a_wrong_method_names_the_right_ones(idle: httpx.AsyncClient) -> None:
    response = await idle.delete("/v1/runs")
    assert set(response.headers["allow"].split(", ")) >= {"GET", "POST", "HEAD", "OPTIONS"}
    options = await idle.options("/v1/runs")
    assert (options.status_code, options.content) == (204, b"")
    assert set(options.headers["allow"].split(", ")) >= {"GET", "POST", "HEAD", "OPTIONS"}


async def test_head_answers_as_get_does_without_the_body(
    hf: Holdfast, idle: httpx.AsyncClient
) -> None:
    await hf.start(orders, Order("book"), id="o")
    got, head = await idle.get("/v1/runs/o"), await idle.head("/v1/runs/o")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["etag"] == got.headers["etag"]
    assert head.headers["content-length"] == got.headers["content-length"]
    assert (await idle.head("/v1/runs/none")).status_code == 404


@pytest.mark.parametrize("path", ["/v1/runs/o/stream", "/v1/streams/runs"])
async def test_head_of_a_stream_answers_at_once(
    hf: Holdfast, idle: httpx.AsyncClient, path: str
) -> None:
    await hf.start(orders, Order("book"), id="o")
    async with asyncio.timeout(5):  # the stream itself never ends
        head = await idle.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"].startswith("text/event-stream")
    assert (await idle.head("/v1/runs/none/stream")).status_code == 404


@pytest.mark.parametrize("path", ["/v1/runs/o", "/v1/runs", "/v1/runs/o/history"])
async def test_a_client_that_has_the_answer_gets_304_until_it_changes(
    hf: Holdfast, idle: httpx.AsyncClient, path: str
) -> None:
    run = await hf.start(orders, Order("book"), id="o")
    first = await idle.get(path)
    tag = first.headers["etag"]
    for known in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        same = await idle.get(path, headers={"If-None-Match": known})
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
    assert (await idle.get(path, headers={"If-None-Match": '"x"'})).status_code == 200
    await run.cancel()
    changed = await idle.get(path, headers={"If-None-Match": tag})
    assert changed.status_code == 200
    assert changed.headers["etag"] != tag


async def test_the_state_changes_its_tag(hf: Holdfast, http: httpx.AsyncClient) -> None:
    run = await hf.start(orders, Order("book"), id="o")
    await run.until("waiting")
    tag = (await http.get("/v1/runs/o/state")).headers["etag"]
    assert (await http.get("/v1/runs/o/state", headers={"If-None-Match": tag})).status_code == 304
    await run.signal("approved", True)
    await run.result(timeout=20)
    assert (await http.get("/v1/runs/o/state", headers={"If-None-Match": tag})).status_code == 200


async def test_a_mounted_server_gives_addresses_with_its_prefix(hf: Holdfast) -> None:
    app = asgi(hf, GRAPHS, worker=False)
    transport = httpx.ASGITransport(app, root_path="/api")
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        started = await client.post(
            "/api/v1/runs", json={"graph": "orders", "input": {"item": "b"}}
        )
        assert started.json()["url"].startswith("/api/v1/runs/")
        assert (await client.get(started.json()["url"])).status_code == 200


def test_every_operation_is_described() -> None:
    document = api_description(described_routes(HANDLERS))
    operations = [
        operation for methods in document["paths"].values() for operation in methods.values()
    ]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    for operation in operations:
        assert operation["summary"]
        assert operation["tags"]
        assert all(parameter["description"] for parameter in operation["parameters"])
