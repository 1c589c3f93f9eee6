"""Workflows: three items that always agree, whoever writes them, and whatever is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import Holdfast
from holdfast.errors import (
    DocumentNotFound,
    DocumentWorkflowNotFound,
    IdTaken,
    InvalidQuery,
    InvalidRequest,
    OutcomeUnknown,
    StatusRefused,
)
from holdfast.model.document import STEPS, WORKFLOW_STATUSES, WorkflowStatus
from holdfast.records.document_workflow import (
    NEXT_STATUSES,
    ChangeRequest,
    StoredWorkflow,
    begun_again,
    changed_workflow,
)
from holdfast.storage import Key, Meter, Store
from holdfast.storage.operations import Operation, Reply, TransactItems
from holdfast.storage.sqlite import MEMORY, SqliteEngine
from tests.documents.support import FILE, added, agreed_status, begun, three_items
from tests.engine.support import House, StepClock, store_of

STATUSES = st.sampled_from(WORKFLOW_STATUSES)


async def test_a_workflow_is_begun_with_the_items_and_fields_of_the_source(either: House) -> None:
    hf = either.open()
    documents = hf.documents
    await added(documents)
    workflow = await documents.begin("d", id="w")
    assert (workflow.status, workflow.document, workflow.project) == ("pending", "d", "p")
    item, entry, steps = await three_items(hf, "w")
    assert (item["PK"], item["SK"]) == ("DOC#default#d", "WF#w")
    assert item["data"] == {
        "project_id": "p",
        "file_uri": FILE["file_uri"],
        "file_name": "contract.pdf",
        "file_type": "application/pdf",
        "status": "pending",
        "preprocess": {},
    }
    assert (entry["PK"], entry["SK"]) == ("PROJ#default#p", "WF#w")
    assert entry["data"] == {"file_name": "contract.pdf", "status": "pending"}
    assert (steps["PK"], steps["SK"]) == ("WF#default#w", "STEP")
    for name in STEPS:
        assert steps[name]["status"] == "pending"
        assert steps[name]["label"]
    assert steps["GSI1PK"].startswith("STEP#ANALYSIS_STATUS#default#pending#")
    assert (await documents.get("d")).workflow == "w"
    assert await documents.workflow("w") == workflow


async def test_a_status_is_the_same_in_all_items_and_in_the_index(either: House) -> None:
    hf = either.open()
    documents = hf.documents
    await begun(documents)
    assert await agreed_status(hf, "w") == "in_progress"
    changed = await documents.set_status(
        "w",
        "in_progress",
        execution_arn="run-1",
        total_segments=3000,
        preprocess={"ocr": "in_progress"},
    )
    assert (changed.execution_arn, changed.total_segments) == ("run-1", 3000)
    changed = await documents.update_workflow("w", preprocess={"bda": "skipped"})
    assert changed.preprocess == {"ocr": "in_progress", "bda": "skipped"}
    ended = await documents.set_status("w", "failed", error="the file is broken")
    assert ended.error == "the file is broken"
    assert await agreed_status(hf, "w") == "failed"
    item, _, steps = await three_items(hf, "w")
    assert item["data"]["total_segments"] == steps["total_segments"] == 3000
    assert await documents.workflow("w") == ended
    assert await documents.counts() == {
        "pending": 0,
        "in_progress": 0,
        "completed": 0,
        "failed": 1,
    }


async def test_a_web_document_has_its_workflows_under_web(either: House) -> None:
    hf = either.open()
    documents = hf.documents
    await documents.projects.create("Pages", id="p")
    document = await documents.add("p", id="d", web=True, **FILE)
    assert document.kind == "WEB"
    await documents.begin("d", id="w")
    assert await store_of(hf).table.get(Key("WEB#default#d", "WF#w")) is not None
    assert await store_of(hf).table.get(Key("DOC#default#d", "WF#w")) is None
    page = await documents.workflows(document="d")
    assert [(each.id, each.kind) for each in page] == [("w", "WEB")]
    await documents.set_status("w", "in_progress")
    assert [each.id for each in await documents.in_progress()] == ["w"]
    await documents.delete("d")
    assert await store_of(hf).table.get(Key("WEB#default#d", "WF#w")) is None


async def test_a_repeated_change_is_no_change(either: House) -> None:
    hf = either.open()
    documents = hf.documents
    await begun(documents)
    once = await documents.set_status("w", "completed")
    before = await three_items(hf, "w")
    either.clock.advance(5)
    assert await documents.set_status("w", "completed") == once
    assert await three_items(hf, "w") == before


async def test_a_late_writer_does_not_reopen_a_workflow(hf: Holdfast) -> None:
    documents = hf.documents
    await begun(documents)
    await documents.set_status("w", "completed")
    for late in ("pending", "in_progress", "failed"):
        with pytest.raises(StatusRefused) as caught:
            await documents.set_status("w", late)
        assert (caught.value.current, caught.value.wanted) == ("completed", late)
    with pytest.raises(StatusRefused, match="begin_again"):
        await documents.update_workflow("w", total_segments=7)
    assert await agreed_status(hf, "w") == "completed"


async def test_a_pending_workflow_does_not_end_as_completed(hf: Holdfast) -> None:
    await added(hf.documents)
    await hf.documents.begin("d", id="w")
    with pytest.raises(StatusRefused, match="failed or in_progress"):
        await hf.documents.set_status("w", "completed")


async def test_a_workflow_is_begun_again_and_late_writers_of_the_first_attempt_are_refused(
    either: House,
) -> None:
    hf = either.open()
    documents = hf.documents
    await begun(documents, segments=2)
    with pytest.raises(StatusRefused):
        await documents.begin_again("w")
    await documents.start_step("w", "segment_prep")
    await documents.start_step("w", "segment_analyzer")
    await documents.end_step("w", "segment_prep")
    await documents.end_step("w", "segment_analyzer", status="failed", error="no answer")
    await documents.set_status("w", "failed", error="no answer")
    again = await documents.begin_again("w", steps=["segment_analyzer"])
    assert (again.status, again.attempt, again.error) == ("pending", 2, None)
    assert again.total_segments == 2
    assert await agreed_status(hf, "w") == "pending"
    steps = await documents.steps("w")
    assert steps["segment_prep"].status == "completed"
    assert (steps["segment_analyzer"].status, steps["segment_analyzer"].error) == ("pending", None)
    for late in (
        documents.set_status("w", "failed", attempt=1),
        documents.start_step("w", "segment_analyzer", attempt=1),
        documents.end_step("w", "segment_analyzer", status="failed", attempt=1),
        documents.update_workflow("w", total_segments=9, attempt=1),
    ):
        with pytest.raises(StatusRefused, match="attempt 2"):
            await late
    await documents.set_status("w", "in_progress", attempt=2)
    await documents.set_status("w", "completed", attempt=2)
    assert (await documents.counts())["completed"] == 1


async def test_segments_are_counted_up_and_never_down(hf: Holdfast) -> None:
    await begun(hf.documents, segments=10)
    assert (await hf.documents.update_workflow("w", total_segments=12)).total_segments == 12
    with pytest.raises(InvalidRequest, match="at least 12"):
        await hf.documents.update_workflow("w", total_segments=11)


async def test_the_runs_of_earlier_attempts_are_remembered(hf: Holdfast) -> None:
    documents = hf.documents
    await begun(documents)
    for run in ("run-1", "run-2", "run-2", "run-3", "run-1"):
        await documents.update_workflow("w", execution_arn=run)
    item, _, _ = await three_items(hf, "w")
    assert item["data"]["execution_arn"] == "run-1"
    assert set(item["data"]["executions"]) == {"run-2", "run-3"}


# --- beginning ------------------------------------------------------------------------------------


async def test_beginning_again_with_the_same_id_returns_the_workflow(either: House) -> None:
    documents = either.open().documents
    await added(documents)
    first = await documents.begin("d", id="w")
    assert await documents.begin("d", id="w") == first
    await documents.add("p", id="other", **FILE)
    with pytest.raises(IdTaken, match="'w'"):
        await documents.begin("other", id="w")
    assert (await documents.counts())["pending"] == 1


async def test_writers_that_begin_the_same_workflow_at_once_begin_it_once(either: House) -> None:
    opened = [either.open() for _ in range(3)]
    await added(opened[0].documents)
    begun_by = await asyncio.gather(
        *(hf.documents.begin("d", id="w") for hf in opened for _ in range(3))
    )
    assert len({workflow.as_dict()["created_at"] for workflow in begun_by}) == 1
    assert (await opened[0].documents.counts())["pending"] == 1
    assert await agreed_status(opened[0], "w") == "pending"


async def test_a_workflow_of_a_missing_document_is_not_begun(hf: Holdfast) -> None:
    with pytest.raises(DocumentNotFound):
        await hf.documents.begin("d", id="w")
    with pytest.raises(DocumentWorkflowNotFound):
        await hf.documents.workflow("w")


async def test_workflows_are_listed_by_document_and_by_project(either: House) -> None:
    documents = either.open().documents
    await added(documents)
    await documents.add("p", id="e", **FILE)
    for number in range(5):
        await documents.begin("d" if number % 2 else "e", id=f"w{number}")
    assert [each.id for each in await documents.workflows(document="d")] == ["w1", "w3"]
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await documents.workflows(project="p", limit=2, cursor=cursor)
        found += [each.id for each in page]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == ["w0", "w1", "w2", "w3", "w4"]
    with pytest.raises(InvalidQuery):
        await documents.workflows()
    with pytest.raises(InvalidQuery):
        await documents.workflows(project="p", document="d")


# --- races and lost answers -----------------------------------------------------------------------


async def test_two_changes_at_once_leave_one_status(either: House) -> None:
    one, other = either.open(), either.open()
    await begun(one.documents)
    results = await asyncio.gather(
        one.documents.set_status("w", "completed"),
        other.documents.set_status("w", "failed", error="x"),
        return_exceptions=True,
    )
    refused = [each for each in results if isinstance(each, StatusRefused)]
    assert len(refused) == 1
    status = await agreed_status(one, "w")
    counts = await one.documents.counts()
    assert counts[status] == sum(counts.values()) == 1  # type: ignore[index]


async def test_stages_of_the_preprocessing_are_written_at_the_same_time(either: House) -> None:
    opened = [either.open() for _ in range(4)]
    await begun(opened[0].documents)
    stages = ("ocr", "bda", "transcribe", "webcrawler")
    await asyncio.gather(
        *(
            hf.documents.update_workflow("w", preprocess={stage: "completed"})
            for hf, stage in zip(opened, stages, strict=True)
        )
    )
    workflow = await opened[0].documents.workflow("w")
    assert workflow.preprocess == dict.fromkeys(stages, "completed")


class LosingAnswers:
    """An engine that loses the answers to transactions: before they are carried out, or after."""

    def __init__(self, engine: SqliteEngine) -> None:
        self._engine = engine
        self.losses: list[str] = []
        self.transactions = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def perform(self, operation: Operation) -> Reply:
        if not isinstance(operation, TransactItems):
            return await self._engine.perform(operation)
        self.transactions += 1
        loss = self.losses.pop(0) if self.losses else ""
        if loss == "before":
            return Reply(error=OutcomeUnknown("lost"))
        reply = await self._engine.perform(operation)
        return Reply(error=OutcomeUnknown("lost")) if loss == "after" else reply


@pytest.mark.parametrize("losses", [["before"], ["after"], ["before", "after"]])
async def test_lost_answers_are_resolved(clock: StepClock, losses: list[str]) -> None:
    engine = LosingAnswers(SqliteEngine(MEMORY, clock=clock))
    store = Store(engine, None, url="sqlite://:memory:", meter=Meter())
    async with Holdfast("sqlite://:memory:", store=store, clock=clock) as hf:
        documents = hf.documents
        await documents.projects.create("Contracts", id="p")

        async def losing(call: Any) -> Any:
            engine.losses = list(losses)
            task = asyncio.ensure_future(call)
            async with asyncio.timeout(30):
                while not task.done():
                    if clock.sleeping:  # it waits before it asks again
                        clock.advance(1)
                    await clock.sleep(0)
            assert engine.losses == []
            return await task

        await losing(documents.add("p", id="d", **FILE))
        await losing(documents.begin("d", id="w"))
        await losing(documents.set_status("w", "in_progress"))
        await losing(documents.set_status("w", "completed"))
        again = await losing(documents.begin_again("w"))
        assert again.attempt == 2
        assert await agreed_status(hf, "w") == "pending"
        assert await documents.counts() == {
            "pending": 1,
            "in_progress": 0,
            "completed": 0,
            "failed": 0,
        }


# --- properties -----------------------------------------------------------------------------------


def stored(status: WorkflowStatus = "pending") -> StoredWorkflow:
    return StoredWorkflow(
        tenant="acme",
        id="w",
        document="d",
        kind="DOC",
        generation="g",
        project="p",
        file_uri="u",
        file_name="n",
        file_type="t",
        status=status,
        created_ms=0,
        updated_ms=0,
    )


@given(st.lists(st.one_of(STATUSES, st.just("again")), max_size=20))
def test_statuses_follow_the_arrows(wanted: list[Any]) -> None:
    workflow = stored()
    for each in wanted:
        before = workflow
        try:
            if each == "again":
                workflow = begun_again(before, now_ms=1)
                assert before.status in ("completed", "failed")
                assert workflow.attempt == before.attempt + 1
            else:
                request = ChangeRequest(status=each)
                workflow = changed_workflow(before, request, now_ms=1) or before
                assert workflow.status == each
                assert each == before.status or each in NEXT_STATUSES[before.status]
        except StatusRefused:
            allowed = (
                not NEXT_STATUSES[before.status]
                if each == "again"
                else (each == before.status or each in NEXT_STATUSES[before.status])
            )
            assert not allowed
        if workflow is not before:
            assert workflow.revision == before.revision + 1
            assert workflow.updated_ms > before.updated_ms


WRITER = st.lists(st.one_of(STATUSES, st.just("again"), st.just("ocr")), min_size=1, max_size=4)


@given(writers=st.lists(WRITER, min_size=2, max_size=4), seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_interleaving_of_writers_leaves_three_items_that_agree(
    writers: list[list[Any]], seed: int
) -> None:
    asyncio.run(interleaved(writers, seed))


async def interleaved(writers: list[list[Any]], seed: int) -> None:
    """Let writers change one workflow at once, in an order that follows from the seed."""
    engine = Shuffled(SqliteEngine(MEMORY), seed)
    store = Store(engine, None, url="sqlite://:memory:", meter=Meter())
    async with Holdfast("sqlite://:memory:", store=store) as hf:
        documents = hf.documents
        await added(documents)
        await documents.begin("d", id="w")

        async def write(changes: list[Any]) -> None:
            for change in changes:
                try:
                    if change == "again":
                        await documents.begin_again("w")
                    elif change == "ocr":
                        await documents.update_workflow("w", preprocess={"ocr": "completed"})
                    else:
                        await documents.set_status("w", change)
                except StatusRefused:
                    continue

        await asyncio.gather(*map(write, writers))
        status = await agreed_status(hf, "w")
        counts = await documents.counts()
        assert counts[status] == sum(counts.values()) == 1  # type: ignore[index]


class Shuffled:
    """An engine that lets each operation wait for a few others, as a seed says."""

    def __init__(self, engine: SqliteEngine, seed: int) -> None:
        self._engine = engine
        self._state = seed or 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def perform(self, operation: Operation) -> Reply:
        self._state = (self._state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64
        for _ in range(self._state >> 61):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(turn.set_result, None)
            await turn
        return await self._engine.perform(operation)


# --- hostile input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"status": "done"}, "status"),
        ({"status": None}, "status"),
        ({"status": ["failed"]}, "status"),
        ({"status": "in_progress", "total_segments": -1}, "total_segments"),
        ({"status": "in_progress", "total_segments": 10**7}, "total_segments"),
        ({"status": "in_progress", "total_segments": True}, "total_segments"),
        ({"status": "in_progress", "execution_arn": ""}, "execution_arn"),
        ({"status": "in_progress", "execution_arn": "x" * 300}, "execution_arn"),
        ({"status": "in_progress", "preprocess": {"fax": "completed"}}, "preprocess"),
        ({"status": "in_progress", "preprocess": {"ocr": "done"}}, "preprocess"),
        ({"status": "in_progress", "preprocess": ["ocr"]}, "preprocess"),
        ({"status": "in_progress", "error": 7}, "error"),
        ({"status": "in_progress", "attempt": 0}, "attempt"),
        ({"status": "in_progress", "attempt": "1"}, "attempt"),
    ],
)
async def test_wrong_changes_are_refused_before_anything_is_written(
    hf: Holdfast, values: dict[str, Any], field: str
) -> None:
    await added(hf.documents)
    await hf.documents.begin("d", id="w")
    before = await three_items(hf, "w")
    with pytest.raises(InvalidRequest) as caught:
        await hf.documents.set_status("w", **values)
    assert caught.value.field == field
    assert await three_items(hf, "w") == before


async def test_a_long_error_is_cut(hf: Holdfast) -> None:
    await begun(hf.documents)
    ended = await hf.documents.set_status("w", "failed", error="\ud800é" * 100_000)
    assert ended.error is not None
    assert len(ended.error.encode()) <= 1_024
    assert await hf.documents.workflow("w") == ended
