"""The cost report: metered units, a month under its limit, and the table that is printed."""

from __future__ import annotations

from contextlib import AsyncExitStack

import msgspec
import pytest

from holdfast import Holdfast, Notice, ReviewOptions
from holdfast.clock import SystemIds
from holdfast.records.settings import note_reviews_write
from tests.engine.support import LOOPS_A_WORKER, StepClock
from tests.examples.warranty.conftest import REVIEWER
from warranty.application import Application, prepare
from warranty.costs import CostReport, DocumentCost, cost_report
from warranty.metering import KINDS, IdleWorker, UnitsOfKind, meter_documents

MONTH_USD_MAX = 0.50


@pytest.fixture(params=["sqlite", "dynamodb"])
async def units(request: pytest.FixtureRequest) -> list[UnitsOfKind]:
    """What one document of each kind costs the table, on both engines."""
    if request.param == "sqlite":
        return await meter_documents()
    local = request.getfixturevalue("dynamodb_local")
    url = f"dynamodb://warranty-{SystemIds().new()}?region=us-east-1&endpoint={local}"
    async with Holdfast(url) as hf:
        await hf.create()
    return await meter_documents(url)


def test_a_month_of_documents_costs_the_table_less_than_half_a_dollar(
    units: list[UnitsOfKind], capsys: pytest.CaptureFixture[str]
) -> None:
    assert [each.kind for each in units] == list(KINDS)
    alone = {kind: CostReport(500, [_document(kind)], units).table_usd for kind in KINDS}
    mixed = [_document(kind) for kind in ("low", "medium", "high, approved")]
    report = CostReport(500, mixed, units)
    with capsys.disabled():
        print(f"\na month at 500 documents a day, a third of each risk: ${report.table_usd:.3f}")
        for kind, usd in alone.items():
            print(f"  if all were {kind}: ${usd:.3f}")
    assert 0 < report.table_usd < MONTH_USD_MAX
    assert max(alone["low"], alone["medium"]) < MONTH_USD_MAX / 2
    assert max(alone.values()) < 0.60


def test_only_high_risk_writes_for_a_pause(units: list[UnitsOfKind]) -> None:
    pauses = {each.kind: each.pause_writes for each in units}
    assert (pauses["low"], pauses["medium"]) == (0, 0)
    assert min(pauses["high, approved"], pauses["high, rejected"]) >= 10


def _document(kind: str) -> DocumentCost:
    risk, _, decision = kind.partition(", ")
    return DocumentCost("doc-1", "finished", risk=risk, decision=decision)


class Silent:
    name = "silent"

    async def send(self, notice: Notice) -> None:
        raise AssertionError("nothing is due")


async def note_reviews(hf: Holdfast) -> None:
    """Let the store know that it has had reviews."""
    kernel = hf._kernel
    known = await kernel.get_settings()
    await kernel.resolve_write(kernel.settings_table, note_reviews_write(token=kernel.ids.new()))
    kernel.adopt_settings(msgspec.structs.replace(known, reviews=True))


async def test_an_idle_worker_costs_what_is_computed(app: Application) -> None:
    clock = StepClock()
    idle = IdleWorker()
    loops = LOOPS_A_WORKER + 1  # one for notices
    reviews = ReviewOptions(notifiers=[Silent()])
    async with AsyncExitStack() as stack:
        hf = await stack.enter_async_context(
            Holdfast("sqlite://:memory:", models=app.models, clock=clock, reviews=reviews)
        )
        await note_reviews(hf)
        await stack.enter_async_context(hf.worker([app.graph], poll=idle.poll_seconds))
        await clock.asleep(loops)
        hf.meter.reset()
        begins = clock.now_ms()
        while (seconds := (clock.now_ms() - begins) / 1000) < 300:
            due = min(due for due, _, woken in clock._sleepers if not woken.done())
            clock.advance(max(due - clock.now_ms(), 1) / 1000)
            await clock.asleep(loops)
        by_purpose = hf.meter.report().by_purpose()
    polled = by_purpose.pop("due").reads / seconds
    assert polled == pytest.approx(idle.polling_reads, rel=0.05)
    told = by_purpose.pop("notice").reads / seconds
    assert told == pytest.approx(idle.notice_reads, rel=0.05)
    reads = sum(units.reads for units in by_purpose.values()) / seconds
    writes = sum(units.writes for units in by_purpose.values()) / seconds
    assert reads == pytest.approx(idle.upkeep_reads, rel=0.15)
    assert writes == pytest.approx(idle.heartbeat_writes, rel=0.1)
    assert idle.usd == pytest.approx(2.0, abs=0.1)


async def test_the_report_tells_what_ran_in_the_store(app: Application, asked: list[str]) -> None:
    async with app.open() as hf, hf.worker([app.graph]):
        ids = await prepare(hf, app)
        for name, status in (
            ("kettle.txt", "finished"),
            ("washing-machine.pdf", "finished"),
            ("compressor.pdf", "waiting"),
            ("freezer-locked.pdf", "failed"),
        ):
            await hf.run(ids[name]).until(status, timeout=30)
        early = str(await cost_report(hf, app))
        assert "No person has decided about a document yet" in early
        assert "(15,208): 50% low, 50% medium" in early
        (waiting,) = (await hf.reviews.list()).reviews
        await hf.reviews.approve(waiting.id, by=REVIEWER)
        await hf.run(ids["compressor.pdf"]).result(timeout=30)
        paid = sum([(await hf.run(id).get()).cost_usd for id in ids.values()])
        resumed = asked[-1:]
        report = await cost_report(hf, app)
    assert resumed == ["small"]
    found = report.as_dict()
    assert sum(each["first_usd"] + each["last_usd"] for each in found["documents"]) == (
        pytest.approx(paid, abs=1e-9)
    )
    (decided,) = report.decided
    assert (decided.first_calls, decided.last_calls, decided.pages) == (3, 1, 1)
    assert found["repeated_calls"] == 0
    assert report.saved_usd == pytest.approx(decided.first_usd)
    third = pytest.approx(1 / 3)
    assert report.mix() == {"low": third, "medium": third, "high, approved": third}
    shown = str(report)
    for line in (
        "4 documents: 1 high, 1 low, 1 medium, 1 not classified",
        "High-risk document: model calls  4 on a resume, $0.00",
        "  1 on a resume, $0.000405",
        "Redundant re-processing          $0.0032",
        "State cleanup                    manual                             automatic, by TTL",
        "A month at 500 documents a day (15,208): 33% high, approved, 33% low, 33% medium",
        "hf.worker(…, poll=5) costs $0.73",
        "  polling for notices   $     0.03",
        "  ReviewOptions(poll=300) costs $0.002 instead of $0.033;",
        "Prices: DynamoDB in us-east-1 since 2024-11-01; models by the lists of 2025-11-24",
    ):
        assert line in shown


def test_a_store_without_documents_has_a_report() -> None:
    report = CostReport(500, [], [])
    assert (report.mix(), report.table_usd, report.models_usd, report.saved_usd) == ({}, 0, 0, 0)
    assert str(report).startswith("0 documents")
