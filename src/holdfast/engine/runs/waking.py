"""Wakes runs: makes them due now, or gives them to a worker of this process in the same write."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.local_workers import Hands
from holdfast.errors import ConditionFailed, RunNotFound
from holdfast.records import changes
from holdfast.records.head import OPEN, Head, InboxSize, head_of
from holdfast.storage import Update
from holdfast.storage.layout import TOKEN

__all__ = ["changed", "standing_row", "wake_queued", "woken"]

_NOTHING = InboxSize()


async def woken(
    kernel: Kernel, hands: Hands, head: Head, *, spilled: bool, adds: InboxSize = _NOTHING
) -> Head | None:
    """Wake a run that waits; return None, or its row if it does not look like that any more.

    ``adds`` is what came into its inbox.

    Raises:
        RunNotFound: it is gone, or another run has its id by now.
    """
    room = hands.reserve(head.key, head.graph, head.pool)
    now, worker = kernel.clock.now_ms(), None if room is None else room.owner
    token = kernel.ids.new()
    write = changes.nudged(head, worker=worker, spilled=spilled, adds=adds, now_ms=now, token=token)
    claimed = (worker, head.epoch + 1)
    try:
        item = await kernel.settle(
            kernel.heads,
            write,
            stands=lambda item: (
                room is not None and (item.get("owner"), item.get("epoch")) == claimed
            ),
        )
    except ConditionFailed as failed:
        if room is not None:
            room.give_back()
        return standing_row(head, failed)
    except BaseException:
        if room is not None:
            room.give_back(unsure=True)
        raise
    if room is None:
        hands.offer(changes.place_in(write))
        return None
    standing = head_of(item)
    room.take(standing)
    # Another one may have woken it for the same worker, before there was what we tell of.
    return None if item.get(TOKEN) == write.token else standing


async def wake_queued(kernel: Kernel, hands: Hands, head: Head) -> None:
    """Let a run know that it stands in front, unless it has begun, or will see by itself.

    Whoever holds it may have looked before it stood there, and be about to send it back into the
    queue: that write compares how many signs came, as every pause does.
    """
    standing: Head | None = head
    with suppress(RunNotFound):
        while standing is not None and standing.status in OPEN:
            if standing.owner is None and standing.status == "waiting":
                if standing.reason != "queued":
                    return
                standing = await woken(kernel, hands, standing, spilled=False)
            elif standing.owner is not None and not standing.nodes_run:
                now, token = kernel.clock.now_ms(), kernel.ids.new()
                sign = changes.signalled(standing, spilled=False, now_ms=now, token=token)
                standing = await changed(kernel, standing, sign)
            else:
                return


async def changed(
    kernel: Kernel,
    head: Head,
    write: Update,
    stands: Callable[[dict[str, Any]], bool] | None = None,
) -> Head | None:
    """Change a row that looked like this; return None, or the row as it looks by now.

    Raises:
        RunNotFound: it is gone, or another run has its id by now.
    """
    try:
        await kernel.settle(kernel.heads, write, stands=stands)
    except ConditionFailed as failed:
        return standing_row(head, failed)
    return None


def standing_row(head: Head, failed: ConditionFailed) -> Head:
    """Return the row that stood in the way of a write.

    Raises:
        RunNotFound: it is gone, or another run has its id by now.
    """
    standing = None if failed.item is None else head_of(failed.item)
    if standing is None or standing.generation != head.generation:
        raise RunNotFound(f"the run {head.key.id!r} is gone") from None
    return standing
