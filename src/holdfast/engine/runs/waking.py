"""Wakes waiting runs: makes them due, or lets a worker of this process claim them at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.errors import ConditionFailed, RunNotFound
from holdfast.records import run_writes
from holdfast.records.head import OPEN, Head, InboxSize, head_of
from holdfast.storage import Update
from holdfast.storage.layout import TOKEN

__all__ = ["conflicting_head", "update_head", "wake_queued", "wake_run"]

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
    slot = workers.reserve(head.key, head.graph, head.pool)
    now, worker = kernel.clock.now_ms(), None if slot is None else slot.owner
    token = kernel.ids.new()
    write = run_writes.wake_write(
        head, worker=worker, spilled=spilled, adds=inbox_added, now_ms=now, token=token
    )
    claimed = (worker, head.epoch + 1)
    try:
        item = await kernel.resolve_write(
            kernel.heads,
            write,
            was_applied=lambda item: (
                slot is not None and (item.get("owner"), item.get("epoch")) == claimed
            ),
        )
    except ConditionFailed as failed:
        if slot is not None:
            slot.release()
        return conflicting_head(head, failed)
    except BaseException:
        if slot is not None:
            slot.release(maybe_claimed=True)
        raise
    if slot is None:
        workers.offer(run_writes.index_key_in(write))
        return None
    current = head_of(item)
    slot.start_run(current)
    # Another process may have woken it for the same worker before our signal was there.
    return None if item.get(TOKEN) == write.token else current


async def wake_queued(kernel: Kernel, workers: LocalWorkers, head: Head) -> None:
    """Wake a run that is now at the front of its session queue, unless it has begun.

    Its owner may have looked before that, and be about to pause the run again. So the owner is
    notified, and its pause fails, because every pause compares the number of notifications.
    """
    current: Head | None = head
    with suppress(RunNotFound):
        while current is not None and current.status in OPEN:
            if current.owner is None and current.status == "waiting":
                if current.reason != "queued":
                    return
                current = await wake_run(kernel, workers, current, spilled=False)
            elif current.owner is not None and not current.nodes_run:
                now, token = kernel.clock.now_ms(), kernel.ids.new()
                write = run_writes.notify_owner_write(
                    current, spilled=False, now_ms=now, token=token
                )
                current = await update_head(kernel, current, write)
            else:
                return


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
