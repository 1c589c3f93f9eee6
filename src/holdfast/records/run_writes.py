"""Writes by which clients and workers that do not own a run change its row.

A write that changes the owner also raises the epoch by one. So a condition on an old epoch never
holds again, and a late or repeated write changes nothing. See `owner_writes` for the owner's.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.budget import BudgetLimits
from holdfast.records.budget_map import budget_map
from holdfast.records.head import (
    ATTRIBUTES,
    ROW_WAITS_MAX,
    SCHEMA,
    TROUBLED,
    Head,
    InboxSize,
    JournalExtent,
    RetryRequest,
)
from holdfast.records.index_keys import IndexKey
from holdfast.records.keys import RunKey
from holdfast.records.run_attributes import (
    INBOX_COUNTERS,
    TEXT_CHARS_MAX,
    as_map,
    inbox_counters,
    list_attributes,
)
from holdfast.records.run_conditions import (
    at_index_key,
    same_epoch_and_lifetime,
    unchanged,
)
from holdfast.storage import Absent, AllOf, AnyOf, Equals, Less, Put, Update

__all__ = [
    "budget_write",
    "cancel_write",
    "claim_write",
    "create_write",
    "extend_write",
    "index_key_in",
    "lifetime_write",
    "notify_owner_write",
    "requeue_write",
    "retention_class_write",
    "retry_write",
    "wake_write",
]

_EMPTY_INBOX = InboxSize()


def create_write(head: Head, *, now_ms: int, token: str) -> Put:
    """Return the write that creates a run, unless its id is taken by a row within its ttl."""
    item: dict[str, Any] = {
        "PK": head.key.pk,
        "SK": "HEAD",
        **list_attributes(head, trouble=head.status in TROUBLED),
        "show": {"graph": head.graph, "version": head.version},
    }
    if head.index_key is not None:
        item |= {"GSI1PK": head.index_key.pk, "GSI1SK": head.index_key.sk}
    if head.labels:
        item["show"]["labels"] = head.labels
    if head.session is not None:
        item["show"]["session"] = head.session
    for name in ATTRIBUTES:
        value = getattr(head, name)
        if value:
            item[name] = value
    if head.needs_fence:
        item["torn"] = True
    if head.input is not None:
        item["input"] = head.input
    if head.parent is not None:
        item["parent"] = as_map(head.parent)
    if head.budget is not None:
        item["budget"] = budget_map(head.budget)
    if head.payer is not None:
        item["draws"] = as_map(head.payer)
    if head.chunk is not None:
        item["chunk"] = msgspec.structs.asdict(head.chunk)
    if head.owner is not None:
        item["owner"] = head.owner
    if head.extent != JournalExtent():
        item["context"] = as_map(head.extent)
    free = AnyOf((Absent("PK"), Less("ttl", now_ms // 1000)))
    return Put(item, free, token)


def claim_write(
    index_key: IndexKey, run: RunKey, *, worker: str, now_ms: int, token: str
) -> Update:
    """Return the write by which a worker claims a run that it saw in the due index.

    It compares the whole index key, because a read of an index may be stale.
    """
    _, _, epoch = index_key.due_parts()
    taken = IndexKey.owned(worker, index_key.due_queue(), run, epoch + 1)
    return Update(
        key=run.head,
        set={
            "owner": worker,
            "epoch": epoch + 1,
            "updated_ms": now_ms,
            "GSI1PK": taken.pk,
            "GSI1SK": taken.sk,
        },
        # Rows of newer releases are left to workers that can read them.
        condition=AllOf((*at_index_key(index_key).conditions, Less("schema", SCHEMA + 1))),
        token=token,
    )


def requeue_write(
    index_key: IndexKey, *, lost: bool, now_ms: int, token: str, in_ms: int = 0
) -> Update:
    """Return the write that makes a run due again after its owner did not release it.

    ``lost`` says whether the owner is dead. Then it counts as a loss, until an owner releases the
    run.
    """
    queue, run, epoch = index_key.owned_parts()
    due = IndexKey.due(queue, now_ms + in_ms, run, epoch + 1)
    return Update(
        key=run.head,
        set={
            "epoch": epoch + 1,
            "torn": True,
            "updated_ms": now_ms,
            "GSI1PK": due.pk,
            "GSI1SK": due.sk,
        },
        add={"losses": 1} if lost else {},
        remove=("owner",),
        condition=at_index_key(index_key),
        token=token,
    )


def budget_write(head: Head, limits: BudgetLimits, *, now_ms: int, token: str) -> Update:
    """Return the write that changes the budget of a run.

    An owner that is about to pause has to read the row again. The write fails if the budget has
    changed since: a late write must not undo a later one.
    """
    known = Equals("fundings", head.fundings) if head.fundings else Absent("fundings")
    return Update(
        key=head.key.head,
        set={"budget": budget_map(limits), "updated_ms": now_ms},
        add={"signals": 1, "fundings": 1},
        condition=AllOf((*unchanged(head).conditions, known)),
        token=token,
    )


def wake_write(
    head: Head,
    *,
    worker: str | None,
    spilled: bool,
    now_ms: int,
    token: str,
    adds: InboxSize = _EMPTY_INBOX,
) -> Update:
    """Return the write that makes a waiting run due now, or lets a worker claim it at once.

    ``adds`` is what was added to its inbox.
    """
    changes: dict[str, Any] = {"status": "running", "updated_ms": now_ms}
    if spilled:
        changes["spilled"] = True
    if worker is None:
        index_key = head.due_index_key(now_ms, head.epoch)
    else:
        index_key = IndexKey.owned(worker, head.due_queue, head.key, head.epoch + 1)
        changes |= {"owner": worker, "epoch": head.epoch + 1}
    write = Update(
        key=head.key.head,
        set={**changes, "GSI1PK": index_key.pk, "GSI1SK": index_key.sk},
        condition=AllOf(
            (
                *same_epoch_and_lifetime(head).conditions,
                Equals("status", "waiting"),
                Absent("owner"),
            )
        ),
        token=token,
    )
    return _with_inbox_counts(write, head, adds)


def notify_owner_write(
    head: Head, *, spilled: bool, now_ms: int, token: str, adds: InboxSize = _EMPTY_INBOX
) -> Update:
    """Return the write that tells the owner of a run about a signal in its inbox.

    ``adds`` is what was added to the inbox and is not counted yet.
    """
    changes: dict[str, Any] = {"updated_ms": now_ms}
    if spilled:
        changes["spilled"] = True
    if head.is_paused and adds.items:
        changes["inbox_epoch"] = head.epoch
    write = Update(
        key=head.key.head,
        add={"signals": 1},
        set=changes,
        condition=unchanged(head),
        token=token,
    )
    return _with_inbox_counts(write, head, adds)


def cancel_write(head: Head, *, reason: str, now_ms: int, token: str) -> Update:
    """Return the write that requests a cancellation. A run without an owner becomes due."""
    changes: dict[str, Any] = {"cancel": reason[:TEXT_CHARS_MAX], "updated_ms": now_ms}
    if head.owner is None:
        index_key = head.due_index_key(now_ms, head.epoch)
        changes |= {"GSI1PK": index_key.pk, "GSI1SK": index_key.sk}
    return Update(key=head.key.head, set=changes, condition=unchanged(head), token=token)


def retry_write(head: Head, request: RetryRequest, *, now_ms: int, token: str) -> Update:
    """Return the write that reopens a failed run for a retry."""
    index_key = head.due_index_key(now_ms, head.epoch + 1)
    return Update(
        key=head.key.head,
        set={
            "status": "running",
            "epoch": head.epoch + 1,
            "retry": as_map(request),
            "resume_failures": 0,
            "updated_ms": now_ms,
            "GSI1PK": index_key.pk,
            "GSI1SK": index_key.sk,
            **list_attributes(head, trouble=False),
        },
        # A worker may own an ended run to settle its obligations.
        remove=("failure", "owner", "reason", "losses"),
        condition=unchanged(head),
        token=token,
    )


def retention_class_write(head: Head, kept: str, *, now_ms: int, token: str) -> Update:
    """Return the write that adds a retention class for blobs of an extended run."""
    return Update(
        key=head.key.head,
        set={"kept": kept, "kept_before": [*head.kept_before, head.kept], "updated_ms": now_ms},
        condition=AllOf((*unchanged(head).conditions, Equals("kept", head.kept))),
        token=token,
    )


def lifetime_write(
    head: Head, *, ttl: int, expires_ms: int, snapshot: int, now_ms: int, token: str
) -> Update:
    """Return the first write of an extension: new signals get the new ttl.

    The expiry does not change yet. The signals in the inbox are extended next.
    """
    known = Equals("snapshot", head.snapshot) if head.snapshot else Absent("snapshot")
    return Update(
        key=head.key.head,
        set={
            "ttl": ttl,
            "extends_ms": expires_ms,
            "snapshot": max(snapshot, head.snapshot),
            "updated_ms": now_ms,
        },
        condition=AllOf((*unchanged(head).conditions, known)),
        token=token,
    )


def extend_write(
    head: Head,
    *,
    expires_ms: int,
    wakes: bool,
    free_ms: int | None = None,
    now_ms: int,
    token: str,
) -> Update:
    """Return the last write of an extension: the new expiry, and the new due time.

    If the row may not show all waits, the due time stays, and the run corrects it when it resumes.
    A run that it ``wakes`` is due now. A failed run is due at ``free_ms``, to delete its blobs,
    unless it is due before: it then corrects that, too.
    """
    changes: dict[str, Any] = {"expires_ms": expires_ms, "updated_ms": now_ms}
    waits = (
        head.status == "waiting" and 0 < len(head.waits) < ROW_WAITS_MAX
    )  # a woken run does not wait
    if wakes and head.status == "waiting" and head.owner is None:
        index_key = head.due_index_key(now_ms, head.epoch)
        changes |= {"status": "running", "GSI1PK": index_key.pk, "GSI1SK": index_key.sk}
    elif waits and head.index_key == head.due_index_key(head.expires_ms, head.epoch):
        limits = [wait.due_ms for wait in head.waits if wait.due_ms is not None]
        earliest = min(limits, default=expires_ms)
        later = msgspec.structs.replace(head, expires_ms=expires_ms)
        index_key = later.due_index_key(earliest, head.epoch)
        changes |= {"GSI1PK": index_key.pk, "GSI1SK": index_key.sk}
    elif free_ms is not None and head.owner is None and head.index_key is None:
        index_key = IndexKey.due(head.due_queue, free_ms, head.key, head.epoch)
        extent = msgspec.structs.replace(head.extent, blobs=True)
        changes |= {"context": as_map(extent), "GSI1PK": index_key.pk, "GSI1SK": index_key.sk}
    return Update(
        key=head.key.head,
        set=changes,
        remove=("extends_ms",) if head.extends_ms <= expires_ms else (),
        condition=unchanged(head),
        token=token,
    )


def index_key_in(write: Update) -> IndexKey:
    """Return the index key that a write sets."""
    return IndexKey(write.set["GSI1PK"], write.set["GSI1SK"])


def _with_inbox_counts(write: Update, head: Head, adds: InboxSize) -> Update:
    """Return the write of a sender with the counters of the inbox.

    Stale counters, left by an owner of an early release, are replaced.
    """
    counters = inbox_counters(adds)
    if not head.has_stale_inbox_counts:
        return msgspec.structs.replace(write, add={**write.add, **counters})
    assert isinstance(write.condition, AllOf)
    return msgspec.structs.replace(
        write,
        set={**write.set, **counters},
        remove=tuple(name for name in INBOX_COUNTERS if name not in counters),
        condition=AllOf((*write.condition.conditions, Equals("inbox_items", head.inbox_items))),
    )
