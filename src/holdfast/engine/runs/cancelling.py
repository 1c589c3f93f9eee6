"""Cancels runs."""

from __future__ import annotations

import msgspec

from holdfast.engine.journal.reader import Loaded, load_journal
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.local_workers import NOBODY, Hands
from holdfast.engine.runs.obligations import owes, owes_family, pay
from holdfast.engine.runs.removal import freed_at_ms
from holdfast.engine.runs.rows import check_not_freed, read_row
from holdfast.engine.runs.waking import changed
from holdfast.errors import (
    ConditionFailed,
    JournalDamaged,
    RunEnded,
)
from holdfast.model.event import Cancelled
from holdfast.model.execution import folded
from holdfast.records import changes
from holdfast.records.codec import pack
from holdfast.records.head import (
    ENDED,
    Head,
)
from holdfast.records.journal import (
    Content,
    record,
)
from holdfast.records.keys import RunKey

__all__ = ["cancel_run"]


async def cancel_run(kernel: Kernel, run: RunKey, *, reason: str, hands: Hands = NOBODY) -> Head:
    """End a run; whoever holds it learns of it at its next write. Return its row.

    First the row says that it is to end, so that nobody can forget it; then it stands in the
    journal, after which nothing else can.

    Raises:
        RunNotFound: there is no such run.
        RunEnded: it ended before, otherwise than by being cancelled.
    """
    head = await read_row(kernel, run)
    while True:
        if head.status == "cancelled":
            return head
        now = kernel.clock.now_ms()
        if head.status in ENDED or now >= head.expires_ms:
            status = head.status if head.status in ENDED else "expired"
            raise RunEnded(f"run {run.id!r} is {status}", status=status)
        if head.cancel is not None:
            break
        write = changes.with_cancel(head, reason=reason, now_ms=now, token=kernel.ids.new())
        head = await changed(kernel, head, write) or await read_row(kernel, run)
    return await _cancelled(kernel, hands, head, reason)


async def _cancelled(kernel: Kernel, hands: Hands, head: Head, reason: str) -> Head:
    while True:
        try:
            loaded = await load_journal(kernel, head)
        except JournalDamaged:
            await check_not_freed(kernel, head.key)
            raise
        ending = loaded.execution.ending
        if head.retry_owed(loaded.execution) is not None:
            return head  # whoever opens it again finds in its row that it is to end
        if ending is not None and ending != "cancelled":
            raise RunEnded(f"run {head.key.id!r} is {ending}", status=ending)
        if ending is None:
            event = Cancelled(kernel.clock.now_ms(), reason)
            content = Content(pack([event]))
            position, token = loaded.context.position, kernel.ids.new()
            lasting = head.lasting(loaded.execution)
            put = record(lasting, position, content, token=token, whole=True)
            try:
                await kernel.settle(kernel.journals, put)
            except ConditionFailed:
                continue  # somebody wrote there first
            loaded = msgspec.structs.replace(loaded, execution=folded(loaded.execution, [event]))
        return await _closed(kernel, hands, head.key, loaded)


async def _closed(kernel: Kernel, hands: Hands, run: RunKey, loaded: Loaded) -> Head:
    """Close the row of a cancelled run that nobody holds; an owner closes it by itself."""
    head = await read_row(kernel, run)
    if head.owner is not None or head.status in ENDED:
        return head
    if owes_family(head):
        return head  # a worker ends it, and those that end with it; until then it is due
    if owes(head):
        # The row is due, and stays so until this is done: should we die, a worker does it.
        await pay(kernel, hands, head)
    write = changes.ended(
        head,
        loaded.execution,
        status="cancelled",
        failure=loaded.execution.failure,
        due_ms=freed_at_ms(head, loaded.context),
        context=loaded.context,
        now_ms=kernel.clock.now_ms(),
        token=kernel.ids.new(),
    )
    return await changed(kernel, head, write) or await read_row(kernel, run)
