"""Bulk jobs: they act on each run once, tell the truth, and outlive servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import BulkProgress, Holdfast, RunFilter
from holdfast.clock import ManualClock
from holdfast.engine.client import bulk
from holdfast.engine.client.bulk_jobs import LEASE_MS, ClaimedBulkJob
from holdfast.errors import BulkJobEnded, BulkJobNotFound, EndpointUnreachable, JournalDamaged
from holdfast.model.service import BulkJob, BulkRequest
from holdfast.records.bulk_job import bulk_job_of
from holdfast.records.keys import bulk_key
from holdfast.server.bulk_runner import BulkRunner
from holdfast.storage import Update
from tests.server.graphs import Order, broken, orders

RUNS = 7
CANCEL = BulkRequest(action="cancel", filter={"graph": "orders"}, reason="enough")


class Died(BaseException):
    """A server was killed."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def servers(tmp_path: Path, clock: ManualClock) -> AsyncIterator[list[Holdfast]]:
    """Two processes on one store, with a page of two runs."""
    opened = [Holdfast(f"sqlite:///{tmp_path}/runs.db", clock=clock) for _ in range(2)]
    yield opened
    for hf in opened:
        await hf.close()


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "_RUNS_PER_PAGE", 2)


async def started(hf: Holdfast) -> list[str]:
    return [(await hf.start(orders, Order("book"), id=f"o-{number}")).id for number in range(RUNS)]


async def added(hf: Holdfast, request: BulkRequest = CANCEL) -> BulkJob:
    return await hf.bulk_jobs.add(request, RunFilter(**request.filter), tenant="default")


async def test_a_damaged_job_hides_no_other_job(servers: list[Holdfast]) -> None:
    hf = servers[0]
    jobs = [await added(hf) for _ in range(3)]
    table = hf._kernel.bulk_jobs
    await table.write(Update(key=bulk_key("default", jobs[1].id), set={"status": "odd"}))
    assert [job.id for job in (await hf.bulk_jobs.list(tenant="default")).jobs] == [
        jobs[2].id,
        jobs[0].id,
    ]
    page = await hf.bulk_jobs.list(tenant="default", limit=2)
    assert [job.id for job in page.jobs] == [jobs[2].id]
    rest = await hf.bulk_jobs.list(tenant="default", cursor=page.cursor)
    assert [job.id for job in rest.jobs] == [jobs[0].id]


async def statuses(hf: Holdfast) -> set[str]:
    return {(await hf.run(f"o-{number}").get()).status for number in range(RUNS)}


async def ended(http: httpx.AsyncClient, url: str) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            job = (await http.get(url)).json()
            if job["status"] not in ("pending", "running"):
                return job


async def test_a_job_over_http_cancels_runs_and_tells_its_progress(
    hf: Holdfast, http: httpx.AsyncClient
) -> None:
    for id in await started(hf):
        await hf.run(id).until("waiting")
    body = {"action": "cancel", "filter": {"graph": "orders"}, "reason": "enough"}
    added = await http.post("/v1/bulk", json=body)
    assert added.status_code == 202
    assert added.headers["location"] == f"/v1/bulk/{added.json()['id']}"
    job = await ended(http, added.headers["location"])
    assert job["status"] == "finished"
    assert job["progress"] == {
        "seen": RUNS, "done": RUNS, "refused": 0, "failed": 0, "cursor": None, "errors": [],
    }  # fmt: skip
    assert await statuses(hf) == {"cancelled"}
    assert "enough" in str((await hf.run("o-0").get()).failure)
    listed = (await http.get("/v1/bulk")).json()
    assert [each["id"] for each in listed["jobs"]] == [job["id"]]
    gone = await http.delete(f"/v1/bulk/{job['id']}")
    assert (gone.status_code, gone.json()["code"]) == (409, "bulk_job_ended")
    assert (await http.get("/v1/bulk/none")).json()["code"] == "bulk_job_not_found"
    other = await http.get(f"/v1/bulk/{job['id']}", headers={"Holdfast-Tenant": "t"})
    assert other.status_code == 404


async def test_an_empty_filter_is_refused_in_the_words_of_the_body(http: httpx.AsyncClient) -> None:
    refused = await http.post("/v1/bulk", json={"action": "cancel"})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_query")
    assert refused.json()["detail"].startswith('filter is empty. Pass "everything": true')


async def test_a_job_retries_failed_runs(hf: Holdfast, http: httpx.AsyncClient) -> None:
    run = await hf.start(broken, Order("book"), id="f")
    await run.until("failed", timeout=20)
    dry = {"action": "retry", "everything": True, "dry_run": True}
    counted = await ended(http, (await http.post("/v1/bulk", json=dry)).headers["location"])
    assert (counted["progress"]["seen"], counted["progress"]["done"]) == (1, 0)
    body = {"action": "retry", "filter": {"status": ["failed"]}, "limit": 5}
    job = await ended(http, (await http.post("/v1/bulk", json=body)).headers["location"])
    assert (job["status"], job["progress"]["done"]) == ("finished", 1)


@pytest.mark.parametrize("saves", [True, False])
async def test_another_server_continues_the_job_of_one_that_died(
    servers: list[Holdfast], clock: ManualClock, monkeypatch: pytest.MonkeyPatch, saves: bool
) -> None:
    first, second = servers
    await started(first)
    job = await added(first)
    save = ClaimedBulkJob.save

    async def save_and_die(claimed: ClaimedBulkJob, progress: BulkProgress) -> bool:
        if progress.seen > 2:
            if saves:
                await save(claimed, progress)
            raise Died
        return await save(claimed, progress)

    monkeypatch.setattr(ClaimedBulkJob, "save", save_and_die)
    with pytest.raises(Died):
        await BulkRunner(first).carry_out_due()
    monkeypatch.setattr(ClaimedBulkJob, "save", save)
    left = await second.bulk_jobs.get(job.id, tenant="default")
    assert (left.status, left.progress.seen) == ("running", 4 if saves else 2)

    await BulkRunner(second).carry_out_due()  # the lease of the first one lasts
    assert (await second.bulk_jobs.get(job.id, tenant="default")).status == "running"
    clock.advance(LEASE_MS / 1000 + 1)
    await BulkRunner(second).carry_out_due()
    done = await second.bulk_jobs.get(job.id, tenant="default")
    assert done.status == "finished"
    assert await statuses(second) == {"cancelled"}
    # What the first server did after its last write, a page at most, is missing in the counts.
    assert done.progress.done == (RUNS if saves else RUNS - 2)


async def test_a_server_that_lost_its_job_stops(
    servers: list[Holdfast], clock: ManualClock
) -> None:
    first, second = servers
    await started(first)
    job = await added(first)
    slow = await first.bulk_jobs.claim_due()
    assert slow is not None
    assert await second.bulk_jobs.claim_due() is None
    clock.advance(LEASE_MS / 1000 + 1)
    taken = await second.bulk_jobs.claim_due()
    assert taken is not None
    assert not await slow.save(BulkProgress(seen=1, cursor="x"))
    await slow.end("failed", BulkProgress())
    assert (await first.bulk_jobs.get(job.id, tenant="default")).status == "running"
    assert await taken.save(BulkProgress(seen=2, cursor="x"))
    assert (await first.bulk_jobs.get(job.id, tenant="default")).progress.seen == 2


async def test_a_job_is_claimed_once(servers: list[Holdfast]) -> None:
    await added(servers[0])
    claims = await asyncio.gather(*(hf.bulk_jobs.claim_due() for hf in servers * 5))
    assert sum(claim is not None for claim in claims) == 1


async def test_a_cancelled_job_stops_before_its_next_page(
    servers: list[Holdfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = servers
    await started(first)
    job = await added(first)
    save = ClaimedBulkJob.save

    async def cancel_and_save(claimed: ClaimedBulkJob, progress: BulkProgress) -> bool:
        await second.bulk_jobs.cancel(job.id, tenant="default")
        return await save(claimed, progress)

    monkeypatch.setattr(ClaimedBulkJob, "save", cancel_and_save)
    await BulkRunner(first).carry_out_due()
    stopped = await second.bulk_jobs.cancel(job.id, tenant="default")
    assert (stopped.status, stopped.progress.seen) == ("cancelled", 0)
    assert await statuses(first) == {"cancelled", "ready"}
    with pytest.raises(BulkJobNotFound):
        await first.bulk_jobs.cancel("none", tenant="default")
    await BulkRunner(first).carry_out_due()
    assert await statuses(first) == {"cancelled", "ready"}


async def test_a_limit_that_is_reached_ends_the_job_also_after_a_death(
    servers: list[Holdfast], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = servers
    await started(first)
    job = await added(first, BulkRequest(action="cancel", filter={"graph": "orders"}, limit=4))

    async def die(*given: Any, **more: Any) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(ClaimedBulkJob, "end", die)
        with pytest.raises(Died):
            await BulkRunner(first).carry_out_due()
    clock.advance(LEASE_MS / 1000 + 1)
    await BulkRunner(second).carry_out_due()
    done = await second.bulk_jobs.get(job.id, tenant="default")
    assert (done.status, done.progress.done) == ("finished", 4)
    with pytest.raises(BulkJobEnded):
        await second.bulk_jobs.cancel(job.id, tenant="default")


async def test_a_job_goes_on_after_the_store_was_away(
    servers: list[Holdfast], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = servers[0]
    await started(hf)
    job = await added(hf)

    async def away(*given: Any, **more: Any) -> bool:
        raise EndpointUnreachable("away")

    with monkeypatch.context() as patch:
        patch.setattr(ClaimedBulkJob, "save", away)
        await BulkRunner(hf).carry_out_due()
    assert (await hf.bulk_jobs.get(job.id, tenant="default")).status == "running"
    clock.advance(LEASE_MS / 1000 + 1)
    await BulkRunner(hf).carry_out_due()
    assert (await hf.bulk_jobs.get(job.id, tenant="default")).status == "finished"


async def test_jobs_are_listed_page_by_page(servers: list[Holdfast], clock: ManualClock) -> None:
    hf = servers[0]
    ids: list[str] = []
    for _ in range(5):
        clock.advance(1)
        ids.append((await added(hf)).id)
    found: list[str] = []
    cursor = None
    while True:
        page = await hf.bulk_jobs.list(tenant="default", limit=2, cursor=cursor)
        found += [job.id for job in page.jobs]
        if (cursor := page.cursor) is None:
            break
    assert found == ids[::-1]
    assert (await hf.bulk_jobs.list(tenant="t")).jobs == []


@pytest.mark.parametrize("change", [{"status": "x"}, {"request": b"x"}, {"progress": 1}, {"PK": 5}])
def test_a_damaged_job_is_told(change: dict[str, Any]) -> None:
    with pytest.raises(JournalDamaged):
        bulk_job_of({"PK": "BULK#t", "SK": "a", **change})
