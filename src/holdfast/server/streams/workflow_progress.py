"""`WorkflowProgress`: what followers of a document's processing see, and the messages about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.documents.time_left import Progress, longest, noted, seconds_left
from holdfast.model.document import DocumentStep, DocumentWorkflow, StepName
from holdfast.server.streams.segment_board import SegmentBoard

__all__ = ["ENDED_STATUSES", "WorkflowProgress", "view_of"]

ENDED_STATUSES = frozenset({"completed", "failed"})
"""The statuses of a workflow that is processed no more."""

_ANALYZER: StepName = "segment_analyzer"
# An estimate that changed by less is not worth a message.
_CHANGE_SECONDS_MIN = 2.0
_CHANGE_SHARE_MIN = 0.05

Histories = Mapping[StepName, tuple[Progress, ...]]


class WorkflowProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow and its steps at one time, as messages tell them."""

    workflow: dict[str, Any]
    steps: dict[str, dict[str, Any]]
    histories: Histories
    """How the steps progressed, from which the time that is left is estimated."""

    @property
    def status(self) -> str:
        """The status of the workflow."""
        return self.workflow["status"]

    def changed_from(self, before: WorkflowProgress) -> WorkflowProgress:
        """Return this view with the parts of an earlier one that are as good as the same."""
        return WorkflowProgress(
            workflow=_newer(before.workflow, self.workflow),
            steps={name: _newer(before.steps.get(name), step) for name, step in self.steps.items()},
            histories=self.histories,
        )


def view_of(
    workflow: DocumentWorkflow,
    steps: Mapping[StepName, DocumentStep],
    board: SegmentBoard,
    *,
    histories: Histories,
    now_ms: int,
) -> WorkflowProgress:
    """Return the view of a workflow. ``histories`` are those of the view before it."""
    done = board.count("completed") + board.count("failed") + board.count("skipped")
    grown: dict[StepName, tuple[Progress, ...]] = {}
    estimates: dict[StepName, float | None] = {}
    for name, step in steps.items():
        parts, total = step.done, step.total
        if name == _ANALYZER and total is None:  # each segment is stored when it is analyzed
            parts, total = done, workflow.total_segments
        grown[name] = _history(step, parts, histories.get(name, ()), now_ms=now_ms)
        estimates[name] = (
            seconds_left(grown[name], total=total, now_ms=now_ms)
            if step.status == "in_progress" and workflow.status == "in_progress"
            else None
        )
    return WorkflowProgress(
        workflow={
            **workflow.as_dict(),
            "counts": {
                "completed": board.count("completed") + board.count("skipped"),
                "failed": board.count("failed"),
                "pending": max(0, (workflow.total_segments or 0) - done),
            },
            "eta_seconds": _rounded(_workflow_seconds(steps, estimates)),
        },
        steps={
            name: {**step.as_dict(), "eta_seconds": _rounded(estimates[name])}
            for name, step in steps.items()
        },
        histories=grown,
    )


def _history(
    step: DocumentStep, parts: int, history: tuple[Progress, ...], *, now_ms: int
) -> tuple[Progress, ...]:
    if step.status != "in_progress":
        return ()
    if not history and step.started_at is not None:
        started_ms = round(step.started_at.timestamp() * 1000)
        history = (Progress(min(started_ms, now_ms), 0),)
    return noted(history, Progress(now_ms, parts))


def _workflow_seconds(
    steps: Mapping[StepName, DocumentStep], estimates: Mapping[StepName, float | None]
) -> float | None:
    """Return how long the steps that run now take; None before segments are analyzed."""
    analyzer = steps.get(_ANALYZER)
    if analyzer is None or analyzer.status == "pending":
        return None  # it takes longer than all the others, and nothing is known of it
    return longest(estimates[name] for name, step in steps.items() if step.status == "in_progress")


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def _newer(before: dict[str, Any] | None, now: dict[str, Any]) -> dict[str, Any]:
    """Return what was told, unless it has changed by more than a little of the estimate."""
    if before is None or {**before, "eta_seconds": None} != {**now, "eta_seconds": None}:
        return now
    earlier, later = before["eta_seconds"], now["eta_seconds"]
    if earlier is None or later is None:
        return before if earlier is later else now
    least = max(_CHANGE_SECONDS_MIN, _CHANGE_SHARE_MIN * earlier)
    return now if abs(later - earlier) >= least else before
