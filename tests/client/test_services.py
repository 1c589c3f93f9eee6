"""What a client has besides runs: the fleet, keys, webhooks, bulk jobs and quotas."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from holdfast import Holdfast, KeyRole, Quota, RunFilter
from holdfast.client import Client
from holdfast.errors import (
    BulkJobEnded,
    BulkJobNotFound,
    Forbidden,
    InvalidName,
    InvalidQuery,
    InvalidRequest,
    KeyNotFound,
    TargetRefused,
    Unauthenticated,
    WebhookNotFound,
)
from holdfast.model.api_key import ApiKey
from holdfast.model.service import BulkRequest
from holdfast.server import ServerApp, ServerOptions, asgi
from tests.client.graphs import GRAPHS, Mood, Order, failing, orders
from tests.client.wire import Wire
from tests.engine.asking import Cents

ADDRESS = "https://hooks.example/in"


@pytest.fixture
async def guarded(hf: Holdfast) -> AsyncIterator[ServerApp]:
    """A server without a worker that asks for credentials."""
    app = asgi(hf, GRAPHS, options=ServerOptions(authentication=True), worker=False)
    async with app.lifespan():
        yield app


async def client_for(app: ServerApp, hf: Holdfast, role: KeyRole, tenant: str) -> Client:
    key = await hf.keys.create("test", tenant=tenant, role=role)
    return Client("http://localhost", key=key.secret, transport=Wire(httpx.ASGITransport(app)))


# --- the fleet ------------------------------------------------------------------------------------


async def test_the_fleet_is_that_of_the_library(client: Client, hf: Holdfast) -> None:
    run = await client.start(orders, Order("book"), id="o-1", labels={"team": "red"})
    await run.until("waiting", timeout=30)
    await client.start(failing, Mood(mood="bad"), id="f-1", labels={"team": "blue"})
    await client.run("f-1").until("failed", timeout=30)
    assert await client.fleet.graphs() == await hf.fleet.graphs()
    ours, theirs = await client.fleet.workers(), await hf.fleet.workers()
    assert [(each.id, each.graphs, each.pools, each.since_at) for each in ours] == [
        (each.id, each.graphs, each.pools, each.since_at) for each in theirs
    ]
    overview = await client.fleet.overview()
    assert (overview.waiting.runs, overview.failed.runs, overview.workers_alive) == (1, 1, 1)
    for find in (client.fleet.stuck, client.fleet.unserved):
        for tenant in (None, "default", "*"):
            assert (await find(tenant=tenant, limit=7)).runs == []
    costs = await client.fleet.cost(RunFilter(labels={"team": "red"}), by="label:team")
    assert (
        costs.groups
        == (await hf.fleet.cost(RunFilter(labels={"team": "red"}), by="label:team")).groups
    )
    assert [(group.key, group.runs) for group in costs.groups] == [("red", 1)]
    assert (await client.fleet.cost(RunFilter("failed", node="approve"))).groups == []
    assert (await client.fleet.cost(tenant="other")).groups == []


async def test_a_run_that_no_worker_serves_is_found(hf: Holdfast, guarded: ServerApp) -> None:
    await hf.start(orders, Order("book"), id="o-1", pool="gpu")
    async with await client_for(guarded, hf, "operator", "*") as client:
        for tenant in (None, "*"):
            (found,) = (await client.fleet.unserved(tenant=tenant, grace=0)).runs
            assert (found.id, found.tenant, found.pool) == ("o-1", "default", "gpu")
        assert (await client.fleet.unserved(grace="1h")).runs == []
        assert (await client.fleet.unserved(tenant="other", grace=0)).runs == []


async def test_wrong_questions_are_refused(hf: Holdfast, guarded: ServerApp) -> None:
    async with await client_for(guarded, hf, "admin", "shop") as client:
        assert await client.fleet.workers() == []
        assert (await client.fleet.cost()).store == []
        with pytest.raises(Forbidden):
            await client.fleet.stuck(tenant="*")
        with pytest.raises(Forbidden):
            await client.fleet.unserved(tenant="other")
        with pytest.raises(Forbidden):
            await client.fleet.overview()
        with pytest.raises(InvalidQuery):
            await client.fleet.stuck(limit=0)
        with pytest.raises(InvalidQuery):
            await client.fleet.cost(by="node")
        with pytest.raises(InvalidRequest):
            await client.fleet.unserved(grace="soon")
        with pytest.raises(InvalidQuery, match="RunFilter"):
            await client.fleet.cost(status="failed")  # type: ignore[call-arg]
    async with await client_for(guarded, hf, "operator", "shop") as client:
        with pytest.raises(Forbidden):
            await client.fleet.workers()


# --- keys -----------------------------------------------------------------------------------------


async def test_keys_are_created_listed_and_revoked(hf: Holdfast, guarded: ServerApp) -> None:
    async with await client_for(guarded, hf, "admin", "*") as client:
        made = await client.keys.create("ci", tenant="shop", role="viewer", expires="90d")
        assert (made.tenant, made.role) == ("shop", "viewer")
        assert (await hf.keys.verify(made.secret)).id == made.id
        every = await client.keys.create("ops", tenant="*", role="operator")
        plain = await client.keys.create("plain", role="viewer")
        assert (every.tenant, plain.tenant) == ("*", "default")
        for tenant in (None, "shop", "default", "*", "none"):
            assert names(await client.keys.list(tenant)) == names(await hf.keys.list(tenant))
        with pytest.raises(KeyNotFound):
            await client.keys.revoke(made.id, tenant="other")
        await client.keys.revoke(made.id, tenant="shop")
        await client.keys.revoke(every.id)
        for gone in (made, every):
            with pytest.raises(Unauthenticated):
                await hf.keys.verify(gone.secret)
            with pytest.raises(KeyNotFound):
                await client.keys.revoke(gone.id)


def names(keys: list[ApiKey]) -> list[tuple[str, str]]:
    return sorted((key.tenant, key.name) for key in keys)


async def test_an_admin_of_a_tenant_has_its_keys_only(hf: Holdfast, guarded: ServerApp) -> None:
    other = await hf.keys.create("other", tenant="other", role="viewer")
    async with await client_for(guarded, hf, "admin", "shop") as client:
        made = await client.keys.create("ci", role="viewer")
        assert made.tenant == "shop"
        assert names(await client.keys.list()) == [("shop", "ci"), ("shop", "test")]
        assert names(await client.keys.list("*")) == []
        with pytest.raises(Forbidden):
            await client.keys.list("other")
        with pytest.raises(Forbidden):
            await client.keys.create("ci", tenant="*", role="viewer")
        with pytest.raises(Forbidden):
            await client.keys.create("ci", tenant="other", role="viewer")
        with pytest.raises(KeyNotFound):
            await client.keys.revoke(other.id)
        with pytest.raises(InvalidRequest, match="role must be one of"):
            await client.keys.create("ci", role="root")  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="expires"):
            await client.keys.create("ci", role="viewer", expires=0)
        with pytest.raises(InvalidName):
            await client.keys.create("a#b", role="viewer")
    assert (await hf.keys.verify(other.secret)).id == other.id


# --- webhooks -------------------------------------------------------------------------------------


async def test_webhooks_are_added_read_and_removed(client: Client, hf: Holdfast) -> None:
    added = await client.webhooks.add(ADDRESS, events=["run.failed"], graph="orders")
    assert added.secret.startswith("whsec_")
    other = await client.webhooks.add(ADDRESS, tenant="other")
    assert await client.webhooks.list() == await hf.webhooks.list() == [added.webhook]
    assert await client.webhooks.list(tenant="other") == [other.webhook]
    assert await client.webhooks.get(added.webhook.id) == added.webhook
    assert await client.webhooks.deliveries(added.webhook.id, limit=5) == []
    tested = await client.webhooks.test(added.webhook.id, max_wait=0)
    assert (tested.webhook, tested.event) == (added.webhook.id, "webhook.test")
    assert tested.state in ("pending", "failed")  # as soon as the name is not found
    await client.webhooks.remove(added.webhook.id)
    for verb in (client.webhooks.get, client.webhooks.remove, client.webhooks.deliveries):
        with pytest.raises(WebhookNotFound):
            await verb(added.webhook.id)
    with pytest.raises(TargetRefused):
        await client.webhooks.add("http://127.0.0.1:9000/")
    with pytest.raises(InvalidRequest, match="events must be a list of"):
        await client.webhooks.add(ADDRESS, events=["run.lost"])  # type: ignore[list-item]
    with pytest.raises(InvalidRequest, match="secret must be"):
        await client.webhooks.add(ADDRESS, secret="short")
    with pytest.raises(InvalidRequest):
        await client.webhooks.test(other.webhook.id, tenant="other", max_wait="5m")
    with pytest.raises(InvalidQuery):
        await client.webhooks.deliveries(other.webhook.id, limit=0)


# --- bulk jobs and quotas -------------------------------------------------------------------------


async def test_bulk_jobs_are_those_of_the_library(client: Client, hf: Holdfast) -> None:
    await client.start(failing, Mood(mood="bad"), id="f-1")
    await client.run("f-1").until("failed", timeout=30)
    request = BulkRequest(action="retry", filter={}, dry_run=True)
    job = await client.bulk_jobs.add(request, RunFilter(graph="failing"))
    assert (job.action, job.dry_run, job.filter) == ("retry", True, {"graph": "failing"})
    _ = [each async for each in client.retry_all(RunFilter(graph="failing"), dry_run=True)]
    while (job := await client.bulk_jobs.get(job.id)).status in ("pending", "running"):
        pass
    assert job == await hf.bulk_jobs.get(job.id, tenant="default")
    assert (job.status, job.progress.seen) == ("finished", 1)
    page = await client.bulk_jobs.list(limit=1)
    following = await client.bulk_jobs.list(cursor=page.cursor)
    assert [page.jobs[0].action, following.jobs] == ["retry", [job]]
    assert (await client.bulk_jobs.list(tenant="other")).jobs == []
    with pytest.raises(BulkJobEnded):
        await client.bulk_jobs.cancel(job.id)
    with pytest.raises(BulkJobNotFound):
        await client.bulk_jobs.get("none")
    with pytest.raises(InvalidQuery, match="everything"):
        await client.bulk_jobs.add(BulkRequest(action="cancel", filter={}), RunFilter())


async def test_quotas_are_those_of_the_library(tmp_path: Path) -> None:
    quotas = {"cheap": Quota("q", tokens=400, usd=2, concurrency=3, per="1m")}
    url = f"sqlite:///{tmp_path}/quotas.db"
    async with Holdfast(url, models={"cheap": Cents()}, quotas=quotas) as hf:
        transport = httpx.ASGITransport(asgi(hf, GRAPHS, worker=False))
        async with Client("http://localhost", transport=transport) as client:
            found = await client.quota_levels.list()
            assert found == await hf.quota_levels.list("default")
            assert [(each.name, each.per_ms, each.models) for each in found] == [
                ("q", 60_000, ["cheap"])
            ]
