"""The step ``format_parser``: reads the pages of a file, group by group, in child processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import Any, TypedDict

from documents.catalogue import group_range
from documents.groups import group_result, read_groups, report_progress
from documents.processing import Desk, Job, Processing, Work
from documents.segments import SegmentContent, SegmentRecord
from documents.steps import ATTEMPTS, TRANSIENT
from holdfast import Context, Graph, Retry
from holdfast.integrations.reading import ReadSegment, SegmentFailure

__all__ = ["add_parsing", "store_image"]

_ENDINGS = {"image/jpeg": "jpg", "image/png": "png"}


class Parsed(TypedDict, total=False):
    """What the parser made."""

    parsed: str


def add_parsing(graph: Graph[Processing], desk: Desk) -> Callable[[Processing, Context], object]:
    """Add the node ``format_parser`` to the graph, and return it."""
    retry = Retry(attempts=ATTEMPTS, on=TRANSIENT)

    @graph.item(retry=retry)
    async def parse_pages(index: int, ctx: Context) -> dict[str, Any]:
        work = Work(desk, ctx, Job.of(ctx.given))
        indices = group_range(index, work.job.segments)
        records: dict[int, SegmentRecord] = {}
        async with (
            work.file() as path,
            aclosing(work.reader.read(path, work.job.type, indices)) as pages,
        ):
            async for page in pages:
                records[page.index] = await _stored(work, page)
        await report_progress(work, "format_parser", index, desk.settings.readers)
        return await group_result(work, "parsed", index, records)

    @graph.node(retry=retry)
    async def format_parser(state: Processing, ctx: Context) -> Parsed:
        job = state.job
        if job is None or "format_parser" not in state.needed:
            return {}
        work = Work(desk, ctx, job)
        async with work.steps.running("format_parser", total=job.segments) as workflow:
            uri = await read_groups(
                ctx,
                work,
                parse_pages,
                name="parsed",
                settings=desk.settings,
                attempt=workflow.attempt,
            )
        return {"parsed": uri}

    return format_parser


async def store_image(work: Work, page: ReadSegment) -> str:
    """Store the image of a page, and return its address, or "" if it has none."""
    if page.image is None:
        return ""
    ending = _ENDINGS.get(page.image_type or "", "bin")
    return await work.shelf.put_bytes(f"images/{page.index + 1:05}", page.image, ending)


async def _stored(work: Work, page: ReadSegment | SegmentFailure) -> SegmentRecord:
    if isinstance(page, SegmentFailure):
        return SegmentRecord(error=f"{page.reason}: {page.detail}"[:300])
    image_uri = await store_image(work, page)
    content = SegmentContent(
        index=page.index + 1,
        title=page.title,
        text=page.text,
        tables=[{"rows": table} for table in page.tables],
        image_uri=image_uri,
    )
    uri = await work.shelf.put(f"segments/{page.index + 1:05}", content.as_json())
    return SegmentRecord(uri=uri, image_uri=image_uri, needs_ocr=page.needs_ocr)
