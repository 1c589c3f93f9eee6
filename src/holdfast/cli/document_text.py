"""Formats documents for a terminal. Their names and texts come from outside, so all is escaped."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from holdfast.cli.facts import cut_to_line
from holdfast.cli.text import columns, compact
from holdfast.display import printable
from holdfast.model.document import (
    Document,
    DocumentSegment,
    DocumentStep,
    DocumentWorkflow,
    Project,
)
from holdfast.model.durations import duration_text
from holdfast.model.moments import utc_text
from holdfast.model.segment_search import SegmentHit

__all__ = [
    "counts_line",
    "document_lines",
    "document_list_lines",
    "hit_lines",
    "project_lines",
    "project_list_lines",
    "segment_lines",
    "step_lines",
    "workflow_lines",
    "workflow_list_lines",
]

_ANALYSES_MAX = 20


def project_list_lines(projects: Sequence[Project]) -> Iterable[str]:
    """Return projects as lines of a table."""
    if not projects:
        return ()
    rows = [("CREATED", "ID", "LANGUAGE", "OCR", "PIPELINE", "NAME")]
    rows += [
        (
            utc_text(each.created_at),
            each.id,
            each.language,
            each.ocr_model,
            each.pipeline,
            each.name,
        )
        for each in projects
    ]
    return columns(rows, cut=(5, 4, 3, 2, 0))


def project_lines(project: Project) -> Iterable[str]:
    """Return what is known of a project."""
    kept = "until they are deleted" if project.retention_days is None else None
    facts = [
        ("project", project.id),
        ("name", project.name),
        ("created", utc_text(project.created_at)),
        ("language", project.language),
        ("OCR", project.ocr_model),
        ("pipeline", project.pipeline),
        ("documents kept", kept or f"{project.retention_days} days"),
    ]
    if project.document_prompt:
        facts.append(("prompt", project.document_prompt))
    return columns(facts)


def document_list_lines(documents: Sequence[Document]) -> Iterable[str]:
    """Return documents as lines of a table."""
    if not documents:
        return ()
    rows = [("ADDED", "ID", "TYPE", "BYTES", "WORKFLOW", "NAME")]
    rows += [
        (
            utc_text(each.created_at),
            each.id,
            each.file_type,
            _bytes_text(each.file_bytes),
            each.workflow or "",
            each.file_name,
        )
        for each in documents
    ]
    return columns(rows, cut=(5, 2, 3, 0, 4))


def document_lines(document: Document, workflows: Sequence[DocumentWorkflow]) -> Iterator[str]:
    """Yield what is known of a document, and its workflows."""
    facts = [
        ("document", document.id),
        ("name", document.file_name),
        ("project", document.project),
        ("type", document.file_type),
        ("bytes", _bytes_text(document.file_bytes)),
        ("added", utc_text(document.created_at)),
        ("file", document.file_uri),
    ]
    if document.expires_at is not None:
        facts.append(("expires", utc_text(document.expires_at)))
    yield from columns(facts)
    if workflows:
        yield from ("", "workflows:")
        yield from workflow_list_lines(workflows)


def workflow_list_lines(workflows: Sequence[DocumentWorkflow]) -> Iterable[str]:
    """Return workflows as lines of a table."""
    if not workflows:
        return ()
    rows = [("UPDATED", "STATUS", "WORKFLOW", "DOCUMENT", "SEGMENTS", "NAME", "ERROR")]
    rows += [
        (
            utc_text(each.updated_at),
            _words(each.status),
            each.id,
            each.document,
            _count_text(each.total_segments),
            each.file_name,
            cut_to_line(each.error or ""),
        )
        for each in workflows
    ]
    return columns(rows, cut=(6, 5, 0, 4, 3))


def workflow_lines(workflow: DocumentWorkflow, steps: Mapping[str, DocumentStep]) -> Iterator[str]:
    """Yield what is known of a workflow, and its steps."""
    facts = [
        ("workflow", workflow.id),
        ("document", workflow.document),
        ("name", workflow.file_name),
        ("status", _words(workflow.status)),
        ("segments", _count_text(workflow.total_segments) or "not known yet"),
        ("run", workflow.execution_arn or ""),
        ("begun", utc_text(workflow.created_at)),
        ("updated", utc_text(workflow.updated_at)),
    ]
    if workflow.attempt > 1:
        facts.append(("attempt", str(workflow.attempt)))
    if workflow.error:
        facts.append(("error", workflow.error))
    yield from columns([fact for fact in facts if fact[1]])
    yield ""
    yield from step_lines(steps.values())


def step_lines(steps: Iterable[DocumentStep]) -> Iterable[str]:
    """Return steps as lines of a table."""
    rows = [("STEP", "STATUS", "DONE", "TIME", "ERROR")]
    rows += [
        (step.label, _words(step.status), _done_text(step), _time_text(step), step.error or "")
        for step in steps
    ]
    return columns(rows, cut=(4, 3, 2))


def counts_line(counts: Mapping[str, int]) -> str:
    """Return how many workflows have each status, in one line."""
    return ", ".join(f"{count:,} {_words(status)}" for status, count in counts.items())


def segment_lines(segment: DocumentSegment, content: Mapping[str, Any]) -> Iterator[str]:
    """Yield a segment: its facts, its text, and what models found out about it."""
    facts = [
        ("segment", str(segment.index)),
        ("status", _words(segment.status)),
        ("title", str(content.get("title") or "")),
        ("source", str(content.get("source") or "")),
        ("content", segment.s3_key or ""),
        ("image", segment.image_uri or ""),
        ("error", segment.error or ""),
    ]
    yield from columns([fact for fact in facts if fact[1]])
    text = content.get("text")
    if isinstance(text, str) and text:
        yield ""
        yield from map(printable, text.splitlines())
    if segment.image_analysis:
        yield from ("", "analysis:")
        for analysis in segment.image_analysis[:_ANALYSES_MAX]:
            yield f"  {compact(analysis)}"
        if len(segment.image_analysis) > _ANALYSES_MAX:
            yield f"  … {len(segment.image_analysis) - _ANALYSES_MAX} more; --json shows all"


def hit_lines(hits: Sequence[SegmentHit], names: Mapping[str, str]) -> Iterator[str]:
    """Yield what a search found: the document, the segment, and the words in their text."""
    is_styled = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for hit in hits:
        name = names.get(hit.document)
        place = f"{name} ({hit.document})" if name else hit.document
        title = f": {hit.title}" if hit.title else ""
        yield printable(f"{place}, segment {hit.index}{title}")
        parts = ((printable(text), is_found) for text, is_found in hit.parts())
        yield "  " + "".join(
            click.style(text, bold=True) if is_found and is_styled else text
            for text, is_found in parts
        )


def _words(status: str) -> str:
    return status.replace("_", " ")


def _count_text(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


_bytes_text = _count_text


def _done_text(step: DocumentStep) -> str:
    if step.total is None:
        return f"{step.done:,}" if step.done else ""
    return f"{step.done:,}/{step.total:,}"


def _time_text(step: DocumentStep) -> str:
    if step.started_at is None or step.ended_at is None:
        return ""
    seconds = max(0.0, (step.ended_at - step.started_at).total_seconds())
    return duration_text(1000 * round(seconds)) if seconds >= 1 else "<1s"
