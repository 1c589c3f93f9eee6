"""The step ``document_summarizer``: summaries of summaries, until one question is left.

Each visit of the node is one level. A level is a map over groups of summaries, and stores its
summaries group by group, so neither a prompt nor a state grows with the document.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable
from typing import Any, TypedDict

from documents.groups import map_segments
from documents.processing import Desk, Job, Processing, Work
from documents.prompts import DocumentSummary, GroupSummary, document_prompt, group_prompt
from documents.steps import ATTEMPTS, TRANSIENT
from documents.summaries import GROUP
from holdfast import END, Context, Graph, MappedItem, Retry

__all__ = ["add_summing"]

_ANSWER_TOKENS_MAX = 2_000
_SUMMARY_CHARS_MAX = 2_000
_TOPICS_MAX = 20


class Summed(TypedDict, total=False):
    """What one level made."""

    summaries: str
    left: int
    summary: str


def add_summing(graph: Graph[Processing], desk: Desk) -> Callable[[Processing, Context], object]:
    """Add the node ``document_summarizer`` to the graph, and return it."""
    retry = Retry(attempts=ATTEMPTS, on=TRANSIENT)

    @graph.item(retry=retry)
    async def summarize_group(index: int, ctx: Context) -> dict[str, Any]:
        work = Work(desk, ctx, Job.of(ctx.given))
        summaries = await _group(work, desk, work.job.source, index)
        if not summaries:
            return {"summary": ""}
        answer = await ctx.model(
            "small",
            group_prompt(summaries, await work.instructions()),
            output=GroupSummary,
            max_tokens=_ANSWER_TOKENS_MAX,
            fallback="large",
            share=desk.settings.share,
            key=f"{ctx.key}/group",
            record="none",
        )
        return {"summary": answer.value.summary[:_SUMMARY_CHARS_MAX]}

    @graph.node(retry=retry)
    async def document_summarizer(state: Processing, ctx: Context) -> Summed:
        assert state.job is not None  # nodes before made them
        assert state.analysed is not None
        work = Work(desk, ctx, state.job)
        async with work.steps.running("document_summarizer", ends=False):
            if not state.summaries:
                return await _stored(work, 0, ctx.mapped(state.analysed))
            if state.left > GROUP:
                done = await map_segments(
                    ctx,
                    summarize_group,
                    -(-state.left // GROUP),
                    chunk=10,
                    concurrency=desk.settings.concurrency,
                    given=state.job.as_json(source=state.summaries),
                )
                return await _stored(work, ctx.visit, ctx.mapped(done))
            summaries = await _group(work, desk, state.summaries, 0)
            summary = await _whole(work, ctx, summaries, share=desk.settings.share)
            await work.steps.complete("document_summarizer")
        return {"summary": summary}

    graph.choose(
        document_summarizer,
        lambda state: END if state.summary else document_summarizer,
        to=[document_summarizer, END],
    )
    return document_summarizer


async def _stored(work: Work, level: int, entries: AsyncIterable[MappedItem]) -> Summed:
    """Store the summaries of a level in groups; return where, and how many there are."""
    groups, group, count = list[str](), list[str](), 0
    async for entry in entries:
        if entry.failure is None and entry.result["summary"]:
            group.append(entry.result["summary"])
            count += 1
        if len(group) == GROUP:
            groups.append(await work.shelf.put(f"summaries/{level}-{len(groups):05}", group))
            group = []
    if group:
        groups.append(await work.shelf.put(f"summaries/{level}-{len(groups):05}", group))
    return {"summaries": await work.shelf.put(f"summaries/{level}", groups), "left": count}


async def _group(work: Work, desk: Desk, uri: str, number: int) -> list[str]:
    groups: list[str] = await desk.memory.load(uri, work.shelf.load)
    return await work.shelf.load(groups[number]) if number < len(groups) else []


async def _whole(work: Work, ctx: Context, summaries: list[str], *, share: bool) -> str:
    """Ask about the whole document, and store what the model says."""
    if not summaries:
        said = DocumentSummary(title=work.job.name, topics=[], summary="")
    else:
        answer = await ctx.model(
            "large",
            document_prompt(summaries, await work.instructions()),
            output=DocumentSummary,
            max_tokens=_ANSWER_TOKENS_MAX,
            share=share,
            key=f"{ctx.key}/document",
            record="none",
        )
        said = answer.value
    return await work.shelf.put(
        "summary",
        {
            "title": said.title[:_SUMMARY_CHARS_MAX],
            "topics": [topic[:200] for topic in said.topics[:_TOPICS_MAX]],
            "summary": said.summary[: 10 * _SUMMARY_CHARS_MAX],
        },
    )
