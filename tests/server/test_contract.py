"""The API keeps its own description: generated requests, on every route, with credentials.

Most requests are those of an admin of all tenants. Some have the key of an operator of one tenant,
and some a key that does not exist.
``HOLDFAST_API_EXAMPLES`` is the number of requests for each route.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openapi_spec_validator import validate
from schemathesis import Case, GenerationMode, checks

from holdfast import Context, Graph, signal
from holdfast.access.key_text import new_key_text
from holdfast.server import ServerOptions
from holdfast.server.openapi import api_description
from holdfast.server.routes import HANDLERS
from holdfast.server.routing import described_routes
from tests.server.callers import bearer, key_for
from tests.server.graphs import (
    GRAPHS,
    Order,
    Sale,
    broken,
    family,
    mapped,
    orders,
    paying,
    reviewed,
)
from tests.server.service_thread import ServiceThread, service_thread

EXAMPLES = int(os.environ.get("HOLDFAST_API_EXAMPLES", "30"))
# Those that end runs and reviews come last.
ENDING = (
    *("approve_review", "reject_review", "withdraw_review"),
    *("cancel_run", "start_bulk", "remove_webhook"),
)
ROUTES = sorted(
    (each for each in described_routes(HANDLERS) if each.tag != "streams"),
    key=lambda each: each.name in ENDING,
)
DOCUMENT = api_description(ROUTES)
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
]
# Bodies that can be carried out, which a generator seldom finds.
PLAUSIBLE: dict[str, list[Any]] = {
    "start_run": [
        {"graph": "orders", "input": {"item": "book"}},
        {"graph": "orders", "input": {"item": "book"}, "id": "twice"},
        {"graph": "orders", "input": {"item": "pen"}, "id": "twice"},
        {"graph": "broken", "input": {"item": "book"}, "budget": {"usd": 1}, "expires": "1h"},
        {"graph": "orders", "input": {"item": 5}},
    ],
    "send_signal": [
        {"name": "approved", "payload": True},
        {"name": "approved", "payload": "perhaps", "signal_id": "s"},
        {"name": "other"},
    ],
    "retry_run": [{}, {"keep_answers": True}, {"from_node": "break_down"}],
    "extend_run": [{"expires": "30d"}, {"expires": 1}, {"expires": "60d"}],
    "set_budget": [{"tokens": 5}, {"usd": 0.5, "wall": "1h"}],
    "resolve_call": [{"result": None}, {"error": "no"}, {"void": True}],
    "approve_review": [{}, {"values": {"months": 6, "note": "x"}}, {"seen": "0"}],
    "reject_review": [{"comment": "no"}, {"on_behalf_of": "ana"}, {"seen": "0"}],
    "withdraw_review": [{"comment": "late"}, {}],
    "claim_review": [{}, {"take_over": True}, {"on_behalf_of": "bob"}],
    "release_review": [{}, {"on_behalf_of": "bob"}],
    "reassign_review": [{"to": ["ana"], "force": True}, {"to": []}, {"to": "default-operator"}],
    "comment_review": [{"text": "hm"}, {"text": "hm", "force": True}],
    "edit_review": [{"values": {"months": 3, "note": ""}}, {"values": 5}],
    "link_review": [{}, {"reviewer": "ana"}, {"expires": "1h"}],
    "resume_run": [
        {"resume": [{"interruptId": "reviewed-0~0123456789abcdef", "status": "cancelled"}]},
        {"resume": [{"interruptId": "x~1", "status": "resolved", "payload": {"approved": True}}]},
    ],
    "create_key": [
        {"name": "ci", "role": "viewer"},
        {"name": "ci", "role": "admin", "expires_seconds": 60, "all_tenants": True},
    ],
    "add_webhook": [
        {"url": "https://127.0.0.1:9/hook"},
        {"url": "https://127.0.0.1:9/", "events": ["run.failed"], "graph": "orders"},
        {"url": "https://10.0.0.1/"},
        {"url": "http://127.0.0.1:9/"},
    ],
    "accept_callback": [{"cents": 5}, None, "paid", {"cents": 6}],
    "start_bulk": [
        {"action": "retry", "filter": {"status": "failed"}},
        {"action": "cancel", "filter": {"graph": "none"}, "dry_run": True},
        {"action": "cancel", "filter": {"status": "failed"}},
    ],
}
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = {
    each.ok().definition.raw["operationId"]: each.ok() for each in SCHEMA.get_all_operations()
}


called = Graph("called", Order)
ADDRESSES: list[str] = []


@called.node
async def await_call(order: Order, ctx: Context) -> Order:
    ADDRESSES.append(await ctx.callback("payment", expires=EXPIRES[ctx.run_id]))
    for _ in range(10_000):
        await ctx.wait(signal("payment"))
    return order


EXPIRES = {"called-0": "1d", "called-1": "1d", "called-2": "1ms"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceThread]:
    path = tmp_path_factory.mktemp("contract") / "runs.db"
    options = ServerOptions(
        authentication=True, key_rate=None, tenant_rate=None, webhook_allow=("127.0.0.1:9",)
    )
    with service_thread(f"sqlite:///{path}", [*GRAPHS, called, mapped], options) as opened:
        yield opened


@pytest.fixture(scope="module")
def secrets(service: ServiceThread) -> dict[str, str]:
    async def create() -> dict[str, str]:
        return {
            "admin": await key_for(service.hf, tenant="*"),
            "operator": await key_for(service.hf, "operator"),
            "forged": new_key_text(b"\1" * 32),
        }

    return service.do(create())


@pytest.fixture(scope="module")
def known(service: ServiceThread, secrets: dict[str, str]) -> dict[str, list[str]]:
    """Names of what exists, so that requests reach further than 404."""

    async def prepare() -> dict[str, list[str]]:
        hf = service.hf
        started = [
            await hf.start(graph, Order("book"), id=f"{graph.name}-{number}", session="talk")
            if number == 1
            else await hf.start(graph, Order("book"), id=f"{graph.name}-{number}")
            for graph in (orders, family, broken, paying)
            for number in range(4)
        ]
        for run in started:
            if run.id.startswith("orders-0"):
                await run.until("waiting")
                await run.signal("approved", True)
                await run.result(timeout=20)
            elif run.id.startswith("family-0"):
                await run.result(timeout=20)
            elif run.id.startswith("broken-0"):
                await run.until("failed", timeout=20)
            elif run.id.startswith("paying-") and run.id != "paying-1":
                await run.until("waiting", timeout=20)
        started.append(await hf.start(mapped, Order("book"), id="mapped-0"))
        await started[-1].result(timeout=20)
        for id in EXPIRES:
            await (await hf.start(called, Order("book"), id=id)).until("waiting", timeout=20)
        for number in range(60):
            await hf.start(reviewed, Sale("book", quorum=1 + number % 2), id=f"reviewed-{number}")
        for number in range(60):
            await hf.run(f"reviewed-{number}").until("waiting", timeout=20)
        calls = [call async for call in hf.ambiguous()]
        return {
            "review": [each.id for each in (await hf.reviews.list()).reviews],
            "reviewed": [f"reviewed-{number}" for number in range(60)],
            "id": [run.id for run in started],
            "name": [graph.name for graph in GRAPHS],
            "session": ["talk"],
            "call": [call.call for call in calls],
            "mapped": ["mapped-0"],
            "map": ["0.1"],
            "index": ["0", "1"],
            "paying": [call.run for call in calls],
            "token": [address.rpartition("/")[2] for address in ADDRESSES],
            "webhook": [(await hf.webhooks.add("https://127.0.0.1:9/")).webhook.id],
            "key": [
                (await hf.keys.create("old", tenant=tenant, role="viewer")).id
                for tenant in ("default", "default", "*", "other")
            ],
            "cursor": [entry.cursor for entry in (await started[0].history()).entries],
        }

    found = service.do(prepare())
    action = {"action": "retry", "filter": {"graph": "x"}}
    job = service.request("POST", "/v1/bulk", json=action, headers=bearer(secrets["admin"]))
    return {**found, "job": [job.json()["id"]]}


def test_the_description_is_valid_openapi() -> None:
    validate(DOCUMENT)
    print(f"{len(ROUTES)} routes, {EXAMPLES} requests to each")


def test_the_description_is_served(service: ServiceThread) -> None:
    assert (
        service.request("GET", "/v1/openapi.json").json()["paths"].keys()
        >= DOCUMENT["paths"].keys()
    )


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")
@pytest.mark.parametrize("name", [each.name for each in ROUTES])
def test_a_route_answers_as_it_is_described(
    name: str, service: ServiceThread, secrets: dict[str, str], known: dict[str, list[str]]
) -> None:
    operation = OPERATIONS[name]
    seen = Counter[int]()
    began = time.monotonic()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(
        case=st.one_of(
            operation.as_strategy(generation_mode=GenerationMode.POSITIVE),
            operation.as_strategy(generation_mode=GenerationMode.POSITIVE),
            operation.as_strategy(generation_mode=GenerationMode.NEGATIVE),
        )
        if operation.definition.raw["parameters"] or "requestBody" in operation.definition.raw
        else operation.as_strategy(generation_mode=GenerationMode.POSITIVE),
        picks=st.integers(min_value=0, max_value=2**16),
    )
    def ask(case: Case, picks: int) -> None:
        _make_known(case, known, picks)
        sent = case.as_transport_kwargs(base_url="http://localhost")
        sent.pop("cookies", None)
        caller = "forged" if picks % 19 == 18 else "operator" if picks % 7 == 6 else "admin"
        sent["headers"] = {**sent["headers"], **bearer(secrets[caller])}
        response = service.request(**_as_httpx(sent))
        seen[response.status_code] += 1
        case.validate_response(response, checks=CHECKS)

    ask()
    print(
        f"{name}: {sum(seen.values())} requests in {time.monotonic() - began:.1f} s: {dict(seen)}"
    )


def _make_known(case: Case, known: dict[str, list[str]], picks: int) -> None:
    """Put what exists and what can be carried out into most requests."""
    for name in case.path_parameters or {}:
        if picks % 4:
            kind = name
            if name == "id":
                kind = "job" if "/bulk/" in case.operation.path else kind
                kind = "paying" if "/calls/" in case.operation.path else kind
                kind = "mapped" if "/maps" in case.operation.path else kind
                kind = "webhook" if "/webhooks/" in case.operation.path else kind
                kind = "key" if "/keys/" in case.operation.path else kind
                kind = "review" if "/reviews/" in case.operation.path else kind
                kind = "reviewed" if "/interrupts" in case.operation.path else kind
            case.path_parameters[name] = known[kind][picks % len(known[kind])]
    for name in ("at", "cursor"):
        if picks % 3 and name in (case.query or {}) and "{id}" in case.operation.path:
            case.query[name] = known["cursor"][picks % len(known["cursor"])]
    plausible = PLAUSIBLE.get(case.operation.definition.raw["operationId"])
    if plausible is not None and picks % 3:
        case.body = plausible[picks % len(plausible)]
        if case.headers is not None and picks % 5:
            case.headers.pop("Idempotency-Key", None)


def _as_httpx(sent: dict[str, Any]) -> dict[str, Any]:
    if "data" in sent and not isinstance(sent["data"], dict):  # a form is one for both
        sent["content"] = sent.pop("data")
    return sent
