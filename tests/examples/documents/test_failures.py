"""What fails is the failure of its segment or of its step, and a retry redoes nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from documents.upkeep import end_abandoned
from holdfast import Budget
from holdfast.errors import ExtractionFailed, ModelRefused, NotConfigured
from holdfast.integrations.reading import FileReader, ReadSegment, SegmentFailure
from tests.examples.documents.conftest import (
    PATIENCE_SECONDS,
    PROJECT,
    Bench,
    CountedModels,
    KnownText,
    Working,
)
from tests.examples.documents.files import pdf_file

PAGES = [f"Elm Bank pays Fir Works for {n}00.00 USD." for n in range(1, 31)]


class TornPages(FileReader):
    """A reader that cannot read some pages."""

    def __init__(self, *torn: int) -> None:
        super().__init__()
        self.torn = set(torn)
        self.read_indices: set[int] = set()
        """The pages that were read with their images."""

    async def read(
        self, path: Any, type: Any, indices: Sequence[int], images: bool = True
    ) -> AsyncGenerator[ReadSegment | SegmentFailure]:
        async for each in super().read(path, type, indices, images=images):
            if images:
                self.read_indices.add(each.index)
            if each.index in self.torn:
                yield SegmentFailure(each.index, "crash", "the parser crashed")
            else:
                yield each


async def test_a_page_that_cannot_be_read_fails_alone(working: Working, tmp_path: Path) -> None:
    pdf_file(tmp_path / "a.pdf", PAGES)
    async with working(reader=TornPages(4)) as bench:
        workflow = await bench.processed(tmp_path / "a.pdf")
        assert (workflow.status, workflow.error) == ("completed", None)
        segments = await bench.segments(workflow)
        failed = [(each.index, each.error) for each in segments if each.status == "failed"]
        assert failed == [(5, "crash: the parser crashed")]
        assert len(segments) == 30


async def test_too_many_torn_pages_fail_the_step_with_the_reason(
    working: Working, tmp_path: Path, counted: CountedModels
) -> None:
    pdf_file(tmp_path / "a.pdf", PAGES)
    async with working(reader=TornPages(*range(3, 15))) as bench:
        workflow = await bench.processed(tmp_path / "a.pdf")
        assert workflow.status == "failed"
        assert workflow.error == (
            "format_parser: 12 of 30 segments failed, 5% may: number 4, 5, 6, 7, 8 and 7 more. "
            "The first one: crash: the parser crashed"
        )
        assert (await bench.steps(workflow))["format_parser"].status == "failed"
        assert not counted.asked
        document = workflow.document
    mended = TornPages(13)
    async with working(reader=mended) as bench:
        (workflow,) = await bench.hf.documents.workflows(document=document)
        await bench.hf.run(f"doc-{workflow.id}").retry()
        await bench.hf.run(f"doc-{workflow.id}").until("finished", "failed", timeout=60)
        workflow = await bench.hf.documents.workflow(workflow.id)
        assert (workflow.status, workflow.error) == ("completed", None)
        # The pages from 20 on were read before.
        assert mended.read_indices == set(range(20))
        failed = [e.index for e in await bench.segments(workflow) if e.status == "failed"]
        assert failed == [14]


async def test_a_segment_that_a_model_refuses_is_retried_alone(
    bench: Bench, counted: CountedModels, tmp_path: Path
) -> None:
    pdf_file(tmp_path / "a.pdf", PAGES)
    counted.refused = [(PAGES[10], ModelRefused("the content is not permitted"))]
    added = await bench.add(tmp_path / "a.pdf")
    workflow = await bench.ended(added)
    assert (workflow.status, workflow.error) == ("completed", None)
    documents = bench.hf.documents
    failed = await documents.segment(workflow.id, 11)
    assert (failed.status, failed.image_analysis) == ("failed", [])
    assert "not permitted" in (failed.error or "")
    before = dict(counted.asked)
    counted.refused = []
    run = bench.run(added)
    (analysis,) = [map.map for map in await run.maps() if map.item == "analyze_segment"]
    again = await run.map(analysis).retry(10)
    await bench.hf.run(again).until("finished", "failed", timeout=60)
    mended = await documents.segment(workflow.id, 11)
    assert (mended.status, mended.error) == ("completed", None)
    assert mended.image_analysis[0]["entities"][:2] == ["Elm Bank", "Fir Works"]
    asked_again = {prompt for prompt, n in counted.asked.items() if n != before.get(prompt)}
    assert [PAGES[10] in prompt for prompt in asked_again] == [True]


async def test_a_retry_asks_only_about_what_is_missing(
    bench: Bench, counted: CountedModels, tmp_path: Path
) -> None:
    pdf_file(tmp_path / "a.pdf", PAGES)
    counted.refused = [(page, ModelRefused("out of service")) for page in PAGES[20:]]
    added = await bench.add(tmp_path / "a.pdf")
    workflow = await bench.ended(added)
    assert workflow.status == "failed"
    assert (workflow.error or "").startswith("segment_analyzer: ")
    assert "out of service" in (workflow.error or "")
    statuses = await bench.statuses(workflow)
    assert statuses["failed"] == {"segment_analyzer"}
    assert statuses["pending"] == {"graph_builder", "document_summarizer"}
    good = [page for page in PAGES if any(page in prompt for prompt in counted.asked)]
    counted.refused = []
    await bench.run(added).retry()
    workflow = await bench.ended(added)
    assert (workflow.status, workflow.error, workflow.attempt) == ("completed", None, 2)
    assert {each.status for each in await bench.segments(workflow)} == {"completed"}
    assert len(good) >= 20
    for page in PAGES[:20]:
        # The same shared answer or record, whichever worker asks: never paid twice.
        assert sum(n for prompt, n in counted.asked.items() if f"\n{page}\n</seg" in prompt) == 1


async def test_a_missing_ocr_engine_fails_that_step_and_a_retry_goes_on(
    bench: Bench, ocr: KnownText, tmp_path: Path
) -> None:
    pdf_file(tmp_path / "a.pdf", ["", "", "Some text."])
    ocr.error = NotConfigured("tesseract is not installed", what="ocr")
    added = await bench.add(tmp_path / "a.pdf")
    workflow = await bench.ended(added)
    assert workflow.status == "failed"
    assert "tesseract is not installed" in (workflow.error or "")
    assert "paddleocr_processor" in (await bench.statuses(workflow))["failed"]
    ocr.error = None
    await bench.run(added).retry()
    workflow = await bench.ended(added)
    assert (workflow.status, workflow.error) == ("completed", None)


async def test_an_image_that_cannot_be_recognized_is_its_segments_failure(
    working: Working, ocr: KnownText, tmp_path: Path
) -> None:
    pdf_file(tmp_path / "a.pdf", [*PAGES[:3], ""])
    ocr.error = ExtractionFailed("the image is too dark")
    async with working() as first:
        settings = replace(first.app.settings, tolerate=0.3)
    async with working(settings=settings) as bench:
        workflow = await bench.processed(tmp_path / "a.pdf")
        assert workflow.status == "completed"
        (failed,) = [e for e in await bench.segments(workflow) if e.status == "failed"]
        assert (failed.index, failed.error) == (4, "the image is too dark")


async def test_a_workflow_whose_run_was_cancelled_ends(
    working: Working, ocr: KnownText, tmp_path: Path
) -> None:
    pdf_file(tmp_path / "a.pdf", ["Some text."])
    async with working() as bench:
        d = bench.hf.documents
        added = await bench.add(tmp_path / "a.pdf")
        workflow = await bench.ended(added)
        assert await end_abandoned(bench.hf) == []
        begun = await d.begin(workflow.document)
        await d.set_status(begun.id, "in_progress", execution_arn="doc-gone")
        assert await end_abandoned(bench.hf) == [begun.id]
        ended = await d.workflow(begun.id)
        assert (ended.status, ended.error) == ("failed", "its run is no longer stored")


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_deleted_document_stays_deleted(bench: Bench, tmp_path: Path, when: str) -> None:
    pdf_file(tmp_path / "a.pdf", PAGES[:2])
    added = await bench.add(tmp_path / "a.pdf")
    if when == "after":
        await bench.ended(added)
    await bench.hf.documents.delete(added.document)
    assert not [*await bench.hf.documents.in_progress()]


async def test_no_segment_is_analysed_beyond_the_budget(
    bench: Bench, counted: CountedModels, tmp_path: Path
) -> None:
    pdf_file(tmp_path / "a.pdf", PAGES[:12])
    d = bench.hf.documents
    place = d.place()
    file = await d.files.put_path(tmp_path / "a.pdf", place=place)
    facts = {"file_uri": file.uri, "file_name": "a.pdf", "file_type": "application/pdf"}
    document = await d.add(PROJECT, **facts, place=place)
    workflow = await d.begin(document.id)
    graph, given = bench.app.graph, {"workflow": workflow.id}
    run = await bench.hf.start(graph, given, id=f"doc-{workflow.id}", budget=Budget(tokens=1))

    async def analyses_wait() -> bool:
        return any(map.item == "analyze_segment" for map in await run.maps())

    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await analyses_wait():
            await bench.hf.clock.sleep(0.02)
    assert not counted.asked
    await run.set_budget(Budget(tokens=2_000_000))
    assert (await run.result(timeout=PATIENCE_SECONDS)).segments == 12
    assert len(counted.asked) == 13
    assert (await d.workflow(workflow.id)).status == "completed"
