"""The step ``paddleocr_processor``: recognizes the text of pages that have none.

The project's ``ocr_model`` chooses the engine. The step runs beside the parser, so it looks for
these pages itself, which is quick as long as no page is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypedDict

from documents.catalogue import group_range
from documents.groups import group_result, read_groups, report_progress
from documents.parsing import store_image
from documents.processing import Desk, Job, Processing, Work
from documents.segments import SegmentContent, SegmentRecord
from documents.steps import ATTEMPTS, TRANSIENT, StepFailed
from holdfast import Context, Graph, Retry
from holdfast.errors import CallFailed, ExtractionUnavailable, NotConfigured
from holdfast.integrations.reading import OcrEngine, ReadSegment

__all__ = ["add_recognition"]

_TRANSIENT = (ExtractionUnavailable, *TRANSIENT)


class Recognized(TypedDict, total=False):
    """What the engine made."""

    recognized: str


def add_recognition(
    graph: Graph[Processing], desk: Desk
) -> Callable[[Processing, Context], object]:
    """Add the node ``paddleocr_processor`` to the graph, and return it."""
    retry = Retry(attempts=ATTEMPTS, on=TRANSIENT)

    @graph.item(retry=retry)
    async def recognize_pages(index: int, ctx: Context) -> dict[str, Any]:
        work = Work(desk, ctx, Job.of(ctx.given))
        records: dict[int, SegmentRecord] = {}
        async with work.file() as path:
            wanted = await _pages_without_text(work, path, index)
            if wanted:
                engine = desk.recognizer(work.job.ocr_model)
                async with aclosing(work.reader.read(path, work.job.type, wanted)) as pages:
                    async for page in pages:
                        # The parser says why a page cannot be read.
                        if isinstance(page, ReadSegment) and page.image is not None:
                            records[page.index] = await _recognized(work, ctx, engine, page)
        await report_progress(work, "paddleocr_processor", index, desk.settings.readers)
        return await group_result(work, "recognized", index, records)

    @graph.node(retry=retry)
    async def paddleocr_processor(state: Processing, ctx: Context) -> Recognized:
        job = state.job
        if job is None or "paddleocr_processor" not in state.needed:
            return {}
        work = Work(desk, ctx, job)
        async with work.steps.running("paddleocr_processor", total=job.segments) as workflow:
            uri = await read_groups(
                ctx,
                work,
                recognize_pages,
                name="recognized",
                settings=desk.settings,
                attempt=workflow.attempt,
                counts_whole=False,
            )
        return {"recognized": uri}

    return paddleocr_processor


async def _pages_without_text(work: Work, path: Path, group: int) -> list[int]:
    indices = group_range(group, work.job.segments)
    if work.job.kind == "image":
        return list(indices)
    async with aclosing(work.reader.read(path, work.job.type, indices, images=False)) as pages:
        return [
            page.index async for page in pages if isinstance(page, ReadSegment) and page.needs_ocr
        ]


async def _recognized(
    work: Work, ctx: Context, engine: OcrEngine, page: ReadSegment
) -> SegmentRecord:
    """Return the record of a page; its text is recognized, and paid, once."""
    number = page.index + 1
    caller = ctx.with_options(
        key=f"{ctx.key}/ocr/{number}", retry=Retry(attempts=ATTEMPTS, on=_TRANSIENT)
    )
    try:
        stored = await caller.call(_reading_of(work, engine, page), number)
    except CallFailed as error:
        if error.is_a(NotConfigured):
            raise StepFailed(error.reason) from error
        return SegmentRecord(error=error.reason[:300] or "the engine failed")
    return SegmentRecord.of(stored)


def _reading_of(
    work: Work, engine: OcrEngine, page: ReadSegment
) -> Callable[[int], Coroutine[Any, Any, dict[str, Any]]]:
    async def recognize(number: int) -> dict[str, Any]:
        """Recognize a page, and store its content; what is recorded is small."""
        assert page.image is not None
        found = await engine.recognize(page.image, language=work.job.language)
        sure = [line.confidence for line in found.lines]
        image_uri = await store_image(work, page)
        content = SegmentContent(
            index=number,
            title=page.title,
            text=found.text,
            source="ocr",
            ocr={
                "engine": engine.name,
                "confidence": round(sum(sure) / len(sure), 3) if sure else 0.0,
            },
            image_uri=image_uri,
        )
        uri = await work.shelf.put(f"segments/{number:05}", content.as_json())
        return SegmentRecord(uri=uri, image_uri=image_uri).as_json()

    return recognize
