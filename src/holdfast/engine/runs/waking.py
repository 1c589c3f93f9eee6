"""Wakes waiting runs: makes them due, or lets a worker of this process claim them at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.local_workers import LocalWorkers, reserve_slot
from holdfast.errors import ConditionFailed, RunNotFound
from holdfast.records import run_writes
from holdfast.records.head import OPEN, Head, InboxSize, head_of
from holdfast.storage import Update
from holdfast.storage.layout import TOKEN

__all__ = [
    "conflicting_head",
    "notify_owner",
    "update_head",
    "wake_or_notify",
    "wake_queued",
    "wake_run",
]

_NOTHING = InboxSize()


async def wake_run(
    kernel: Kernel,
    workers: LocalWorkers,
    head: Head,
    *,
    spilled: bool,
    inbox_added: InboxSize = _NOTHING,
) -> Head | None:
    """Wake a waiting run; return None, or the current row if it has changed.

    ``inbox_added`` is what was added to its inbox.

    Raises:
        RunNotFound: the run is gone, or another run has its id.
    """
    slot_for_run = reserve_slot(
        workers, head.key, head.graph, head.pool, unwritten=(ConditionFailed,)
    )
    try:
        with slot_for_run as slot:
            now, worker, token = kernel.clock.now_ms(), slot.owner, kernel.ids.new()
            write = run_writes.wake_write(
                head, worker=worker, spilled=spilled, adds=inbox_added, now_ms=now, token=token
            )
            claimed = (worker, head.epoch + 1)
            item = await kernel.resolve_write(
                kernel.heads,
                write,
                was_applied=lambda item: (
                    worker is not None and (item.get("owner"), item.get("epoch")) == claimed
                ),
            )
            if worker is None:
                workers.offer(run_writes.index_key_in(write))
                return None
            current = head_of(item)
            slot.start_run(current)
    except ConditionFailed as failed:
        return conflicting_head(head, failed)
    # Another caller may have woken it for the same worker, without counting what we put there.
    return None if item.get(TOKEN) == token else current


async def notify_owner(
    kernel: Kernel, head: Head, *, spilled: bool, inbox_added: InboxSize = _NOTHING
) -> Head | None:
    """Tell the owner of a run to look at its inbox; return None, or the row if that has changed.

    The owner compares the row when the run pauses, and then finds that it was notified.

    Raises:
        RunNotFound: the run is gone, or another run has its id.
    """
    now, token = kernel.clock.now_ms(), kernel.ids.new()
    write = run_writes.notify_owner_write(
        head, spilled=spilled, adds=inbox_added, now_ms=now, token=token
    )
    return await update_head(kernel, head, write)


async def wake_or_notify(
    kernel: Kernel, workers: LocalWorkers, head: Head, *, needs: Callable[[Head], bool]
) -> None:
    """Wake a run that waits, or notify its owner, as long as the run is open and ``needs`` it.

    ``needs`` gets the row as it is read. It is asked again whenever the row has changed meanwhile.
    """
    current: Head | None = head
    with suppress(RunNotFound):
        while current is not None and current.status in OPEN and needs(current):
            if _is_waiting(current):
                current = await wake_run(kernel, workers, current, spilled=False)
            else:
                current = await notify_owner(kernel, current, spilled=False)


async def wake_queued(kernel: Kernel, workers: LocalWorkers, head: Head) -> None:
    """Tell a run that it is at the front of its session queue, unless it has begun.

    Its owner may have looked at the queue before that, and be about to pause the run again. So the
    owner is notified too: every pause compares how often the run was notified.
    """

    def needs(head: Head) -> bool:
        if _is_waiting(head):
            return head.reason == "queued"
        return head.owner is not None and not head.nodes_run

    await wake_or_notify(kernel, workers, head, needs=needs)


def _is_waiting(head: Head) -> bool:
    return head.status == "waiting" and head.owner is None


async def update_head(
    kernel: Kernel,
    head: Head,
    write: Update,
    was_applied: Callable[[dict[str, Any]], bool] | None = None,
) -> Head | None:
    """Write a row that was read before; return None, or the current row if it has changed.

    Raises:
        RunNotFound: the run is gone, or another run has its id.
    """
    try:
        await kernel.resolve_write(kernel.heads, write, was_applied=was_applied)
    except ConditionFailed as failed:
        return conflicting_head(head, failed)
    return None


def conflicting_head(head: Head, failed: ConditionFailed) -> Head:
    """Return the current row after a write failed its condition.

    Raises:
        RunNotFound: the run is gone, or another run has its id.
    """
    current = None if failed.item is None else head_of(failed.item)
    if current is None or current.generation != head.generation:
        raise RunNotFound(f"the run {head.key.id!r} is gone") from None
    return current
