"""The metrics of a server: what is in them, who may read them, and what they cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast import Context, Graph, Holdfast, ModelPrice
from holdfast.clock import ManualClock
from holdfast.errors import StoreUnavailable, Throttled
from holdfast.integrations.offline import Offline
from holdfast.server import ServerOptions, asgi
from holdfast.server.metrics import LABEL_VALUES_MAX, REFRESH_SECONDS, ServerMetrics
from tests.engine.support import StepClock
from tests.server.graphs import APPROVED, GRAPHS, Order, orders

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "observability.md"


@dataclass
class Counted:
    runs: int = 0


@dataclass
class Overview:
    """What `Fleet.overview` returns, as far as metrics use it."""

    stuck: Counted = field(default_factory=Counted)
    ready: Counted = field(default_factory=Counted)
    running: Counted = field(default_factory=Counted)
    waiting: Counted = field(default_factory=Counted)
    failed: Counted = field(default_factory=Counted)
    quarantined: Counted = field(default_factory=Counted)
    unserved: Counted = field(default_factory=Counted)
    workers_alive: int = 1
    workers_dead: int = 0


def samples(page: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Return the samples of a page by name and labels."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


@asynccontextmanager
async def client_of(hf: Holdfast, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    app = asgi(hf, GRAPHS, options=ServerOptions(**options))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.lifespan(),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield client


async def test_what_runs_and_the_store_did_is_counted(
    hf: Holdfast, http: httpx.AsyncClient
) -> None:
    run = await hf.start(orders, Order("book"), id="o-1")
    await run.until("waiting")
    await run.signal(APPROVED, True)
    await run.result()
    found = samples((await http.get("/metrics")).text)
    assert found["holdfast_runs_ended_total"][(("graph", "orders"), ("status", "finished"))] == 1
    writes = found["holdfast_store_operation_seconds_count"][(("operation", "write"),)]
    assert writes > 3
    assert found["holdfast_store_operation_p99_seconds"][(("operation", "write"),)] > 0
    units = found["holdfast_store_units_total"]
    assert units[(("kind", "write"), ("purpose", "journal"))] > 0
    assert found["holdfast_store_cost_usd_total"][(("purpose", "journal"),)] > 0
    assert found["holdfast_worker_slots"][()] == 100
    assert found["holdfast_workers_healthy"][()] == 1


async def test_requests_are_counted_by_template_and_never_by_path(http: httpx.AsyncClient) -> None:
    await http.get("/v1/runs/secret-id?key=secret")
    await http.get("/secret")
    await http.request("BREW", "/v1/runs")
    page = (await http.get("/metrics")).text
    counts = samples(page)["holdfast_http_request_seconds_count"]
    labels = {"method": "GET", "route": "/v1/runs/{id}", "status": "400"}
    assert counts[tuple(sorted(labels.items()))] == 1
    assert "secret" not in page
    assert {dict(key)["method"] for key in counts} == {"GET", "other"}


async def test_models_quotas_and_savings_are_counted(tmp_path: Path) -> None:
    graph = Graph("ask", Order, models=["small"])

    @graph.node
    async def ask(order: Order, ctx: Context) -> Order:
        await ctx.model("small", "?")
        return order

    small = Offline(["yes"], price=ModelPrice(input_usd=1.0, output_usd=5.0))
    async with Holdfast(f"sqlite:///{tmp_path}/a.db", models={"small": small}) as hf:
        metrics = ServerMetrics(hf)
        async with hf.worker([graph]) as worker, hf.worker([graph], pools=["b"]) as other:
            metrics.watch(worker)
            metrics.watch(other)
            await (await hf.start(graph, Order("x"))).result()
            found = samples(metrics.page().decode())
    (model,) = worker.figures.models.by_model
    assert found["holdfast_model_answers_total"][(("model", model),)] == 1
    assert found["holdfast_model_cost_usd_total"][(("model", model),)] > 0
    assert found["holdfast_model_tokens_total"][(("direction", "output"), ("model", model))] > 0


async def test_a_claim_counts_how_overdue_the_run_was(tmp_path: Path) -> None:
    async with Holdfast(f"sqlite:///{tmp_path}/a.db") as hf:
        await hf.start(orders, Order("book"), id="o-1")
        async with hf.worker(GRAPHS) as worker:
            await hf.run("o-1").until("waiting")
        lag = worker.figures.claim_lag.histogram
    assert lag.count == 1
    assert 0 < lag.seconds < 60


async def test_throttles_are_retries_and_errors(hf: Holdfast) -> None:
    metrics = ServerMetrics(hf)
    hf.meter.record_retry(Throttled.code)
    hf.meter.record_failure("get", Throttled.code)
    hf.meter.record_failure("write", "condition_failed")
    assert samples(metrics.page().decode())["holdfast_store_throttles_total"][()] == 2


# --- the counts of the store ---------------------------------------------------------------------


async def test_a_scrape_never_reads_the_store(hf: Holdfast) -> None:
    began = asyncio.Event()

    async def never() -> Overview:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError

    metrics = ServerMetrics(hf, overview=never)
    async with metrics.refreshing():
        await began.wait()
        before = hf.meter.report().calls
        assert samples(metrics.page().decode()).get("holdfast_runs", {}) == {}
        assert hf.meter.report().calls == before


async def test_the_counts_are_refreshed_in_the_background_with_their_age(hf: Holdfast) -> None:
    clock, reads = StepClock(), [Overview(stuck=Counted(3)), Overview(stuck=Counted(4))]

    async def overview() -> Overview:
        return reads.pop(0)

    metrics = ServerMetrics(hf, overview=overview, clock=clock)
    async with metrics.refreshing():
        await clock.asleep(1)
        clock.advance(REFRESH_SECONDS - 1)
        found = samples(metrics.page().decode())
        assert found["holdfast_runs"][(("state", "stuck"),)] == 3
        assert found["holdfast_workers"][(("state", "alive"),)] == 1
        assert found["holdfast_fleet_age_seconds"][()] == REFRESH_SECONDS - 1
        clock.advance(1)
        await clock.asleep(1)
        found = samples(metrics.page().decode())
        assert found["holdfast_runs"][(("state", "stuck"),)] == 4


async def test_an_outage_keeps_the_old_counts_and_shows_their_age(hf: Holdfast) -> None:
    clock, replies = ManualClock(), [Overview(stuck=Counted(3)), StoreUnavailable("away")]

    async def overview() -> Overview:
        reply = replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    metrics = ServerMetrics(hf, overview=overview, clock=clock)
    await metrics.refresh()
    clock.advance(100)
    await metrics.refresh()
    found = samples(metrics.page().decode())
    assert found["holdfast_runs"][(("state", "stuck"),)] == 3
    assert found["holdfast_fleet_age_seconds"][()] == 100


# --- bounds --------------------------------------------------------------------------------------


async def test_the_number_of_label_values_is_bounded(hf: Holdfast) -> None:
    metrics = ServerMetrics(hf)
    async with hf.worker(GRAPHS) as worker:
        metrics.watch(worker)
        for number in range(3 * LABEL_VALUES_MAX):
            worker.figures.ended[f"graph-{number}", "finished"] += 1
            worker.figures.quota_waits[f"quota-{number}"] += 1
        found = samples(metrics.page().decode())
    for name in ("holdfast_runs_ended_total", "holdfast_quota_waits_total"):
        assert len(found[name]) == LABEL_VALUES_MAX + 1
        assert sum(found[name].values()) == 3 * LABEL_VALUES_MAX


async def test_two_servers_of_one_process_have_separate_registries(hf: Holdfast) -> None:
    async with client_of(hf) as first, client_of(hf) as second:
        await first.get("/v1/runs")
        found = samples((await second.get("/metrics")).text)
    assert "holdfast_http_request_seconds_count" not in found


# --- who may read --------------------------------------------------------------------------------


async def test_without_authentication_metrics_are_open(http: httpx.AsyncClient) -> None:
    response = await http.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    assert response.headers["content-type"].count("charset") == 1


@pytest.mark.parametrize(
    "authorization", [None, "Bearer wrong", "Bearer ", "Basic the-token", "the-token"]
)
async def test_with_authentication_metrics_need_the_token(
    hf: Holdfast, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    async with client_of(hf, authentication=True, metrics_token="the-token") as client:
        assert (await client.get("/metrics", headers=headers)).status_code == 401


async def test_the_token_admits_to_metrics_only(hf: Holdfast) -> None:
    headers = {"Authorization": "Bearer the-token"}
    async with client_of(hf, authentication=True, metrics_token="the-token") as client:
        assert (await client.get("/metrics", headers=headers)).status_code == 200
        assert (await client.get("/v1/runs", headers=headers)).status_code == 401


def test_the_token_is_not_shown() -> None:
    assert "the-token" not in repr(ServerOptions(metrics_token="the-token"))


async def test_the_guide_lists_exactly_the_metrics(hf: Holdfast) -> None:
    metrics = ServerMetrics(hf)
    names = set()
    for family in metrics.registry.collect():
        names.add(f"{family.name}_total" if family.type == "counter" else family.name)
    listed = {
        line.split("`")[1].partition("{")[0]
        for line in GUIDE.read_text().splitlines()
        if line.startswith("| `holdfast_")
    }
    assert listed == names
