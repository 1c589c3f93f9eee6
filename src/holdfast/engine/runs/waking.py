"""Wakes runs: makes them due now, or gives them to a worker of this process in the same write."""

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
    """Wake a run that waits; return None, or its row if it does not look like that any more.

    ``adds`` is what came into its inbox.

    Raises:
        RunNotFound: it is gone, or another run has its id by now.
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
    # Another one may have woken it for the same worker, before there was what we tell of.
    return None if item.get(TOKEN) == write.token else current


async def wake_queued(kernel: Kernel, workers: LocalWorkers, head: Head) -> None:
    """Let a run know that it stands in front, unless it has begun, or will see by itself.

    Whoever holds it may have looked before it stood there, and be about to send it back into the
    queue: that write compares how many signs came, as every pause does.
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
    """Change a row that looked like this; return None, or the row as it looks by now.

    Raises:
        RunNotFound: it is gone, or another run has its id by now.
    """
    try:
        await kernel.resolve_write(kernel.heads, write, was_applied=was_applied)
    except ConditionFailed as failed:
        return conflicting_head(head, failed)
    return None


def conflicting_head(head: Head, failed: ConditionFailed) -> Head:
    """Return the row that stood in the way of a write.

    Raises:
        RunNotFound: it is gone, or another run has its id by now.
    """
    current = None if failed.item is None else head_of(failed.item)
    if current is None or current.generation != head.generation:
        raise RunNotFound(f"the run {head.key.id!r} is gone") from None
    return current
