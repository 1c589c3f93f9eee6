"""Steps: parallel writers of one item, each of which changes its own attribute."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import DocumentWorkflowNotFound, InvalidRequest, StatusRefused
from holdfast.model.document import STEP_LABELS, STEPS
from holdfast.records.document_keys import steps_key
from tests.documents.support import added, begun
from tests.engine.support import House, store_of, units_of


async def test_a_step_has_the_attributes_of_the_source(either: House) -> None:
    hf = either.open()
    documents = hf.documents
    await begun(documents)
    started = await documents.start_step("w", "segment_prep", total=10)
    assert (started.status, started.total, started.done) == ("in_progress", 10, 0)
    assert started.started_at is not None
    either.clock.advance(5)
    progressed = await documents.progress_step("w", "segment_prep", done=4)
    assert (progressed.done, progressed.started_at) == (4, started.started_at)
    ended = await documents.end_step("w", "segment_prep")
    assert ended.ended_at is not None
    assert (ended.ended_at - started.started_at).total_seconds() == 5
    assert ended.done == 10
    steps = await documents.steps("w")
    assert tuple(steps) == STEPS
    assert steps["segment_prep"] == ended
    assert [step.label for step in steps.values()] == list(STEP_LABELS.values())
    assert steps["transcribe"].status == "pending"
    failed = await documents.end_step("w", "transcribe", status="failed", error="no engine")
    assert (failed.status, failed.error) == ("failed", "no engine")
    item = await store_of(hf).table.get(steps_key("default", "w"))
    assert item is not None
    assert item["segment_prep"]["status"] == "completed"
    assert item["segment_prep"]["label"] == "Segment preparation"
    assert item["transcribe"]["error"] == "no engine"


async def test_all_steps_are_written_at_the_same_time(either: House) -> None:
    opened = [either.open() for _ in range(5)]
    await begun(opened[0].documents)

    async def run(hf: Holdfast, step: Any) -> None:
        await hf.documents.start_step("w", step, total=3)
        for done in (1, 2):
            await hf.documents.progress_step("w", step, done=done)
        await hf.documents.end_step("w", step)

    await asyncio.gather(*(run(opened[n % 5], step) for n, step in enumerate(STEPS)))
    steps = await opened[0].documents.steps("w")
    assert {(step.status, step.done) for step in steps.values()} == {("completed", 3)}
    # The status of the workflow and its place in the index stay as they are.
    assert [each.id for each in await opened[0].documents.in_progress()] == ["w"]


async def test_steps_and_statuses_are_written_at_the_same_time(either: House) -> None:
    one, other = either.open(), either.open()
    await added(one.documents)
    await one.documents.begin("d", id="w")
    await asyncio.gather(
        one.documents.set_status("w", "in_progress", total_segments=5),
        other.documents.start_step("w", "segment_prep"),
        other.documents.start_step("w", "webcrawler"),
    )
    steps = await one.documents.steps("w")
    assert steps["segment_prep"].status == steps["webcrawler"].status == "in_progress"
    assert (await one.documents.workflow("w")).status == "in_progress"


async def test_a_repeated_start_keeps_the_first_time(hf: Holdfast, clock: Any) -> None:
    await begun(hf.documents)
    first = await hf.documents.start_step("w", "segment_prep")
    clock.advance(60)
    assert await hf.documents.start_step("w", "segment_prep") == first
    ended = await hf.documents.end_step("w", "segment_prep")
    clock.advance(60)
    assert await hf.documents.end_step("w", "segment_prep") == ended
    again = await hf.documents.start_step("w", "segment_prep")
    assert again.ended_at is None
    assert first.started_at is not None
    assert again.started_at is not None
    assert (again.started_at - first.started_at).total_seconds() == 120


async def test_late_progress_takes_nothing_back(hf: Holdfast) -> None:
    await begun(hf.documents)
    await hf.documents.start_step("w", "segment_analyzer", total=9)
    await asyncio.gather(
        *(hf.documents.progress_step("w", "segment_analyzer", done=n) for n in (3, 7, 5, 1))
    )
    assert (await hf.documents.steps("w"))["segment_analyzer"].done == 7


async def test_changes_that_make_no_sense_are_refused(hf: Holdfast) -> None:
    documents = hf.documents
    await begun(documents)
    with pytest.raises(StatusRefused, match="start_step"):
        await documents.end_step("w", "segment_prep")
    with pytest.raises(StatusRefused):
        await documents.progress_step("w", "segment_prep", done=1)
    await documents.end_step("w", "bda_processor", status="skipped")
    with pytest.raises(StatusRefused):
        await documents.end_step("w", "bda_processor")
    await documents.start_step("w", "segment_prep")
    await documents.set_status("w", "failed")
    with pytest.raises(StatusRefused, match="failed"):
        await documents.start_step("w", "transcribe")
    # What had started may end: that is what happened.
    assert (await documents.end_step("w", "segment_prep")).status == "completed"


async def test_a_step_costs_one_read_and_one_update(either: House) -> None:
    hf = either.open()
    await begun(hf.documents)
    await hf.documents.steps("w")
    before = units_of(hf, "document")
    await hf.documents.start_step("w", "segment_prep")
    after = units_of(hf, "document")
    assert after.reads - before.reads == 1
    assert after.writes - before.writes == 1  # an item below 1 KB, and no index


@pytest.mark.parametrize("step", ["", "fax", None, 7, ["segment_prep"], "status", "x" * 10**6])
async def test_an_unknown_step_is_refused(hf: Holdfast, step: Any) -> None:
    await begun(hf.documents)
    for call in (
        hf.documents.start_step("w", step),
        hf.documents.progress_step("w", step, done=1),
        hf.documents.end_step("w", step),
    ):
        with pytest.raises(InvalidRequest) as caught:
            await call
        assert caught.value.field == "step"


@pytest.mark.parametrize("status", ["pending", "in_progress", "done", None, 7])
async def test_a_status_that_is_no_end_is_refused(hf: Holdfast, status: Any) -> None:
    await begun(hf.documents)
    await hf.documents.start_step("w", "segment_prep")
    with pytest.raises(InvalidRequest):
        await hf.documents.end_step("w", "segment_prep", status=status)


async def test_steps_of_another_tenant_are_not_found(hf: Holdfast) -> None:
    await begun(hf.documents)
    with pytest.raises(DocumentWorkflowNotFound):
        await hf.documents.steps("w", tenant="acme")
    with pytest.raises(DocumentWorkflowNotFound):
        await hf.documents.start_step("w", "segment_prep", tenant="acme")
