"""Every change of a run's row, as a write that somebody else carries out.

Every change of who holds a run raises its epoch by one, in the same conditional write. So a
condition on the epoch never comes true again, and a late or repeated write changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.model.budget import BudgetLimits
from holdfast.model.event import Failure
from holdfast.model.execution import Execution, nodes_summary
from holdfast.model.run import Status
from holdfast.model.spending import NO_SPENDING
from holdfast.model.wait import Wait
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
from holdfast.records.keys import IndexKey, RunKey, list_index_key
from holdfast.storage import Absent, AllOf, AnyOf, Equals, Less, Put, Update
from holdfast.storage.writes import Condition

__all__ = [
    "budget_write",
    "cancel_write",
    "claim_write",
    "close_write",
    "create_write",
    "end_write",
    "extend_write",
    "forced_release_write",
    "free_write",
    "inbox_count_write",
    "index_key_in",
    "lifetime_write",
    "mark_parent_write",
    "notify_owner_write",
    "pause_write",
    "postpone_free_write",
    "release_write",
    "requeue_write",
    "retention_class_write",
    "retry_write",
    "snapshot_pointer_write",
    "wake_write",
]

_TEXT_CHARS_MAX = 400
_TRACE_CHARS_MAX = 1_000
_INBOX_COUNTERS = ("inbox_items", "inbox_bytes")
_EMPTY_INBOX = InboxSize()


def create_write(head: Head, *, now_ms: int, token: str) -> Put:
    """Return the write that makes a run where there is none, or only the rest of an old one."""
    list_pk, list_sk = list_index_key(
        head.key, head.created_ms, head.list_shards, trouble=head.status in TROUBLED
    )
    item: dict[str, Any] = {
        "PK": head.key.pk,
        "SK": "HEAD",
        "GSI2PK": list_pk,
        "GSI2SK": list_sk,
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
        item["parent"] = _as_map(head.parent)
    if head.budget is not None:
        item["budget"] = _as_map(head.budget)
    if head.payer is not None:
        item["draws"] = _as_map(head.payer)
    if head.owner is not None:
        item["owner"] = head.owner
    if head.extent != JournalExtent():
        item["context"] = _as_map(head.extent)
    free = AnyOf((Absent("PK"), Less("ttl", now_ms // 1000)))
    return Put(item, free, token)


def claim_write(
    index_key: IndexKey, run: RunKey, *, worker: str, now_ms: int, token: str
) -> Update:
    """Return the write by which a worker takes a run that it saw at a place of the due index.

    The whole place is compared, since what an index shows may be old.
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
        # What a newer release wrote is left to those that can read it.
        condition=AllOf((*_at_index_key(index_key).conditions, Less("schema", SCHEMA + 1))),
        token=token,
    )


def requeue_write(
    index_key: IndexKey, *, lost: bool, now_ms: int, token: str, in_ms: int = 0
) -> Update:
    """Return the write that makes a run due again which a worker held and did not release.

    ``lost`` says whether the worker is dead: then it counts, until an owner lets go of the run.
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
        condition=_at_index_key(index_key),
        token=token,
    )


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
    """Return the write by which its owner lets go of a run that waits.

    It fails if a signal or a cancellation came that the owner has not seen: whoever comes after
    this write finds the run waiting, and wakes it. So ``inbox``, what the owner has not taken, is
    all that waits there.
    """
    write = _release_update(
        head,
        execution,
        {
            "status": "waiting",
            "waits": [_as_map(wait) for wait in waits],
            "reason": reason,
            "retries_left": retries_left,
            **_inbox_counters(inbox),
            **({"inbox_epoch": head.epoch + 1} if inbox.items else {}),
        },
        index_key=head.due_index_key(due_ms, head.epoch + 1),
        extent=extent,
        now_ms=now_ms,
        token=token,
        remove=(*_INBOX_COUNTERS, "inbox_epoch"),
    )
    condition = AllOf(
        (*_same_epoch_and_lifetime(head).conditions, _no_unseen_signals(signals), Absent("cancel"))
    )
    return msgspec.structs.replace(write, condition=condition)


def inbox_count_write(
    head: Head, *, signals: int, inbox: InboxSize, now_ms: int, token: str
) -> Update:
    """Return the write by which its owner says what waits in the inbox of a run that it holds.

    Like a pause, it fails if a signal came that the owner has not seen.
    """
    changes = {"updated_ms": now_ms, **_inbox_counters(inbox)}
    return Update(
        key=head.key.head,
        set=changes,
        remove=tuple(name for name in _INBOX_COUNTERS if name not in changes),
        condition=AllOf((*_same_epoch_and_lifetime(head).conditions, _no_unseen_signals(signals))),
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
    now_ms: int,
    token: str,
) -> Update:
    """Return the write by which its owner lets go of a run that somebody else can go on with."""
    changes: dict[str, Any] = {
        # One that is past its expiry does not open again.
        "status": "closing" if head.status == "closing" else "running",
        "reason": reason,
        "retries_left": retries_left,
        "resume_failures": resume_failures,
    }
    # When the run began to wait still stands, until it pauses again.
    if head.waits:
        changes["waits"] = [_as_map(wait) for wait in head.waits]
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
    """Return the write by which its owner lets go of a run whose row refuses any other write.

    The row says as little as can be. As after a crash, the next owner fences the journal. With a
    ``failure`` the run is quarantined, and due again only to pay what it owes; unless the row asks
    for another cancellation than ``cancel``, the one the owner knew of when it fell: the next owner
    carries that one out.
    """
    condition = _same_epoch_and_lifetime(head)
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
        list_pk, list_sk = list_index_key(head.key, head.created_ms, head.list_shards, trouble=True)
        short = _truncated_failure(failure, with_trace=True)
        changes |= {"status": "quarantined", "failure": short, "GSI2PK": list_pk, "GSI2SK": list_sk}
        removed += ("cancel", "retry")
        condition = AllOf((*condition.conditions, _cancel_known(head)))
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
    extent: JournalExtent,
    now_ms: int,
    token: str,
) -> Update:
    """Return the write by which its owner closes a run; it is due again only to be freed.

    It fails if a blob came with a signal that the owner has not seen; and, where the run is
    quarantined, if the owner has not seen that it is to be cancelled.
    """
    changes: dict[str, Any] = {"status": status}
    if failure is not None:
        changes["failure"] = _truncated_failure(failure, with_trace=status == "quarantined")
    if status in TROUBLED:
        list_pk, list_sk = list_index_key(head.key, head.created_ms, head.list_shards, trouble=True)
        changes |= {"GSI2PK": list_pk, "GSI2SK": list_sk}
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
    conditions = [*_same_epoch_and_lifetime(head).conditions]
    if not head.spilled:
        # A blob that came meanwhile must be freed one day, too.
        conditions.append(Absent("spilled"))
    if status == "quarantined":
        # Any other end stands in the journal, where a cancellation comes before or after it. This
        # one is in the row alone: the journal could still say afterwards that it was cancelled.
        conditions.append(_cancel_known(head))
    return msgspec.structs.replace(write, condition=AllOf(tuple(conditions)))


def budget_write(head: Head, limits: BudgetLimits, *, now_ms: int, token: str) -> Update:
    """Return the write that gives a run another budget.

    Its owner, should it be about to pause, has to look again. It is refused where the run was given
    another budget since: one that arrives late must not undo a later one.
    """
    known = Equals("fundings", head.fundings) if head.fundings else Absent("fundings")
    return Update(
        key=head.key.head,
        set={"budget": _as_map(limits), "updated_ms": now_ms},
        add={"signals": 1, "fundings": 1},
        condition=AllOf((*_unchanged(head).conditions, known)),
        token=token,
    )


def postpone_free_write(head: Head, *, due_ms: int | None, now_ms: int, token: str) -> Update:
    """Return the write by which its owner lets go of a run that has ended, to be freed later.

    Where there is nothing to be freed, ``due_ms`` is None, and the run leaves the due index.
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
        condition=_same_epoch_and_lifetime(head),
        token=token,
    )


def close_write(head: Head, *, status: Status, now_ms: int, token: str) -> Update:
    """Return the write after which a run that its owner still holds takes no signal any more.

    It compares the status, too: the epoch stays, and a late sending must not undo what came after.
    """
    return Update(
        key=head.key.head,
        set={"status": status, "updated_ms": now_ms},
        condition=_unchanged(head),
        token=token,
    )


def free_write(head: Head, *, now_ms: int, token: str) -> Update:
    """Return the write that takes a run out of the due index for good."""
    return Update(
        key=head.key.head,
        set={"epoch": head.epoch + 1, "updated_ms": now_ms, "freed": True},
        remove=("owner", "torn", "waits", "GSI1PK", "GSI1SK", "input", "context", "snapshot"),
        condition=_same_epoch_and_lifetime(head),
        token=token,
    )


def mark_parent_write(head: Head, *, now_ms: int, token: str) -> Update:
    """Return the write after which whoever ends the run looks for its children."""
    return Update(
        key=head.key.head,
        set={"children": True, "updated_ms": now_ms},
        condition=_unchanged(head),
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
    """Return the write that makes a waiting run due now, or gives it to a worker at once.

    ``adds`` is what came into its inbox.
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
                *_same_epoch_and_lifetime(head).conditions,
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
    """Return the write that tells the owner of a run that a signal lies in its inbox.

    ``adds`` is what came there, and was not counted before.
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
        condition=_unchanged(head),
        token=token,
    )
    return _with_inbox_counts(write, head, adds)


def cancel_write(head: Head, *, reason: str, now_ms: int, token: str) -> Update:
    """Return the write that asks for a run to be cancelled, and makes it due if nobody holds it."""
    changes: dict[str, Any] = {"cancel": reason[:_TEXT_CHARS_MAX], "updated_ms": now_ms}
    if head.owner is None:
        index_key = head.due_index_key(now_ms, head.epoch)
        changes |= {"GSI1PK": index_key.pk, "GSI1SK": index_key.sk}
    return Update(key=head.key.head, set=changes, condition=_unchanged(head), token=token)


def retry_write(head: Head, request: RetryRequest, *, now_ms: int, token: str) -> Update:
    """Return the write that opens a failed run again."""
    index_key = head.due_index_key(now_ms, head.epoch + 1)
    list_pk, list_sk = list_index_key(head.key, head.created_ms, head.list_shards, trouble=False)
    return Update(
        key=head.key.head,
        set={
            "status": "running",
            "epoch": head.epoch + 1,
            "retry": _as_map(request),
            "resume_failures": 0,
            "updated_ms": now_ms,
            "GSI1PK": index_key.pk,
            "GSI1SK": index_key.sk,
            "GSI2PK": list_pk,
            "GSI2SK": list_sk,
        },
        # One that ended, and owes something, may be held by whoever pays.
        remove=("failure", "owner", "reason", "losses"),
        condition=_unchanged(head),
        token=token,
    )


def snapshot_pointer_write(head: Head, snapshot: int, *, now_ms: int, token: str) -> Update:
    """Return the write by which its owner tells readers where to begin; it never goes back."""
    earlier = AnyOf((Absent("snapshot"), Less("snapshot", snapshot)))
    return Update(
        key=head.key.head,
        set={"snapshot": snapshot, "updated_ms": now_ms},
        condition=AllOf((*_same_epoch(head).conditions, earlier)),
        token=token,
    )


def retention_class_write(head: Head, kept: str, *, now_ms: int, token: str) -> Update:
    """Return the write after which blobs may lie under another retention class as well."""
    return Update(
        key=head.key.head,
        set={"kept": kept, "kept_before": [*head.kept_before, head.kept], "updated_ms": now_ms},
        condition=AllOf((*_unchanged(head).conditions, Equals("kept", head.kept))),
        token=token,
    )


def lifetime_write(
    head: Head, *, ttl: int, expires_ms: int, snapshot: int, now_ms: int, token: str
) -> Update:
    """Return the write after which new signals last for the life that a run is to have.

    Its expiry is as it was: the signals that are there already come next.
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
        condition=AllOf((*_unchanged(head).conditions, known)),
        token=token,
    )


def extend_write(head: Head, *, expires_ms: int, wakes: bool, now_ms: int, token: str) -> Update:
    """Return the write that gives a run more time; one that was due at its expiry is due later.

    Where the row may not show all of its waits, it stays due as it is: then it finds out by itself.
    A run that it ``wakes`` is due now.
    """
    changes: dict[str, Any] = {"expires_ms": expires_ms, "updated_ms": now_ms}
    waits = head.status == "waiting" and 0 < len(head.waits) < ROW_WAITS_MAX  # woken, it does not
    if wakes and head.status == "waiting" and head.owner is None:
        index_key = head.due_index_key(now_ms, head.epoch)
        changes |= {"status": "running", "GSI1PK": index_key.pk, "GSI1SK": index_key.sk}
    elif waits and head.index_key == head.due_index_key(head.expires_ms, head.epoch):
        limits = [wait.due_ms for wait in head.waits if wait.due_ms is not None]
        earliest = min(limits, default=expires_ms)
        later = msgspec.structs.replace(head, expires_ms=expires_ms)
        index_key = later.due_index_key(earliest, head.epoch)
        changes |= {"GSI1PK": index_key.pk, "GSI1SK": index_key.sk}
    return Update(
        key=head.key.head,
        set=changes,
        remove=("extends_ms",) if head.extends_ms <= expires_ms else (),
        condition=_unchanged(head),
        token=token,
    )


def index_key_in(write: Update) -> IndexKey:
    """Return the place to which a write moves its row."""
    return IndexKey(write.set["GSI1PK"], write.set["GSI1SK"])


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
        "context": _as_map(extent),
        "updated_ms": now_ms,
        **changes,
    }
    if execution.spent != NO_SPENDING:
        updates["tokens"] = execution.spent.tokens
        updates["nanodollars"] = execution.spent.nanodollars
    if head.needs_fence:
        updates["torn"] = True  # nobody got to write the fence
    removed = {"owner", "torn", "waits", "reason", "resume_failures", "losses", "failure", *remove}
    if index_key is None:
        removed |= {"GSI1PK", "GSI1SK"}
    else:
        updates |= {"GSI1PK": index_key.pk, "GSI1SK": index_key.sk}
    return Update(
        key=head.key.head,
        set=updates,
        remove=tuple(sorted(removed - updates.keys())),
        condition=_same_epoch_and_lifetime(head),
        token=token,
    )


def _inbox_counters(inbox: InboxSize) -> dict[str, int]:
    """Return the counters of a row; it has none where they are 0."""
    return {
        name: value
        for name, value in zip(_INBOX_COUNTERS, (inbox.items, inbox.bytes), strict=True)
        if value
    }


def _with_inbox_counts(write: Update, head: Head, adds: InboxSize) -> Update:
    """Return a write of a sender that also counts what came into the inbox.

    Counters that an owner of an earlier release left as they were begin anew.
    """
    counters = _inbox_counters(adds)
    if not head.has_stale_inbox_counts:
        return msgspec.structs.replace(write, add={**write.add, **counters})
    assert isinstance(write.condition, AllOf)
    return msgspec.structs.replace(
        write,
        set={**write.set, **counters},
        remove=tuple(name for name in _INBOX_COUNTERS if name not in counters),
        condition=AllOf((*write.condition.conditions, Equals("inbox_items", head.inbox_items))),
    )


def _no_unseen_signals(signals: int) -> Equals | Absent:
    """No signal came but those that were counted when the inbox was read."""
    return Equals("signals", signals) if signals else Absent("signals")


def _same_epoch(head: Head) -> AllOf:
    """Nobody claimed, released or re-queued the run since: that would have raised the epoch."""
    return AllOf((Equals("generation", head.generation), Equals("epoch", head.epoch)))


def _same_epoch_and_lifetime(head: Head) -> AllOf:
    """Nor did anybody extend it: whoever does not know that must look again first."""
    lifetime = (Equals("ttl", head.ttl), Equals("expires_ms", head.expires_ms))
    return AllOf((*_same_epoch(head).conditions, *lifetime))


def _unchanged(head: Head) -> AllOf:
    """Nobody claimed, released, paused or ended the run since."""
    return AllOf((*_same_epoch_and_lifetime(head).conditions, Equals("status", head.status)))


def _cancel_known(head: Head) -> Condition:
    """No cancellation was asked for since."""
    return Absent("cancel") if head.cancel is None else Equals("cancel", head.cancel)


def _at_index_key(index_key: IndexKey) -> AllOf:
    return AllOf((Equals("GSI1PK", index_key.pk), Equals("GSI1SK", index_key.sk)))


def _as_map(value: msgspec.Struct) -> dict[str, Any]:
    names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
    return {
        stored: field
        for name, stored in names
        if (field := getattr(value, name)) is not None and field != ""
    }


def _truncated_failure(failure: Failure, *, with_trace: bool) -> dict[str, Any]:
    # The journal has the whole of it, except where the journal is what cannot be read.
    trace = failure.trace[-_TRACE_CHARS_MAX:] if with_trace else ""
    return _as_map(
        Failure(failure.type[:_TEXT_CHARS_MAX], failure.message[:_TEXT_CHARS_MAX], trace)
    )
