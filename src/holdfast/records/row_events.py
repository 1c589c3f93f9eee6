"""Events that are not recorded and that follow from a run's row: the engine and clients show them.

Clients build them, too: a server sends the row, and leaves the rest to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.model.node_progress import NodeProgress
from holdfast.model.run import HistoryEntry, Run
from holdfast.model.wait import ReviewWait, Wait
from holdfast.records.times import utc_datetime

__all__ = ["ended_entry", "paused_entry", "snapshot_entry", "started_entry", "unrecorded_entry"]


def unrecorded_entry(
    kind: str, at: datetime, *, node: str | None, details: dict[str, Any] | None = None
) -> HistoryEntry:
    """Return an event that has no cursor, because no journal has it."""
    return HistoryEntry(
        at=at,
        kind=kind,
        node=node or None,
        details=msgspec.to_builtins(details or {}),
        cursor="",
        ephemeral=True,
    )


def snapshot_entry(
    run: Run, *, at_ms: int, node: str, progress: Sequence[NodeProgress] = ()
) -> HistoryEntry:
    """Return the event that shows the row: what the run does, and how far its nodes are."""
    details = {
        "status": run.status,
        "reason": run.reason,
        "waits": [_shown_wait(run, wait) for wait in run.waits],
        "due_at": run.due_at,
        "failure": _failure_of(run),
        "progress": [_shown_progress(each) for each in progress],
    }
    return unrecorded_entry("snapshot", utc_datetime(at_ms), node=node, details=details)


def started_entry(run: Run, *, node: str | None) -> HistoryEntry:
    """Return the event that the run was started."""
    details = {"graph": run.graph, "version": run.version}
    return unrecorded_entry("started", run.created_at, node=node, details=details)


def paused_entry(run: Run) -> HistoryEntry:
    """Return the event that a run waits: for what, since when, and until when."""
    since_ms = min((wait.since_ms for wait in run.waits), default=None)
    details = {
        "reason": run.reason,
        "waits": [_shown_wait(run, wait) for wait in run.waits],
        "since": run.updated_at if since_ms is None else utc_datetime(since_ms),
        "until": run.due_at,
    }
    return unrecorded_entry("paused", run.updated_at, node=run.node, details=details)


def ended_entry(run: Run) -> HistoryEntry:
    """Return the last event of a run that has ended."""
    details = {"status": run.status, "failure": _failure_of(run), "into": run.into}
    return unrecorded_entry("ended", run.updated_at, node=run.node, details=details)


def _shown_wait(run: Run, wait: Wait) -> dict[str, Any]:
    until_ms = wait.due_ms
    shown = {
        "kind": wait.kind.tag,
        "signal": wait.signal if wait.kind.takes_caller_signal else None,
        "description": wait.description,
        "about": wait.about,
        "branch": wait.branch,
        "since": utc_datetime(wait.since_ms),
        "until": None if until_ms is None else utc_datetime(until_ms),
    }
    if isinstance(wait.kind, ReviewWait):
        shown["review"] = wait.kind.review_id(run.id)
    return shown


def _shown_progress(progress: NodeProgress) -> dict[str, Any]:
    return {
        "node": progress.node,
        "branch": progress.branch,
        "fraction": progress.fraction,
        "message": progress.message,
        "at": utc_datetime(progress.at_ms),
    }


def _failure_of(run: Run) -> dict[str, Any] | None:
    return None if run.failure is None else msgspec.structs.asdict(run.failure)
