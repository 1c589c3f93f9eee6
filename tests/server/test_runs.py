"""Runs over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from holdfast import Holdfast
from tests.server.graphs import Order, broken, family, orders, paying

BOOK = {"graph": "orders", "input": {"item": "book"}}


async def test_a_run_is_read_as_the_library_shows_it(hf: Holdfast, http: httpx.AsyncClient) -> None:
    run = await hf.start(orders, Order("book"), id="o-1")
    row = await run.until("waiting")
    response = await http.get("/v1/runs/o-1")
    assert response.status_code == 200
    assert response.json() == row.as_dict()
    assert response.headers["cache-control"] == "no-store"
    history = await http.get("/v1/runs/o-1/history")
    assert history.json() == (await run.history()).as_dict()
    waits = await http.get("/v1/runs/o-1/waits")
    assert waits.json() == (await run.waits()).as_dict()
    assert (await http.get("/v1/runs/o-1/spending")).json() == {"tokens": 0, "usd": 0.0}
    assert (await http.get("/v1/runs/o-1/set-aside")).json() == {"signals": [], "cursor": None}


async def test_an_unknown_run_is_a_problem(http: httpx.AsyncClient) -> None:
    response = await http.get("/v1/runs/none")
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["code"] == "run_not_found"


async def test_a_start_answers_at_once_with_the_runs_address(
    hf: Holdfast, http: httpx.AsyncClient
) -> None:
    response = await http.post("/v1/runs", json={**BOOK, "id": "a b", "labels": {"k": "v"}})
    assert response.status_code == 201
    started = {"id": "a b", "tenant": "default", "url": "/v1/runs/a%20b"}
    assert response.json() == {**started, "status": None, "result": None}
    assert response.headers["location"] == "/v1/runs/a%20b"
    assert (await http.get(response.headers["location"])).json()["labels"] == {"k": "v"}
    again = await http.post("/v1/runs", json={**BOOK, "id": "a b"})
    assert (again.status_code, again.json()) == (200, response.json())
    other = await http.post("/v1/runs", json={**BOOK, "input": {"item": "pen"}, "id": "a b"})
    assert (other.status_code, other.json()["code"]) == (409, "already_exists")


async def test_an_idempotency_key_starts_one_run_of_its_tenant_and_graph(
    http: httpx.AsyncClient,
) -> None:
    key = {"Idempotency-Key": "order/7?x=#~%"}
    first = await http.post("/v1/runs", json=BOOK, headers=key)
    assert first.status_code == 201
    second = await http.post("/v1/runs", json=BOOK, headers=key)
    assert (second.status_code, second.json()) == (200, first.json())
    changed = await http.post("/v1/runs", json={**BOOK, "input": {"item": "pen"}}, headers=key)
    assert changed.status_code == 409
    elsewhere = await http.post("/v1/runs", json={**BOOK, "graph": "priced"}, headers=key)
    assert elsewhere.status_code == 201
    other = await http.post("/v1/runs", json=BOOK, headers={**key, "Holdfast-Tenant": "t"})
    assert other.status_code == 201
    ids = {each.json()["id"] for each in (first, elsewhere, other)}
    assert len(ids) == 3
    both = await http.post("/v1/runs", json={**BOOK, "id": "a"}, headers=key)
    assert (both.status_code, both.json()["field"]) == (422, "id")


@pytest.mark.parametrize("key", ["", "x" * 256, "a b", "tab\t"])
async def test_a_key_that_is_none_is_refused(http: httpx.AsyncClient, key: str) -> None:
    response = await http.post("/v1/runs", json=BOOK, headers={"Idempotency-Key": key})
    assert response.status_code == 400


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"graph": "none"}, 404, "unknown_graph"),
        ({"input": {"item": 5}}, 422, "invalid_input"),
        ({"id": "a/b"}, 422, "invalid_name"),
        ({"on_busy": "queue"}, 422, "invalid_request"),
        ({"on_busy": "never"}, 400, "bad_request"),
        ({"durability": "on_pause"}, 400, "bad_request"),
        ({"budget": {}}, 422, "invalid_request"),
        ({"expires": "soon"}, 422, "invalid_request"),
        ({"expires": True}, 400, "bad_request"),
        ({"start_at": "2026-01-01T00:00:00"}, 422, "invalid_request"),
        ({"labels": {"a": 1}}, 400, "bad_request"),
    ],
)
async def test_a_start_that_is_wrong_says_what(
    http: httpx.AsyncClient, change: dict[str, Any], status: int, code: str
) -> None:
    response = await http.post("/v1/runs", json={**BOOK, **change})
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    assert response.json()["detail"]


async def test_a_session_that_is_busy_refuses_a_start_and_shows_its_queue(
    http: httpx.AsyncClient,
) -> None:
    body = {**BOOK, "session": "talk", "user": "u"}
    for id in ("a", "b", "c"):
        assert (await http.post("/v1/runs", json={**body, "id": id})).status_code == 201
    refused = await http.post("/v1/runs", json={**body, "on_busy": "reject"})
    assert (refused.status_code, refused.json()["code"]) == (409, "session_busy")
    first = (await http.get("/v1/sessions/talk/queue?user=u&limit=2")).json()
    assert [run["id"] for run in first["runs"]] == ["a", "b"]
    query = {"user": "u", "cursor": first["cursor"]}
    second = (await http.get("/v1/sessions/talk/queue", params=query)).json()
    assert ([run["id"] for run in second["runs"]], second["cursor"]) == (["c"], None)


async def test_a_promoted_start_answers_with_the_run_that_took_it(
    hf: Holdfast, http: httpx.AsyncClient
) -> None:
    body = {**BOOK, "graph": "chat", "session": "talk"}
    await http.post("/v1/runs", json={**body, "id": "first"})
    await hf.run("first").until("waiting")
    taken = await http.post("/v1/runs", json={**body, "id": "second", "on_busy": "promote"})
    assert (taken.status_code, taken.json()["id"]) == (200, "first")
    await hf.run("first").result(timeout=20)
    result = await http.get("/v1/runs/second/result")
    assert (result.status_code, result.json()["result"]["item"]) == (200, "book")


async def test_the_result_never_waits(hf: Holdfast, http: httpx.AsyncClient) -> None:
    run = await hf.start(orders, Order("book"), id="o")
    await run.until("waiting")
    early = await http.get("/v1/runs/o/result")
    assert (early.status_code, early.json()["status"]) == (202, "waiting")
    sent = await http.post("/v1/runs/o/signals", json={"name": "approved", "payload": True})
    assert (sent.status_code, sent.json()["answers_wait"]) == (200, True)
    await run.result(timeout=20)
    late = await http.get("/v1/runs/o/result")
    assert late.status_code == 200
    assert late.json() == {"result": {"item": "book", "cents": 100, "approved": True}}
    failed = await hf.start(broken, Order("book"), id="f")
    await failed.until("failed", timeout=20)
    none = await http.get("/v1/runs/f/result")
    assert (none.status_code, none.json()["code"]) == (409, "run_failed")


async def test_the_state_is_read_at_any_entry_of_the_history(
    hf: Holdfast, http: httpx.AsyncClient
) -> None:
    run = await hf.start(orders, Order("book"), id="o")
    await run.until("waiting")
    state = (await http.get("/v1/runs/o/state")).json()["state"]
    assert state["cents"] == 100
    entries = (await run.history()).entries
    before = await http.get("/v1/runs/o/state", params={"at": entries[0].cursor})
    assert before.json()["state"]["cents"] in (0, 100)
    assert (await http.get("/v1/runs/o/state?at=nonsense")).status_code == 422
    assert (await http.get("/v1/runs/o/input")).json()["input"]["item"] == "book"


async def test_children_are_listed_page_by_page(hf: Holdfast, http: httpx.AsyncClient) -> None:
    run = await hf.start(family, Order("book"), id="parent")
    await run.result(timeout=20)
    page = (await http.get("/v1/runs/parent/children?limit=1")).json()
    assert ([child["id"] for child in page["runs"]], page["cursor"]) == (["parent-child"], None)


async def test_signals_count_once_by_their_key(hf: Holdfast, http: httpx.AsyncClient) -> None:
    run = await hf.start(orders, Order("book"), id="o")
    await run.until("waiting")
    url, body, key = "/v1/runs/o/signals", {"name": "approved", "payload": True}, "k/1"
    first = await http.post(url, json=body, headers={"Idempotency-Key": key})
    second = await http.post(url, json=body, headers={"Idempotency-Key": key})
    assert (first.json()["repeated"], second.json()["repeated"]) == (False, True)
    both = {**body, "signal_id": "s"}
    assert (await http.post(url, json=both, headers={"Idempotency-Key": key})).status_code == 422
    other = await http.post(url, json={**body, "payload": False}, headers={"Idempotency-Key": key})
    assert other.status_code == 409
    misfit = await http.post(url, json={"name": "approved", "payload": "perhaps"})
    assert (misfit.status_code, misfit.json()["code"]) in [
        (422, "signal_misfit"),
        (409, "run_ended"),
    ]


async def test_operators_act_on_a_run(hf: Holdfast, http: httpx.AsyncClient) -> None:
    run = await hf.start(orders, Order("book"), id="o")
    await run.until("waiting")
    assert (await http.post("/v1/runs/o/extend", json={"expires": "30d"})).status_code == 204
    sooner = await http.post("/v1/runs/o/extend", json={"expires": "1d"})
    assert (sooner.status_code, sooner.json()["code"]) == (409, "expiry_not_later")
    assert (await http.put("/v1/runs/o/budget", json={"usd": 0.5})).status_code == 204
    assert (await http.get("/v1/runs/o")).json()["budget"]["usd"] == 0.5
    refused = await http.post("/v1/runs/o/retry")
    assert (refused.status_code, refused.json()["code"]) == (409, "not_retryable")
    assert (await http.post("/v1/runs/o/cancel", json={"reason": "enough"})).status_code == 204
    assert (await http.post("/v1/runs/o/cancel")).status_code == 204
    row = (await http.get("/v1/runs/o")).json()
    assert (row["status"], row["failure"]["message"]) == ("cancelled", "enough")
    failed = await hf.start(broken, Order("book"), id="f")
    await failed.until("failed", timeout=20)
    assert (await http.post("/v1/runs/f/retry", json={})).status_code == 204


async def test_ambiguous_calls_are_listed_and_resolved(
    hf: Holdfast, http: httpx.AsyncClient
) -> None:
    for id in ("a", "b", "c"):
        await (await hf.start(paying, Order("book"), id=id)).until("waiting", timeout=20)
    first = (await http.get("/v1/ambiguous?limit=2")).json()
    rest = (await http.get("/v1/ambiguous", params={"cursor": first["cursor"]})).json()
    calls = {call["run"]: call["call"] for call in first["calls"] + rest["calls"]}
    assert (len(first["calls"]), len(rest["calls"]), rest["cursor"]) == (2, 1, None)
    assert calls.keys() == {"a", "b", "c"}
    assert (await http.get("/v1/ambiguous?cursor=x")).status_code == 422
    url = f"/v1/runs/a/calls/{calls['a']}/resolve"
    none = await http.post(url, json={})
    assert none.status_code == 422
    assert (await http.post(url, json={"result": "paid"})).status_code == 204
    assert (await hf.run("a").result(timeout=20))["item"] == "paid"
    unknown = await http.post("/v1/runs/b/calls/none/resolve", json={"void": True})
    assert (unknown.status_code, unknown.json()["code"]) == (409, "not_ambiguous")


async def test_runs_are_listed_by_every_condition(hf: Holdfast, http: httpx.AsyncClient) -> None:
    run = await hf.start(orders, Order("book"), id="o", labels={"team": "a", "kind": "b"})
    row = await run.until("waiting")
    failed = await hf.start(broken, Order("book"), id="f")
    await failed.until("failed", timeout=20)

    async def ids(**query: Any) -> list[str]:
        response = await http.get("/v1/runs", params=query)
        assert response.status_code == 200, response.text
        return [entry["id"] for entry in response.json()["runs"]]

    assert sorted(await ids()) == ["f", "o"]
    assert await ids(status="failed") == ["f"]
    assert sorted(await ids(status=["failed", "waiting"])) == ["f", "o"]
    assert await ids(graph="orders") == ["o"]
    assert await ids(label=["team=a", "kind=b"]) == ["o"]
    assert await ids(label=["team=b"]) == []
    assert await ids(reason="signal", node="approve") == ["o"]
    assert await ids(since="2100-01-01T00:00:00Z") == []
    assert await ids(until="2001-01-01T00:00:00Z") == []
    written = row.updated_at.isoformat()
    assert await ids(updated_since=written, graph="orders") == ["o"]
    assert await ids(updated_until=written, graph="orders") == []
    assert await ids(cost_usd_min=0.01) == []
    assert sorted(await ids(cost_usd_max=0)) == ["f", "o"]
    page = (await http.get("/v1/runs?limit=1")).json()
    following = await ids(cursor=page["cursor"])
    assert [page["runs"][0]["id"], *following] == ["f", "o"]


async def test_quotas_graphs_and_drawings_are_shown(http: httpx.AsyncClient) -> None:
    assert (await http.get("/v1/quotas")).json() == {"quotas": [], "cursor": None}
    page = (await http.get("/v1/graphs?limit=1")).json()
    assert [graph["name"] for graph in page["graphs"]] == ["broken"]
    graph = (await http.get("/v1/graphs/chat")).json()
    assert graph["signals"]["more"]["properties"]["item"] == {"type": "string"}
    assert (graph["version"], graph["versions"], graph["takes_other_signals"]) == (1, [1], False)
    assert graph["input_schema"]["properties"]["item"] == {"type": "string"}
    drawing = await http.get("/v1/graphs/orders/drawing")
    assert drawing.text.startswith("flowchart")
    assert drawing.headers["content-type"].startswith("text/vnd.mermaid")
    assert (await http.get("/v1/graphs/none")).json()["code"] == "unknown_graph"
