"""The pipeline: who is asked, what a person decides, what is sent, and what is paid."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from holdfast import Answer, Graph, Holdfast, ModelPrice, Request, Usage, days
from holdfast.errors import ModelRefused
from holdfast.integrations.offline import Offline
from holdfast.storage import Report
from holdfast.testing import TestKit
from tests.examples.warranty.conftest import REVIEWER
from warranty.application import SAMPLES, Application, prepare
from warranty.documents import NO_FIELDS, Warranty
from warranty.folder import DocumentFolder
from warranty.notices import Notice, Outbox
from warranty.pipeline import warranty_graph
from warranty.reading import LocalReader


async def started(hf: Holdfast, app: Application, name: str) -> str:
    return (await app.arrivals(hf).add_file(SAMPLES / name)).id


async def result_of(hf: Holdfast, app: Application, id: str) -> Warranty:
    return await hf.run(id, graph=app.graph).result(timeout=30)


async def waiting_review(hf: Holdfast, id: str) -> str:
    (entry,) = (await hf.reviews.list(run=id)).reviews
    return entry.id


def outbox(app: Application) -> Outbox:
    assert isinstance(app.notices, Outbox)
    return app.notices


@pytest.mark.parametrize(
    ("name", "risk"), [("kettle.txt", "low"), ("washing-machine.pdf", "medium")]
)
async def test_a_document_without_high_risk_goes_through(
    kit: TestKit, app: Application, asked: list[str], name: str, risk: str
) -> None:
    id = await started(kit.hf, app, name)
    await kit.settled()
    found = await result_of(kit.hf, app, id)
    assert (found.risk, found.decision, found.model) == (risk, None, "rules-small")
    assert asked == ["small", "small", "small"]
    assert [entry.what for entry in found.audit] == [
        "read",
        "structured",
        "classified",
        "reminder written",
        "tenant notified",
    ]
    assert found.fields is not None
    assert found.fields.product in found.reminder
    (sent,) = outbox(app).sent()
    assert (sent["tenant"], sent["text"], sent["document"]) == ("default", found.reminder, id)
    assert sent["key"] == f"default.{id}.reminder"


async def test_each_document_has_its_own_notice(kit: TestKit, app: Application) -> None:
    for name in ("kettle.txt", "washing-machine.pdf"):
        await started(kit.hf, app, name)
    await kit.settled()
    assert len(outbox(app).sent()) == 2


async def test_the_larger_model_is_asked_once_if_the_small_one_doubts(
    kit: TestKit, app: Application, asked: list[str]
) -> None:
    id = await started(kit.hf, app, "compressor.pdf")
    await kit.settled()
    assert asked == ["small", "small", "large"]
    state = await kit.hf.run(id, graph=app.graph).state()
    assert (state.risk, state.confidence, state.model) == ("high", 0.93, "rules-large")
    told = [(entry.what, entry.by, entry.note) for entry in state.audit if entry.note]
    assert ("classified", "rules-small", "medium risk, confidence 0.55") in told
    assert ("classified", "rules-large", "high risk, confidence 0.93") in told


async def test_the_audit_log_has_what_the_run_cost(kit: TestKit, app: Application) -> None:
    id = await started(kit.hf, app, "compressor.pdf")
    await kit.settled()
    await kit.hf.reviews.approve(await waiting_review(kit.hf, id), by=REVIEWER)
    await kit.settled()
    found = await result_of(kit.hf, app, id)
    paid = sum(entry.usd for entry in found.audit)
    assert paid == pytest.approx((await kit.hf.run(id).get()).cost_usd, abs=1e-9)
    assert paid > 0


async def test_a_reviewer_sees_the_document_and_corrects_it(kit: TestKit, app: Application) -> None:
    id = await started(kit.hf, app, "compressor.pdf")
    await kit.settled()
    review = await kit.hf.reviews.get(await waiting_review(kit.hf, id))
    assert review.shown["document"] == "s3://local/compressor.pdf"
    assert "The terms contradict each other: [24, 60] months." in review.shown["reasons"]
    assert "Compressor C-900" in review.shown["text"]
    assert review.assignees == (REVIEWER,)
    assert review.values == {"product": "Compressor C-900", "months": 24, "risk": "high"}
    corrected = {"product": "Compressor C-900", "months": 60, "risk": "medium"}
    await kit.hf.reviews.approve(
        review.id, by=REVIEWER, comment="60 for the drive", values=corrected
    )
    await kit.settled()
    found = await result_of(kit.hf, app, id)
    assert found.fields is not None
    assert found.decision is not None
    assert (found.fields.months, found.risk) == (60, "medium")
    assert (found.decision.status, found.decision.by) == ("approved", REVIEWER)
    assert "lasts 60 months" in found.reminder
    (entry,) = [entry for entry in found.audit if entry.what == "approved"]
    assert entry.note == "changed: months, risk"


async def test_an_approval_pays_for_the_reminder_only(
    app: Application, asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Another process goes on: it asks no model before the reminder, and reads nothing again."""
    async with app.open() as hf:
        id = await started(hf, app, "compressor.pdf")
        async with hf.worker([app.graph]):
            await hf.run(id).until("waiting", timeout=30)
        before = (await hf.run(id).get()).cost_usd
    assert asked == ["small", "small", "large"]
    asked.clear()
    async with app.open() as hf:
        await hf.reviews.approve(await waiting_review(hf, id), by=REVIEWER)
        async with hf.worker([app.graph]):
            found = await result_of(hf, app, id)
        after = (await hf.run(id).get()).cost_usd
        entries = (await hf.run(id).history()).entries
    assert asked == ["small"]
    calls = [(entry.node, entry.details["call"]) for entry in entries if entry.kind == "call"]
    assert next(call for node, call in calls if node == "remind") == "model.small#1"
    assert [node for node, call in calls].count("read") == 3  # the file, the model, the time
    assert len(set(calls)) == len(calls), "no call was made twice"
    reminder_usd = after - before
    with capsys.disabled():
        print(f"\nsaved ${before:.6f} on the resume; the reminder cost ${reminder_usd:.6f}")
    assert reminder_usd == pytest.approx(
        sum(entry.usd for entry in found.audit if entry.what == "reminder written")
    )
    # The larger model is the expensive one: a resume that ran it again would cost most of it.
    large = sum(entry.usd for entry in found.audit if entry.by == "rules-large")
    assert before == pytest.approx(0.0032549, rel=0.05)
    assert large > before / 2
    assert before > 5 * reminder_usd


async def test_a_rejection_tells_the_tenant_and_asks_no_model(
    kit: TestKit, app: Application, asked: list[str]
) -> None:
    id = await started(kit.hf, app, "compressor.pdf")
    await kit.settled()
    asked.clear()
    review = await waiting_review(kit.hf, id)
    await kit.hf.reviews.reject(review, by=REVIEWER, comment="the terms contradict each other.")
    await kit.settled()
    found = await result_of(kit.hf, app, id)
    assert (asked, found.reminder) == ([], "")
    (sent,) = outbox(app).sent()
    assert sent["key"] == f"default.{id}.rejection"
    assert "the terms contradict each other." in sent["text"]


async def test_without_a_decision_the_tenant_is_told_after_a_week(
    kit: TestKit, app: Application
) -> None:
    id = await started(kit.hf, app, "compressor.pdf")
    await kit.settled()
    await kit.skip(days(7) - days(0.001))
    assert not outbox(app).sent()
    await kit.skip(days(0.001))
    found = await result_of(kit.hf, app, id)
    assert found.decision is not None
    assert (found.decision.status, found.decision.by) == ("expired", "")
    (sent,) = outbox(app).sent()
    assert "(expired)" in sent["text"]


async def test_a_locked_document_fails_and_is_retried_with_its_password(
    kit: TestKit, app: Application, asked: list[str]
) -> None:
    ids = await prepare(kit.hf, app)
    assert ids == await prepare(kit.hf, app), "the same documents are the same runs"
    await kit.settled()
    run = kit.hf.run(ids["freezer-locked.pdf"])
    row = await run.get()
    assert row.status == "failed"
    assert row.failure is not None
    assert "passwords.txt" in row.failure.message
    app.settings.passwords.write_text("wrong\nwinter-2026\n")
    await run.retry()
    await kit.settled()
    assert (await run.get()).status == "finished"


# --- what is written ------------------------------------------------------------------------------


def operations(report: Report) -> list[tuple[str, str, int, float]]:
    """Return what the store did for runs, without what workers do anyway."""
    idle = ("due", "graph", "reaping", "settings", "worker")
    return [
        (row.purpose, row.operation, row.calls, row.units.writes)
        for row in report.rows
        if row.purpose not in idle
    ]


async def test_medium_risk_writes_nothing_for_a_pause(app: Application) -> None:
    reader = LocalReader(DocumentFolder(app.settings.documents), app.settings.passwords)
    found: list[list[tuple[str, str, int, float]]] = []
    for nodes in ("with", "without"):
        graph = warranty_graph(reader, app.notices, app.models)
        if nodes == "without":
            graph = _without_review(graph)
        async with Holdfast("sqlite://:memory:", models=app.models) as hf, hf.worker([graph]):
            version = DocumentFolder(app.settings.documents).save(
                (SAMPLES / "washing-machine.pdf").read_bytes()
            )
            hf.meter.reset()
            run = await hf.start(graph, Warranty("local", "washing-machine.pdf", version), id="d")
            assert (await run.result(timeout=30)).risk == "medium"
            found.append(operations(hf.meter.report()))
    assert found[0] == found[1]
    assert {purpose for purpose, *_ in found[0]} == {"head", "journal"}


def _without_review(graph: Any) -> Any:
    """Return the graph as it would be if there were no reviews."""
    plain: Any = Graph("warranty", Warranty, models=["small", "large"], expires=days(30))
    nodes = {
        name: plain.node(graph.nodes[name].function) for name in ("read", "classify", "remind")
    }
    plain.route(*nodes.values())
    return plain


# --- models and guardrails that do not help -------------------------------------------------------

PRICE = ModelPrice(input_usd=1, output_usd=5)


async def run_with(app: Application, small: Any, large: Any, name: str) -> Warranty:
    models = {"small": Offline(small, price=PRICE), "large": Offline(large, price=PRICE)}
    reader = LocalReader(DocumentFolder(app.settings.documents), app.settings.passwords)
    graph = warranty_graph(reader, app.notices, models)
    async with TestKit(graph, models=models) as kit:
        run = await app.arrivals(kit.hf).add_file(SAMPLES / name)
        await kit.settled()
        return await kit.hf.run(run.id, graph=graph).state()


def fields_or(answer: Any) -> Any:
    """Answer the question for fields, and all others with this."""

    def respond(request: Request) -> Any:
        if "product" in (request.output or {}).get("properties", {}):
            return {
                "product": "P",
                "serial": "",
                "customer": "",
                "purchased": "",
                "price_usd": 0.0,
                "months": 1,
                "coverage": "",
                "exclusions": [],
            }
        return answer

    return respond


@pytest.mark.parametrize(
    "answer",
    [
        "not JSON",
        {"reasons": [], "risk": "unknown", "confidence": 1.0},
        {"reasons": [], "risk": "low", "confidence": 95},
    ],
    ids=["prose", "no risk", "percent"],
)
async def test_a_person_decides_if_no_model_gives_a_verdict(app: Application, answer: Any) -> None:
    state = await run_with(app, fields_or(answer), [answer], "kettle.txt")
    assert (state.risk, state.model) == ("high", "")
    assert state.reasons == ["No model could judge it."]
    assert [entry.by for entry in state.audit if entry.what == "not classified"] == [
        "small",
        "large",
    ]


async def test_a_document_that_no_model_can_read_is_for_a_person(app: Application) -> None:
    blocked = Answer(
        text="Sorry.",
        usage=Usage(10, 2),
        stop_reason="filtered",
        flags=("input:content:PROMPT_ATTACK:blocked",),
    )
    state = await run_with(app, lambda request: blocked, lambda request: blocked, "kettle.txt")
    assert (state.fields, state.risk) == (NO_FIELDS, "high")
    assert state.flags == ["input:content:PROMPT_ATTACK:blocked"]
    assert state.text


async def test_no_person_is_asked_because_a_service_is_down(
    app: Application, asked: list[str]
) -> None:
    refused = ModelRefused("no", reason="AccessDeniedException")
    small = {"small": Offline(fields_or(refused)), "large": Offline(lambda request: refused)}
    reader = LocalReader(DocumentFolder(app.settings.documents), app.settings.passwords)
    graph = warranty_graph(reader, app.notices, small)
    async with TestKit(graph, models=small) as kit:
        run = await app.arrivals(kit.hf).add_file(SAMPLES / "kettle.txt")
        await kit.settled()
        assert (await run.get()).status == "failed"
        assert not (await kit.hf.reviews.list()).reviews


async def test_the_state_keeps_what_guardrails_flagged(app: Application) -> None:
    blocked = Answer(
        text="Sorry.",
        usage=Usage(10, 2),
        stop_reason="filtered",
        model="claude",
        flags=("input:topic:Legal advice:blocked",),
    )
    verdict = {"reasons": ["r"], "risk": "high", "confidence": 0.9}
    masked = Answer(
        text=json.dumps(verdict),
        value=verdict,
        usage=Usage(10, 2),
        model="sonnet",
        flags=("output:pii:EMAIL:anonymized",),
    )
    state = await run_with(app, fields_or(blocked), [masked], "kettle.txt")
    assert state.flags == ["input:topic:Legal advice:blocked", "output:pii:EMAIL:anonymized"]
    assert (state.risk, state.model) == ("high", "sonnet")


# --- failures after an effect ---------------------------------------------------------------------


class Lost(Exception):
    """The notice was sent, and its answer was lost."""


class Unrecorded:
    """Sends a notice, and loses the answer the first time."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.keys: list[str] = []

    def send(self, notice: Notice, *, idempotency_key: str = "") -> str:
        self.keys.append(idempotency_key)
        sent = self._outbox.send(notice, idempotency_key=idempotency_key)
        if len(self.keys) == 1:
            raise Lost
        return sent


async def test_a_reminder_that_is_sent_again_has_the_same_key(
    app: Application,
) -> None:
    notices = Unrecorded(outbox(app))
    reader = LocalReader(DocumentFolder(app.settings.documents), app.settings.passwords)
    graph = warranty_graph(reader, notices, app.models)
    async with TestKit(graph, models=app.models) as kit:
        run = await app.arrivals(kit.hf).add_file(SAMPLES / "kettle.txt")
        await kit.settled()
        assert (await run.get()).status == "failed"
        await run.retry()
        await kit.settled()
        assert (await run.get()).status == "finished"
    assert notices.keys == [f"default.{run.id}.reminder"] * 2
    assert len(outbox(app).sent()) == 1


# --- crashes --------------------------------------------------------------------------------------


async def test_a_crash_repeats_no_answer_that_was_recorded(
    app: Application, asked: list[str]
) -> None:
    entered = asyncio.Event()
    rules = app.models["large"]
    assert isinstance(rules, Offline)

    async def large(request: Request) -> Any:
        asked.append("large, by this test")
        if not entered.is_set():
            entered.set()
            await asyncio.Event().wait()
        return await rules.answer(request, None)

    models = {**app.models, "large": Offline(large, name="rules-large", price=rules.price)}
    reader = LocalReader(DocumentFolder(app.settings.documents), app.settings.passwords)
    graph = warranty_graph(reader, app.notices, models)
    async with TestKit(graph, models=models) as kit:
        run = await app.arrivals(kit.hf).add_file(SAMPLES / "compressor.pdf")
        await asyncio.wait_for(entered.wait(), 30)
        assert asked == ["small", "small", "large, by this test"]
        await kit.crash()
        await kit.settled()
        assert (await run.get()).status == "waiting"
        # Only the call whose outcome is unknown is made again.
        assert asked[3:] == ["large, by this test", "large"]
        assert (kit.hf.saved.calls, kit.hf.saved.usd) == (1, pytest.approx(0.00062, rel=0.05))


async def test_a_reminder_goes_out_under_one_key_after_a_crash(app: Application) -> None:
    sent, keys = asyncio.Event(), list[str]()

    class Stuck:
        async def send(self, notice: Notice, *, idempotency_key: str = "") -> str:
            keys.append(idempotency_key)
            message = outbox(app).send(notice, idempotency_key=idempotency_key)
            if not sent.is_set():
                sent.set()
                await asyncio.Event().wait()
            return message

    stuck: Any = Stuck()
    reader = LocalReader(DocumentFolder(app.settings.documents), app.settings.passwords)
    graph = warranty_graph(reader, stuck, app.models)
    async with TestKit(graph, models=app.models) as kit:
        run = await app.arrivals(kit.hf).add_file(SAMPLES / "kettle.txt")
        await asyncio.wait_for(sent.wait(), 30)
        await kit.crash()
        await kit.settled()
        assert (await run.get()).status == "finished"
    assert keys == [f"default.{run.id}.reminder"] * 2
    assert len(outbox(app).sent()) == 1
