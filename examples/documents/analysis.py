"""The step ``segment_analyzer``: a model says what each segment says.

The answers are recorded, so none is paid twice. Equal segments are one question for a day, also in
other documents. Each segment writes its item of the table once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypedDict

from documents.groups import map_segments
from documents.processing import Desk, Job, Processing, Work
from documents.prompts import SegmentAnalysis, analysis_prompt
from documents.segments import SegmentContent, SegmentRecord, is_blank
from documents.steps import ATTEMPTS, TRANSIENT
from holdfast import Context, Graph, Mapped, Retry
from holdfast.errors import CallFailed, InvalidAnswer

__all__ = ["SegmentFailed", "add_analysis", "bounded_analysis", "shown_analysis"]

# The results of a chunk are its state until it ends: 25 of 8 KB at most.
_CHUNK = 25
_REPORT_EVERY = 10
_ANALYSIS_BYTES_MAX = 8 * 1024
_ANSWER_TOKENS_MAX = 4_000
_SUMMARY_CHARS_MAX = 1_000
_ENTITIES_MAX = 20
_NAME_CHARS_MAX = 100
# What the item in the table shows: with its addresses it stays below 1 KB, which is one write unit.
_SHOWN_BYTES_MAX = 360
_SHOWN_ENTITIES = 5
_SHOWN_NAME_CHARS = 30
_REASON_CHARS_MAX = 300


class SegmentFailed(Exception):
    """A segment has no content, or no model could read it."""


class Analysed(TypedDict):
    """What the analyzer made."""

    analysed: Mapped


def add_analysis(graph: Graph[Processing], desk: Desk) -> Callable[[Processing, Context], object]:
    """Add the node ``segment_analyzer`` to the graph, and return it."""
    retry = Retry(attempts=ATTEMPTS, on=TRANSIENT)

    @graph.item(retry=retry)
    async def analyze_segment(index: int, ctx: Context) -> dict[str, Any]:
        work = Work(desk, ctx, Job.of(ctx.given))
        record = await work.catalogue(work.job.source).record(index)
        record = record or SegmentRecord(error="no step read it")
        try:
            analysis, model = await _analysed(work, ctx, record, share=desk.settings.share)
        except (SegmentFailed, CallFailed, InvalidAnswer) as error:
            reason = " ".join(str(error).split())[:_REASON_CHARS_MAX]
            await _put(work, ctx, index, record, [], error=reason)
            raise SegmentFailed(reason) from None
        await _put(work, ctx, index, record, [shown_analysis(analysis, model)])
        if index % _REPORT_EVERY == 0:
            # Those that begin at the same time may not have ended.
            await work.steps.progress("segment_analyzer", index - desk.settings.concurrency)
        return analysis

    @graph.node(retry=retry)
    async def segment_analyzer(state: Processing, ctx: Context) -> Analysed:
        assert state.job is not None  # the first node made it
        work = Work(desk, ctx, state.job)
        async with work.steps.running("segment_analyzer", total=state.segments):
            await work.steps.update(total_segments=state.segments)
            done = await map_segments(
                ctx,
                analyze_segment,
                state.segments,
                chunk=_CHUNK,
                concurrency=desk.settings.concurrency,
                tolerate=desk.settings.tolerate,
                given=state.job.as_json(source=state.built),
            )
        return {"analysed": done}

    return segment_analyzer


def shown_analysis(analysis: dict[str, Any], model: str) -> dict[str, Any]:
    """Return what the table shows of an analysis; the whole of it is in the results of the map."""
    names = [each["name"][:_SHOWN_NAME_CHARS] for each in analysis["entities"]]
    shown: dict[str, Any] = {"model": model, "summary": "", "entities": names[:_SHOWN_ENTITIES]}
    while len(_encoded(shown)) > _SHOWN_BYTES_MAX and shown["entities"]:
        shown["entities"] = shown["entities"][:-1]
    room = _SHOWN_BYTES_MAX - len(_encoded(shown))
    shown["summary"] = analysis["summary"].encode()[: max(0, room)].decode(errors="ignore")
    return shown


def _encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


async def _analysed(
    work: Work, ctx: Context, record: SegmentRecord, *, share: bool
) -> tuple[dict[str, Any], str]:
    """Return what the model says, as JSON of a bounded size, and the name of the model.

    Raises:
        SegmentFailed: there is no content.
        CallFailed, InvalidAnswer: the model does not answer as it should.
    """
    if record.error:
        raise SegmentFailed(record.error)
    content = SegmentContent.of(await work.shelf.load(record.uri))
    if is_blank(content):
        return {"summary": "", "entities": [], "relations": []}, ""
    answer = await ctx.model(
        "small",
        analysis_prompt(content.prompt_text(), await work.instructions()),
        output=SegmentAnalysis,
        max_tokens=_ANSWER_TOKENS_MAX,
        fallback="large",
        share=share,
        key=f"{ctx.key}/segment",
        record="none",
    )
    return bounded_analysis(answer.value), answer.model


def bounded_analysis(said: SegmentAnalysis) -> dict[str, Any]:
    """Return an analysis as JSON, without what a model may write too much of."""
    entities, relations = said.entities[:_ENTITIES_MAX], said.relations[:_ENTITIES_MAX]
    while True:
        analysis = {
            "summary": said.summary[:_SUMMARY_CHARS_MAX],
            "entities": [
                {"name": each.name[:_NAME_CHARS_MAX], "kind": each.kind} for each in entities
            ],
            "relations": [
                {
                    "source": each.source[:_NAME_CHARS_MAX],
                    "relation": each.relation[:_NAME_CHARS_MAX],
                    "target": each.target[:_NAME_CHARS_MAX],
                }
                for each in relations
            ],
        }
        # In some scripts a character has four bytes.
        if len(_encoded(analysis)) <= _ANALYSIS_BYTES_MAX:
            return analysis
        entities, relations = entities[: len(entities) // 2], relations[: len(relations) // 2]


async def _put(
    work: Work,
    ctx: Context,
    index: int,
    record: SegmentRecord,
    analyses: list[dict[str, Any]],
    *,
    error: str | None = None,
) -> None:
    """Write the segment's item, once: a repetition writes the same."""
    await work.documents.put_segment(
        work.job.workflow,
        index + 1,
        s3_key=record.uri or None,
        image_uri=record.image_uri or None,
        image_analysis=analyses,
        status="completed" if error is None else "failed",
        error=error,
        tenant=ctx.tenant,
    )
