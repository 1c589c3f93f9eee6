"""The status of a run as callers see it; the row has only what workers compare."""

from __future__ import annotations

from holdfast.errors import JournalDamaged
from holdfast.model.run import Status
from holdfast.records.head import OPEN, Head

__all__ = ["due_ms_of", "shown_status"]

# Reasons of runs that are not paused, but due later.
_POSTPONEMENTS = frozenset({"scheduled", "newer_version", "resume_failed"})


def due_ms_of(head: Head) -> int | None:
    """Return when workers may claim a run; None while one owns it, and after its end.

    Raises:
        JournalDamaged: the row has an impossible index key.
    """
    if head.index_key is None or not head.index_key.pk.startswith("DUE#"):
        return None
    try:
        return head.index_key.due_parts()[0]
    except ValueError as error:
        raise JournalDamaged(f"the row of run {head.key.id!r} is damaged: {error}") from error


def shown_status(head: Head, *, now_ms: int) -> Status:
    """Return the status that callers see.

    Raises:
        JournalDamaged: the row has an impossible index key.
    """
    if head.status not in OPEN:
        return head.status
    if head.owner is not None:
        # When a timer fires, the row keeps its status until the run pauses again or ends.
        return "running"
    if head.status == "waiting" and head.reason != "scheduled":
        return "waiting"
    if head.reason not in _POSTPONEMENTS:
        return "ready"
    due_ms = due_ms_of(head)
    return "waiting" if due_ms is not None and due_ms > now_ms else "ready"
