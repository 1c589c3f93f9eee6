"""Writes by which the owner of a run changes the run's row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.model.event import Failure
from holdfast.model.execution import Execution, nodes_summary
from holdfast.model.run import Status
from holdfast.model.spending import NO_SPENDING
from holdfast.model.wait import Wait
from holdfast.records.head import (
    SCHEMA,
    TROUBLED,
    Head,
    InboxSize,
    JournalExtent,
)
from holdfast.records.index_keys import IndexKey
from holdfast.records.run_attributes import (
    INBOX_COUNTERS,
    TEXT_CHARS_MAX,
    as_map,
    inbox_counters,
    list_attributes,
)
from holdfast.records.run_conditions import (
    cancel_known,
    no_unseen_signals,
    same_epoch,
    same_epoch_and_lifetime,
    unchanged,
)
from holdfast.storage import Absent, AllOf, AnyOf, Less, Update

__all__ = [
    "close_write",
    "end_write",
    "forced_release_write",
    "free_write",
    "inbox_count_write",
    "mark_parent_write",
    "pause_write",
    "postpone_free_write",
    "release_write",
    "snapshot_pointer_write",
]

_TRACE_CHARS_MAX = 1_000


def pause_write(
    head: Head,
    execution: Execution,
    *,
    waits: Sequence[Wait],
    signals: int,
    inbox: InboxSize,
    reason: str,
    due_ms: int,
    retries_left: int,
    extent: JournalExtent,
    now_ms: int,
    token: str,
) -> Update:
    """Return the write by which the owner pauses its run.

    It fails if a signal or a cancellation came that the owner has not seen. Signals after this
    write find the run waiting, and wake it. So ``inbox``, the signals that the owner has not taken,
    is the exact content of the inbox.
    """
    write = _release_update(
        head,
        execution,
        {
            "status": "waiting",
            "waits": [as_map(wait) for wait in waits],
            "reason": reason,
            "retries_left": retries_left,
            **inbox_counters(inbox),
            **({"inbox_epoch": head.epoch + 1} if inbox.items else {}),
        },
        index_key=head.due_index_key(due_ms, head.epoch + 1),
        extent=extent,
        now_ms=now_ms,
        token=token,
        remove=(*INBOX_COUNTERS, "inbox_epoch"),
    )
    condition = AllOf(
        (*same_epoch_and_lifetime(head).conditions, no_unseen_signals(signals), Absent("cancel"))
    )
    return msgspec.structs.replace(write, condition=condition)


def inbox_count_write(
    head: Head, *, signals: int, inbox: InboxSize, now_ms: int, token: str
) -> Update:
    """Return the write by which the owner corrects the counters of the inbox.

    Like a pause, it fails if a signal came that the owner has not seen.
    """
    changes = {"updated_ms": now_ms, **inbox_counters(inbox)}
    return Update(
        key=head.key.head,
        set=changes,
        remove=tuple(name for name in INBOX_COUNTERS if name not in changes),
        condition=AllOf((*same_epoch_and_lifetime(head).conditions, no_unseen_signals(signals))),
        token=token,
    )


def release_write(
    head: Head,
    execution: Execution,
    *,
    due_ms: int,
    reason: str,
    retries_left: int,
    extent: JournalExtent,
    resume_failures: int = 0,
    failure: Failure | None = None,
    now_ms: int,
    token: str,
) -> Update:
    """Return the write by which the owner releases a run, so that another worker can claim it.

    ``failure`` is why the run could not be resumed.
    """
    changes: dict[str, Any] = {
        # A run that is closing does not open again.
        "status": "closing" if head.status == "closing" else "running",
        "reason": reason,
        "retries_left": retries_left,
        "resume_failures": resume_failures,
    }
    if failure is not None:
        changes["failure"] = _truncated_failure(failure, with_trace=False)
    # The start of its waits stays valid until the next pause.
    if head.waits:
        changes["waits"] = [as_map(wait) for wait in head.waits]
    return _release_update(
        head,
        execution,
        changes,
        index_key=head.due_index_key(due_ms, head.epoch + 1),
        extent=extent,
        now_ms=now_ms,
        token=token,
    )


def forced_release_write(
    head: Head,
    *,
    due_ms: int,
    resume_failures: int,
    failure: Failure | None,
    cancel: str | None,
    now_ms: int,
    token: str,
) -> Update:
    """Return the write by which the owner releases a run if the full write is refused.

    It changes as little as possible. As after a crash, the next owner fences the journal. With a
    ``failure`` the run is quarantined, and due again only to settle its obligations. But if the row
    has another cancellation request than ``cancel``, which the owner knew, the run stays open and
    the next owner carries the request out.
    """
    condition = same_epoch_and_lifetime(head)
    index_key = IndexKey.due(head.due_queue, due_ms, head.key, head.epoch + 1)
    changes: dict[str, Any] = {
        "epoch": head.epoch + 1,
        "torn": True,
        "updated_ms": now_ms,
        "resume_failures": resume_failures,
        "GSI1PK": index_key.pk,
        "GSI1SK": index_key.sk,
    }
    removed: tuple[str, ...] = ("owner",)
    if failure is not None and head.cancel == cancel:
        short = _truncated_failure(failure, with_trace=True)
        changes |= {"status": "quarantined", "failure": short}
        changes |= list_attributes(head, trouble=True)
        removed += ("cancel", "retry")
        condition = AllOf((*condition.conditions, cancel_known(head)))
    return Update(
        key=head.key.head,
        set=changes,
        remove=removed,
        condition=condition,
        token=token,
    )


def end_write(
    head: Head,
    execution: Execution,
    *,
    status: Status,
    failure: Failure | None,
    due_ms: int | None,
    retries_left: int | None = None,
    extent: JournalExtent,
    now_ms: int,
    token: str,
) -> Update:
    """Return the write by which the owner ends a run. It is due again only to be freed.

    ``retries_left`` counts from the moment of a retry, which does not know the program.

    It fails if a signal with a blob came that the owner has not seen. A quarantine also fails if a
    cancellation was requested that the owner has not seen.
    """
    changes: dict[str, Any] = {"status": status}
    if failure is not None:
        changes["failure"] = _truncated_failure(failure, with_trace=status == "quarantined")
    if retries_left is not None:
        changes["retries_left"] = retries_left
    if status in TROUBLED:
        changes |= list_attributes(head, trouble=True)
    index_key = None
    if due_ms is not None:
        index_key = IndexKey.due(head.due_queue, due_ms, head.key, head.epoch + 1)
    write = _release_update(
        head,
        execution,
        changes,
        index_key=index_key,
        extent=extent,
        now_ms=now_ms,
        token=token,
        remove=("cancel", "retry"),
    )
    conditions = [*same_epoch_and_lifetime(head).conditions]
    if not head.spilled:
        # Blobs of unseen signals have to be freed, too.
        conditions.append(Absent("spilled"))
    if status == "quarantined":
        # Other ends are events in the journal, before or after a cancellation. A quarantine is only
        # in the row: the journal could still get a cancellation after it.
        conditions.append(cancel_known(head))
    return msgspec.structs.replace(write, condition=AllOf(tuple(conditions)))


def postpone_free_write(head: Head, *, due_ms: int | None, now_ms: int, token: str) -> Update:
    """Return the write by which the owner releases a run that has ended, to be freed later.

    If nothing has to be freed, ``due_ms`` is None, and the run leaves the due index.
    """
    updates: dict[str, Any] = {"epoch": head.epoch + 1, "updated_ms": now_ms}
    removed = ("owner",)
    if due_ms is None:
        removed += ("GSI1PK", "GSI1SK")
    else:
        index_key = IndexKey.due(head.due_queue, due_ms, head.key, head.epoch + 1)
        updates |= {"GSI1PK": index_key.pk, "GSI1SK": index_key.sk}
    return Update(
        key=head.key.head,
        set=updates,
        remove=removed,
        condition=same_epoch_and_lifetime(head),
        token=token,
    )


def close_write(head: Head, *, status: Status, now_ms: int, token: str) -> Update:
    """Return the write after which an owned run takes no more signals.

    It also compares the status: the epoch stays the same, and a late write must not undo a later
    one.
    """
    return Update(
        key=head.key.head,
        set={"status": status, "updated_ms": now_ms},
        condition=unchanged(head),
        token=token,
    )


def free_write(head: Head, *, now_ms: int, token: str) -> Update:
    """Return the write that marks a run as freed, and removes it from the due index."""
    return Update(
        key=head.key.head,
        set={"epoch": head.epoch + 1, "updated_ms": now_ms, "freed": True},
        remove=("owner", "torn", "waits", "GSI1PK", "GSI1SK", "input", "context", "snapshot"),
        condition=same_epoch_and_lifetime(head),
        token=token,
    )


def mark_parent_write(
    head: Head, *, maps: bool = False, has_blobs: bool = False, now_ms: int, token: str
) -> Update:
    """Return the write that marks a run as a parent. Its end then includes its children.

    With ``maps``, it includes its maps: workers of earlier releases, which do not know them, leave
    the run alone. If the maps have blobs, these have to be freed with the run.
    """
    marks: dict[str, Any] = {"children": True}
    if maps:
        marks |= {"maps": True, "schema": SCHEMA}
        marks |= {"spilled": True} if has_blobs else {}
    return Update(
        key=head.key.head,
        set={**marks, "updated_ms": now_ms},
        condition=unchanged(head),
        token=token,
    )


def snapshot_pointer_write(head: Head, snapshot: int, *, now_ms: int, token: str) -> Update:
    """Return the write that moves the start for readers to a later snapshot."""
    earlier = AnyOf((Absent("snapshot"), Less("snapshot", snapshot)))
    return Update(
        key=head.key.head,
        set={"snapshot": snapshot, "updated_ms": now_ms},
        condition=AllOf((*same_epoch(head).conditions, earlier)),
        token=token,
    )


def _release_update(
    head: Head,
    execution: Execution,
    changes: Mapping[str, Any],
    *,
    index_key: IndexKey | None,
    extent: JournalExtent,
    now_ms: int,
    token: str,
    remove: tuple[str, ...] = (),
) -> Update:
    updates: dict[str, Any] = {
        "epoch": head.epoch + 1,
        "node": nodes_summary(execution),
        "nodes_run": execution.nodes_run,
        "spent_ms": execution.spent_ms,
        "context": as_map(extent),
        "updated_ms": now_ms,
        **changes,
    }
    if execution.spent != NO_SPENDING:
        updates["tokens"] = execution.spent.tokens
        updates["nanodollars"] = execution.spent.nanodollars
    if head.needs_fence:
        updates["torn"] = True  # the fence is not written yet
    removed = {"owner", "torn", "waits", "reason", "resume_failures", "losses", "failure", *remove}
    if index_key is None:
        removed |= {"GSI1PK", "GSI1SK"}
    else:
        updates |= {"GSI1PK": index_key.pk, "GSI1SK": index_key.sk}
    return Update(
        key=head.key.head,
        set=updates,
        remove=tuple(sorted(removed - updates.keys())),
        condition=same_epoch_and_lifetime(head),
        token=token,
    )


def _truncated_failure(failure: Failure, *, with_trace: bool) -> dict[str, Any]:
    # The journal has the full failure, unless the journal itself cannot be read.
    trace = failure.trace[-_TRACE_CHARS_MAX:] if with_trace else ""
    return as_map(Failure(failure.type[:TEXT_CHARS_MAX], failure.message[:TEXT_CHARS_MAX], trace))
