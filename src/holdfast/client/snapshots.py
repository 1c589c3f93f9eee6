"""Events that are not recorded and that follow from the row: a server leaves them to callers."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from holdfast.model.run import HistoryEntry, Run
from holdfast.model.wait import Wait
from holdfast.records.times import utc_datetime

__all__ = ["ended_entry", "snapshot_entry", "started_entry"]


def snapshot_entry(row: Run, *, at_ms: int) -> HistoryEntry:
    """Return the event that shows the row, as `RunHandle.events` does, without progress."""
    details = {
        "status": row.status,
        "reason": row.reason,
        "waits": [_shown_wait(wait) for wait in row.waits],
        "due_at": row.due_at,
        "failure": _failure_of(row),
        "progress": [],
    }
    return _entry("snapshot", utc_datetime(at_ms), row.node, details)


def started_entry(row: Run) -> HistoryEntry:
    """Return the event that the run was started."""
    return _entry("started", row.created_at, "", {"graph": row.graph, "version": row.version})


def ended_entry(row: Run) -> HistoryEntry:
    """Return the last event of a run that has ended."""
    details = {"status": row.status, "failure": _failure_of(row), "into": row.into}
    return _entry("ended", row.updated_at, row.node, details)


def _entry(kind: str, at: datetime, node: str, details: dict[str, Any]) -> HistoryEntry:
    return HistoryEntry(
        at=at,
        kind=kind,
        node=node or None,
        details=msgspec.to_builtins(details),
        cursor="",
        ephemeral=True,
    )


def _shown_wait(wait: Wait) -> dict[str, Any]:
    until_ms = wait.due_ms
    return {
        "kind": wait.kind.tag,
        "signal": wait.signal if wait.kind.takes_caller_signal else None,
        "description": wait.description,
        "about": wait.about,
        "branch": wait.branch,
        "since": utc_datetime(wait.since_ms),
        "until": None if until_ms is None else utc_datetime(until_ms),
    }


def _failure_of(row: Run) -> dict[str, Any] | None:
    return None if row.failure is None else msgspec.structs.asdict(row.failure)
