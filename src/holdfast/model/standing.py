"""Says for people what an open run waits for, or why no worker runs it."""

from __future__ import annotations

from holdfast.model.durations import duration_text
from holdfast.model.moments import moment_ms
from holdfast.model.run import Run

__all__ = ["overdue_text", "standing"]

# A worker claims a due run within a poll; until then there is nothing to report.
_CLAIM_SECONDS = 5
_WAITS_MAX = 3


def standing(run: Run, *, now_ms: int, node: str | None = None) -> str:
    """Return a sentence about an open run; ``node`` is where it stands, if that is known."""
    if run.status == "running":
        at = f"at node {node!r} " if node else ""
        return f"it is running {at}on worker {run.owner}"
    if run.status == "closing":
        return "it is past its expiry, and carries out a decision that came in time"
    overdue = overdue_text(run, now_ms=now_ms)
    if overdue is not None and run.reason != "unserved":
        return overdue
    if run.status == "ready":
        return f"it is ready, and no worker has claimed it yet: {_question(run)}"
    waits = "; ".join(wait.description for wait in run.waits[:_WAITS_MAX])
    if waits:
        more = len(run.waits) - _WAITS_MAX
        return f"it waits for {waits}" + (f"; and {more} more" if more > 0 else "")
    match run.reason:
        case "queued":
            return f"it waits for earlier runs of session {run.session!r}"
        case "scheduled":
            return f"it starts at {run.due_at}"
        case "newer_version":
            return f"it waits for a worker with version {run.version} of graph {run.graph!r}"
        case "resume_failed":
            failure = run.failure
            cause = "" if failure is None else f": {failure.type}: {failure.message}"
            return f"it could not be resumed {run.resume_failures} times, and is tried again{cause}"
        case _:
            return f"it is {run.status}"


def overdue_text(run: Run, *, now_ms: int) -> str | None:
    """Return that no worker claims a run; None if it is not due, or has been for a moment only."""
    if run.due_at is None or run.status not in ("ready", "waiting"):
        return None
    seconds = (now_ms - moment_ms(run.due_at, "due_at")) // 1000
    if seconds < _CLAIM_SECONDS:
        return None
    return f"no worker claimed the run for {duration_text(1000 * seconds)}: {_question(run)}"


def _question(run: Run) -> str:
    pool = run.labels.get("pool")
    return f"is a worker with graph {run.graph!r}{f' (pool {pool!r})' if pool else ''} running?"
