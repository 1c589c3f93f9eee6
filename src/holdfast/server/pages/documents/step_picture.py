"""The steps of a document's processing as a picture: columns of steps that run at the same time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from holdfast.documents.time_left import Progress, seconds_left
from holdfast.model.document import DocumentStep, DocumentWorkflow, StepName

__all__ = [
    "STATE_MARKS",
    "STATE_WORDS",
    "ShownStep",
    "shown_columns",
    "shown_duration",
    "state_context",
]

# Steps of one column do not wait for each other.
_COLUMNS: tuple[tuple[StepName, ...], ...] = (
    ("segment_prep",),
    ("format_parser", "paddleocr_processor", "bda_processor", "transcribe", "webcrawler"),
    ("segment_builder",),
    ("segment_analyzer",),
    ("graph_builder",),
    ("document_summarizer",),
)
STATE_WORDS: Mapping[str, str] = {
    "pending": "Waiting",
    "in_progress": "In progress",
    "completed": "Completed",
    "failed": "Failed",
    "skipped": "Not needed",
}
"""How pages call the states of workflows, steps and segments."""
STATE_MARKS: Mapping[str, str] = {
    "pending": "○",
    "in_progress": "▶",
    "completed": "✓",
    "failed": "✕",
    "skipped": "–",
}
"""The marks of states, so that color is not all that tells them apart."""


class ShownStep(msgspec.Struct, kw_only=True):
    """A step as a page shows it."""

    name: str
    label: str
    status: str
    started_at: datetime | None
    error: str
    took: str
    """How long it took or has taken so far; empty if it has not begun."""
    left: str
    """How long it will take; empty if that is unknown."""
    done: int
    total: int | None


def shown_columns(
    workflow: DocumentWorkflow, steps: Mapping[StepName, DocumentStep], *, now: datetime
) -> list[list[ShownStep]]:
    """Return the columns of the picture, each with its steps from top to bottom."""
    return [
        [_shown(steps[name], workflow, now=now) for name in column if name in steps]
        for column in _COLUMNS
    ]


def shown_duration(seconds: float) -> str:
    """Return a time as people say it, in its two largest units."""
    whole = max(0, round(seconds))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        days, hours = divmod(hours, 24)
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    if minutes:
        return f"{minutes} min {rest} s" if minutes < 10 and rest else f"{minutes} min"
    return f"{rest} s"


def _shown(step: DocumentStep, workflow: DocumentWorkflow, *, now: datetime) -> ShownStep:
    took = left = ""
    if step.started_at is not None:
        ended_at = step.ended_at or (now if step.status == "in_progress" else None)
        if ended_at is not None:
            took = shown_duration((ended_at - step.started_at).total_seconds())
    if step.status == "in_progress" and workflow.status == "in_progress":
        left = _left(step, now=now)
    return ShownStep(
        name=step.name,
        label=step.label,
        status=step.status,
        started_at=step.started_at,
        error=step.error or "",
        took=took,
        left=left,
        done=step.done,
        total=step.total,
    )


def _left(step: DocumentStep, *, now: datetime) -> str:
    """Return how long a step will take, judged by all of it: a page has seen nothing else."""
    if step.started_at is None:
        return ""
    started_ms, now_ms = (_milliseconds(each) for each in (step.started_at, now))
    history = [Progress(started_ms, 0), Progress(now_ms, step.done)]
    seconds = seconds_left(history, total=step.total, now_ms=now_ms)
    return "" if seconds is None else shown_duration(seconds)


def _milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def state_context() -> dict[str, Any]:
    """Return the words and marks of states for a template."""
    return {"state_words": STATE_WORDS, "state_marks": STATE_MARKS}
