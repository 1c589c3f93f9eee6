"""Cancels runs."""

from __future__ import annotations

import msgspec

from holdfast.engine.journal.reader import LoadedRun, load_journal
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.local_workers import NO_WORKERS, LocalWorkers
from holdfast.engine.runs.obligations import (
    has_family_obligations,
    has_obligations,
    settle_obligations,
)
from holdfast.engine.runs.removal import freed_at_ms
from holdfast.engine.runs.rows import check_not_freed, read_row
from holdfast.engine.runs.waking import update_head
from holdfast.errors import (
    ConditionFailed,
    JournalDamaged,
    RunEnded,
)
from holdfast.model.event import Cancelled
from holdfast.model.fold import folded
from holdfast.records import owner_writes, run_writes
from holdfast.records.codec import pack
from holdfast.records.head import (
    ENDED,
    Head,
)
from holdfast.records.journal import (
    Content,
    record_write,
)
from holdfast.records.keys import RunKey

__all__ = ["cancel_run"]


async def cancel_run(
    kernel: Kernel, run: RunKey, *, reason: str, workers: LocalWorkers = NO_WORKERS
) -> Head:
    """Cancel a run, and return its row; the owner of the run notices at its next write.

    The request goes into the row first, so that it cannot be lost. Then the end goes into the
    journal, after which nothing else can be written there.

    Raises:
        RunNotFound: there is no such run.
        RunEnded: the run ended before in another way.
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
        write = run_writes.cancel_write(head, reason=reason, now_ms=now, token=kernel.ids.new())
        head = await update_head(kernel, head, write) or await read_row(kernel, run)
    return await _write_cancellation(kernel, workers, head, reason)


async def _write_cancellation(
    kernel: Kernel, workers: LocalWorkers, head: Head, reason: str
) -> Head:
    while True:
        try:
            loaded = await load_journal(kernel, head)
        except JournalDamaged:
            await check_not_freed(kernel, head.key)
            raise
        ending = loaded.execution.ending
        if head.pending_retry(loaded.execution) is not None:
            return head  # the worker that retries the run finds the request in its row
        if ending is not None and ending != "cancelled":
            raise RunEnded(f"run {head.key.id!r} is {ending}", status=ending)
        if ending is None:
            event = Cancelled(kernel.clock.now_ms(), reason)
            content = Content(pack([event]))
            position, token = loaded.extent.position, kernel.ids.new()
            lasting = head.with_journal_lifetime(loaded.execution)
            put = record_write(lasting, position, content, token=token, whole=True)
            try:
                await kernel.resolve_write(kernel.journals, put)
            except ConditionFailed:
                continue  # another process wrote the position first
            loaded = msgspec.structs.replace(loaded, execution=folded(loaded.execution, [event]))
        return await _close_row(kernel, workers, head.key, loaded)


async def _close_row(kernel: Kernel, workers: LocalWorkers, run: RunKey, loaded: LoadedRun) -> Head:
    """Close the row of a cancelled run that has no owner; an owner closes it itself."""
    head = await read_row(kernel, run)
    if head.owner is not None or head.status in ENDED:
        return head
    if has_family_obligations(head):
        return head  # a worker ends it together with its children; until then it is due
    if has_obligations(head):
        # The row stays due until this is done: if this process dies, a worker does it.
        await settle_obligations(kernel, workers, head)
    write = owner_writes.end_write(
        head,
        loaded.execution,
        status="cancelled",
        failure=loaded.execution.failure,
        due_ms=freed_at_ms(head, loaded.extent),
        extent=loaded.extent,
        now_ms=kernel.clock.now_ms(),
        token=kernel.ids.new(),
    )
    changed = await update_head(kernel, head, write)
    if changed is not None:
        return changed
    closed = await read_row(kernel, run)
    workers.on_cancelled(closed)
    return closed
