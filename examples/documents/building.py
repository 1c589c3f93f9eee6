"""The step ``segment_builder``: one list of segments from what the steps before it made.

A segment's content is where the parser or the OCR engine stored it. It is stored again only where
both that and Data Automation say something. The texts are added to the search.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypedDict

from documents.catalogue import group_range
from documents.groups import group_result, read_groups, report_progress
from documents.pieces import store_content
from documents.preparation import stages
from documents.processing import Desk, Job, Processing, Work
from documents.segments import SegmentContent, SegmentRecord
from documents.steps import ATTEMPTS, TRANSIENT, StepFailed
from holdfast import Context, Graph, Retry
from holdfast.display import get_logger
from holdfast.errors import SearchUnavailable
from holdfast.model.segment_search import SegmentEntry

__all__ = ["add_building", "chosen_record"]

_log = get_logger("documents")
_CHUNK = 5
_NO_RECORD = SegmentRecord(error="no step read it")


class Built(TypedDict):
    """What the builder made."""

    built: str
    segments: int


def add_building(graph: Graph[Processing], desk: Desk) -> Callable[[Processing, Context], object]:
    """Add the node ``segment_builder`` to the graph, and return it."""
    retry = Retry(attempts=ATTEMPTS, on=TRANSIENT)

    @graph.item(retry=retry)
    async def build_segments(index: int, ctx: Context) -> dict[str, Any]:
        sources = dict(ctx.given["sources"])
        work = Work(desk, ctx, Job.of(ctx.given["job"]))
        indices = group_range(index, work.job.segments)
        found = {
            name: await work.catalogue(uri).group(index) for name, uri in sources.items() if uri
        }
        records: dict[int, SegmentRecord] = {}
        entries: list[SegmentEntry] = []
        for each in indices:
            record = chosen_record({name: group.get(each) for name, group in found.items()})
            if not record.error:
                content = SegmentContent.of(await work.shelf.load(record.uri))
                described = found.get("automated", {}).get(each)
                if described is not None and described.uri != record.uri:
                    content = await _with_description(work, content, described)
                    record = await store_content(work, content)
                entries.append(SegmentEntry(each + 1, content.search_text(), content.title))
            records[each] = record
        await _add_to_search(work, ctx.tenant, entries)
        await report_progress(work, "segment_builder", index, desk.settings.readers)
        return await group_result(work, "built", index, records)

    @graph.node(retry=retry)
    async def segment_builder(state: Processing, ctx: Context) -> Built:
        assert state.job is not None  # the node before it made it
        job = replace(state.job, segments=state.segments or state.job.segments)
        work = Work(desk, ctx, job)
        async with work.steps.running("segment_builder", total=job.segments):
            await work.steps.update(preprocess=stages(state.needed, "completed"))
            if not job.segments:
                raise StepFailed(f"{job.name!r:.100} has no content")
            sources = {
                "parsed": state.parsed,
                "recognized": state.recognized,
                "automated": state.automated,
                "transcribed": state.transcribed,
                "crawled": state.crawled,
            }
            uri = await read_groups(
                ctx,
                work,
                build_segments,
                name="built",
                settings=desk.settings,
                chunk=_CHUNK,
                given={"job": job.as_json(), "sources": sources},
            )
        return {"built": uri, "segments": job.segments}

    return segment_builder


def chosen_record(found: dict[str, SegmentRecord | None]) -> SegmentRecord:
    """Return the record of a segment from those of several steps."""
    parsed, recognized = found.get("parsed"), found.get("recognized")
    if parsed is not None and (parsed.error or parsed.needs_ocr) and recognized is not None:
        # Without the text of its image, a page with an image only would look empty.
        return recognized if not (recognized.error and parsed.error) else parsed
    for name in ("parsed", "transcribed", "crawled", "automated"):
        if (record := found.get(name)) is not None:
            return record
    return _NO_RECORD


async def _with_description(
    work: Work, content: SegmentContent, described: SegmentRecord
) -> SegmentContent:
    said = SegmentContent.of(await work.shelf.load(described.uri))
    return replace(content, description=said.text)


async def _add_to_search(work: Work, tenant: str, entries: list[SegmentEntry]) -> None:
    """Add segments to the search, if there is one. `holdfast documents reindex` adds them later."""
    search = work.documents.search
    if search is None or not entries:
        return
    job = work.job
    try:
        await search.add(tenant, job.project, job.document, job.workflow, entries)
    except SearchUnavailable as error:
        _log.warning("segments of %s were not added to the search: %s", job.document, error)
