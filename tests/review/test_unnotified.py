"""Reviews of which no reviewer could be notified: operators find them where runs are stuck."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast import Context, Graph, Holdfast, ReviewOptions
from holdfast.cli.commands import main
from holdfast.clock import ManualClock, SystemClock
from holdfast.errors import InvalidQuery
from holdfast.fleet import unnotified
from holdfast.fleet.diagnosis import stalled_findings
from holdfast.model.fleet import StalledPage
from holdfast.server import asgi
from tests.review.notices import Pump, Recorder, ask, claims, raising
from tests.server.callers import bearer, key_for, serving
from tests.server.test_fleet import client_of
from tests.server.test_metrics import samples

NONE = StalledPage(runs=[], cursor=None)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def mail() -> Recorder:
    return Recorder()


@pytest.fixture
async def hf(tmp_path: Path, clock: ManualClock, mail: Recorder) -> AsyncIterator[Holdfast]:
    options = ReviewOptions(notifiers=[mail], send_in_workers=False)
    async with Holdfast(f"sqlite:///{tmp_path}/runs.db", clock=clock, reviews=options) as opened:
        yield opened


async def fail(
    hf: Holdfast,
    clock: ManualClock,
    mail: Recorder,
    *,
    polls: int = 4,
    error: Exception | None = None,
) -> Pump:
    pump = Pump(hf, clock)
    mail.act = raising(error or OSError("no such host"))
    for _ in range(polls):
        await pump.poll(after=60)
    return pump


async def test_operators_read_the_notes_of_an_error(
    hf: Holdfast, clock: ManualClock, mail: Recorder
) -> None:
    await ask(hf, assignees="ana")
    error = ConnectionRefusedError(111, "Connection refused")
    error.add_note("mail server mail.example.com:587")
    await fail(hf, clock, mail, error=error)
    (found,) = (await hf.fleet.stuck()).runs
    assert found.detail.endswith(
        ": mail: mail server mail.example.com:587: ConnectionRefusedError: "
        "[Errno 111] Connection refused"
    )


async def test_operators_find_the_run_until_a_reviewer_is_told(
    hf: Holdfast, clock: ManualClock, mail: Recorder
) -> None:
    id = await ask(hf, assignees="ana")
    other = await ask(hf, "c-2", assignees="ana", tenant="acme")
    assert (await hf.fleet.overview()).stuck.runs == 0
    pump = await fail(hf, clock, mail)
    for tenant, runs in ((None, {"c-1"}), ("acme", {"c-2"}), ("*", {"c-1", "c-2"}), ("x", set())):
        page = await hf.fleet.stuck(tenant=tenant)
        assert {run.id for run in page.runs} == runs
        assert page.cursor is None
        assert {run.reason for run in page.runs} <= {"not_notified"}
    (found,) = (await hf.fleet.stuck()).runs
    assert found.status == "waiting"
    assert found.detail == (
        f"no reviewer could be notified of its review {id}: mail: OSError: no such host"
    )
    (found,) = (await hf.fleet.stuck(tenant="acme")).runs
    assert found.advice.endswith("holdfast review list --tenant acme")
    assert (await hf.fleet.overview()).stuck.runs == 2
    await hf.reviews.approve(other, by="ana", tenant="acme")
    mail.act = lambda _: None
    await pump.poll(after=3_600)
    assert (await hf.fleet.stuck(tenant="*")).runs == []
    assert (await hf.fleet.overview()).stuck.runs == 0


async def test_a_run_stays_listed_after_all_attempts_were_given_up_until_it_ends(
    hf: Holdfast, clock: ManualClock, mail: Recorder
) -> None:
    await ask(hf, assignees="ana")
    pump = await fail(hf, clock, mail)
    for _ in range(80):
        await pump.poll(after=3_601)
    mail.act = lambda _: None
    await pump.poll(after=3_601)
    assert mail.notices == []
    assert [run.id for run in (await hf.fleet.stuck()).runs] == ["c-1"]
    async with hf.worker([claims]):
        await hf.run("c-1").cancel()
        await hf.run("c-1").until("cancelled")
    assert (await hf.fleet.stuck()).runs == []
    await pump.poll(after=7 * 86_400)
    assert (await hf.fleet.overview()).stuck.runs == 0


async def test_pages_of_runs_continue(hf: Holdfast, clock: ManualClock, mail: Recorder) -> None:
    for number in range(5):
        await ask(hf, f"c-{number}", assignees="ana")
    await fail(hf, clock, mail)
    for tenant in (None, "*"):
        found: list[str] = []
        cursor: str | None = None
        for _ in range(10):
            page = await hf.fleet.stuck(tenant=tenant, limit=2, cursor=cursor)
            found += [run.id for run in page.runs]
            cursor = page.cursor
            if cursor is None:
                break
        assert sorted(found) == [f"c-{number}" for number in range(5)]
        with pytest.raises(InvalidQuery):
            await hf.fleet.stuck(tenant=tenant, cursor="what")


@pytest.mark.parametrize("entries", [1, 2])
async def test_a_cursor_names_no_run_of_another_tenant(
    hf: Holdfast,
    clock: ManualClock,
    mail: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    entries: int,
) -> None:
    monkeypatch.setattr(unnotified, "_PAGE", 1)
    monkeypatch.setattr(unnotified, "_ENTRIES_MAX", entries)
    for number, tenant in enumerate(("acme", "middle", "zeta", "acme", "middle", "zeta")):
        await ask(hf, f"of-{tenant}-{number}", assignees="ana", tenant=tenant)
    await fail(hf, clock, mail)
    found: list[str] = []
    cursor: str | None = None
    for _ in range(20):
        page = await hf.fleet.stuck(tenant="middle", cursor=cursor)
        found += [run.id for run in page.runs]
        cursor = page.cursor
        if cursor is None:
            break
        shown = base64.urlsafe_b64decode(cursor + "==")
        assert b"acme" not in shown
        assert b"zeta" not in shown
    assert sorted(found) == ["of-middle-1", "of-middle-4"]
    assert cursor is None


async def test_entries_of_one_time_are_passed_though_other_tenants_have_many(
    hf: Holdfast, clock: ManualClock, mail: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, tenant in enumerate(("acme", "acme", "middle", "zeta", "zeta")):
        await ask(hf, f"c-{number}", assignees="ana", tenant=tenant)
    pump = await fail(hf, clock, mail)
    for _ in range(80):  # until all are given up: these are last in the index, at one time
        await pump.poll(after=3_601)
    monkeypatch.setattr(unnotified, "_PAGE", 1)
    monkeypatch.setattr(unnotified, "_ENTRIES_MAX", 1)
    found: list[str] = []
    cursor: str | None = None
    for _ in range(10):
        page = await hf.fleet.stuck(tenant="middle", cursor=cursor)
        found += [run.id for run in page.runs]
        cursor = page.cursor
        if cursor is None:
            break
    assert (found, cursor) == (["c-2"], None)


async def test_a_run_that_waits_for_several_reviews_is_one_run(
    hf: Holdfast, clock: ManualClock, mail: Recorder
) -> None:
    graph = Graph("both", dict)

    @graph.node
    async def ask_both(state: Any, ctx: Context) -> Any:
        await asyncio.gather(*(ctx.review(text, assignees="ana") for text in ("A?", "B?")))
        return state

    async with hf.worker([graph]):
        await (await hf.start(graph, {}, id="b-1")).until("waiting")
    await fail(hf, clock, mail)
    assert (await hf.fleet.overview()).stuck.runs == 1
    for tenant in (None, "*"):
        assert [run.id for run in (await hf.fleet.stuck(tenant=tenant)).runs] == ["b-1"]


async def test_many_reviews_are_read_a_hundred_at_a_time(
    hf: Holdfast, clock: ManualClock, mail: Recorder
) -> None:
    for number in range(6):
        await ask(hf, f"c-{number}", assignees="ana")
    await fail(hf, clock, mail)
    before = hf.meter.report().calls
    assert len((await hf.fleet.stuck()).runs) == 6
    assert hf.meter.report().calls - before < 12


async def test_the_list_of_unserved_runs_takes_no_cursor_of_stuck_ones(
    hf: Holdfast, clock: ManualClock, mail: Recorder
) -> None:
    for number in range(2):
        await ask(hf, f"c-{number}", assignees="ana")
    await fail(hf, clock, mail)
    cursor = (await hf.fleet.stuck(limit=1)).cursor
    with pytest.raises(InvalidQuery):
        await hf.fleet.unserved(cursor=cursor)


async def test_a_server_lists_and_counts_them(
    hf: Holdfast, clock: ManualClock, mail: Recorder
) -> None:
    id = await ask(hf, "c-1", assignees="ana", tenant="acme")
    await fail(hf, clock, mail)
    state = (("state", "stuck"),)
    app = asgi(hf, [claims], worker=False)
    async with app.lifespan(), client_of(app) as http:
        for query, tenant, runs in (
            ("", "acme", ["c-1"]),
            ("", "other", []),
            ("?all_tenants=true", "other", ["c-1"]),
        ):
            answer = await http.get(f"/v1/fleet/stuck{query}", headers={"holdfast-tenant": tenant})
            found = answer.json()["runs"]
            assert [run["id"] for run in found] == runs
            assert all(run["reason"] == "not_notified" and id in run["detail"] for run in found)
        assert (await http.get("/v1/fleet/overview")).json()["stuck"]["runs"] == 1
        await app.services.metrics.refresh()
        assert samples((await http.get("/metrics")).text)["holdfast_runs"][state] == 1
        await hf.reviews.reject(id, by="ana", tenant="acme")
        await app.services.metrics.refresh()
        assert samples((await http.get("/metrics")).text)["holdfast_runs"][state] == 0


async def test_a_tenant_sees_its_own_through_a_key(
    hf: Holdfast, clock: ManualClock, mail: Recorder
) -> None:
    for tenant in ("acme", "other"):
        await ask(hf, f"of-{tenant}", assignees="ana", tenant=tenant)
    await fail(hf, clock, mail)
    async with serving(hf) as (http, _):
        key = bearer(await key_for(hf, "viewer", tenant="acme"))
        answer = await http.get("/v1/fleet/stuck", headers=key)
        assert [run["id"] for run in answer.json()["runs"]] == ["of-acme"]
        assert "of-other" not in answer.text
        assert (await http.get("/v1/fleet/stuck?all_tenants=true", headers=key)).status_code == 403


async def test_the_commands_of_operators_show_them(tmp_path: Path, mail: Recorder) -> None:
    store, clock = f"sqlite:///{tmp_path}/runs.db", ManualClock(SystemClock().now_ms())
    options = ReviewOptions(notifiers=[mail], send_in_workers=False)
    async with Holdfast(store, clock=clock, reviews=options) as hf:
        id = await ask(hf, assignees="ana")
        await fail(hf, clock, mail)
    detail = f"no reviewer could be notified of its review {id}: mail: OSError: no such host"
    invoke = CliRunner(env={"HOLDFAST_URL": store}).invoke
    listed = await asyncio.to_thread(invoke, main, ["fleet", "stuck"])
    assert listed.exit_code == 0
    assert "not_notified" in listed.output
    assert detail in listed.output
    assert "or decide: holdfast review list" in listed.output
    checked = await asyncio.to_thread(invoke, main, ["doctor"])
    assert detail in checked.output
    shown = await asyncio.to_thread(invoke, main, ["review", "show", id])
    assert "no reviewer could be notified: mail: OSError: no such host" in shown.output


async def test_the_doctor_names_what_is_wrong(
    hf: Holdfast, clock: ManualClock, mail: Recorder
) -> None:
    id = await ask(hf, assignees="ana")
    await fail(hf, clock, mail)
    findings = stalled_findings(await hf.fleet.stuck(), NONE, NONE, any_alive=True)
    (finding,) = [each for each in findings if each.level == "problem"]
    assert finding.what == (
        "1 run of graph 'claims' is stuck, such as c-1: no reviewer could be notified of its "
        f"review {id}: mail: OSError: no such host"
    )
    assert finding.why == "their reviewers do not know that they wait"
