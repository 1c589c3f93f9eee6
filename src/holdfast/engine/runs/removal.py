"""Deletes the data of an ended run: blobs, journal, inbox and text."""

from __future__ import annotations

from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import RunNotFound
from holdfast.records.blob_keys import blob_prefix
from holdfast.records.head import ENDED, Head, JournalExtent
from holdfast.records.journal import free_item_write
from holdfast.records.keys import run_data_range
from holdfast.storage import Delete, Put

__all__ = [
    "check_journal_kept",
    "extendable_until_ms",
    "free_run",
    "freed_at_ms",
    "is_freed_by",
    "journal_not_kept",
]

# Rows are deleted by their ttl; their blobs must go before, or no process would find them.
_FREE_BEFORE_TTL_MS = 3600 * 1000
# More than clocks differ: no process extends an ended run while another one frees it.
_EXTEND_BEFORE_FREE_MS = 3600 * 1000
_BATCH_ITEMS = 100


def freed_at_ms(head: Head, extent: JournalExtent) -> int | None:
    """Return when the blobs of an ended run are deleted; None if it has none."""
    if not extent.blobs and not head.spilled:
        return None
    return head.ttl * 1000 - _FREE_BEFORE_TTL_MS


def extendable_until_ms(head: Head) -> int:
    """Return until when an ended run can be extended: then its data is deleted soon."""
    return head.ttl * 1000 - _FREE_BEFORE_TTL_MS - _EXTEND_BEFORE_FREE_MS


def is_freed_by(head: Head, now_ms: int) -> bool:
    """Return whether a run's data may be deleted by now, even if its row does not say so yet."""
    if head.status == "expired":
        return True
    due_ms = freed_at_ms(head, head.extent)
    return head.status in ENDED and due_ms is not None and now_ms >= due_ms


def check_journal_kept(head: Head) -> None:
    """Check that a run's journal is still stored.

    Raises:
        RunNotFound: it is not.
    """
    if head.into is not None:
        raise RunNotFound(f"run {head.key.id!r} has no journal: run {head.into!r} took its input")
    if head.freed:
        raise journal_not_kept(head)


def journal_not_kept(head: Head) -> RunNotFound:
    """Return the error for a run with a deleted journal."""
    return RunNotFound(f"run {head.key.id!r} is {head.status}, and its journal is not kept")


async def free_run(kernel: Kernel, head: Head) -> None:
    """Delete a run's blobs, journal, inbox and text; idempotent.

    Empty records keep the positions of the journal until their ttl, so that no late write can take
    one.
    """
    if kernel.blobs is not None:
        for kept in (head.kept, *head.kept_before):
            await kernel.blobs.delete_all(blob_prefix(kept, head.key, head.generation))
    batch: list[Put | Delete] = []
    async for item in kernel.journals.query_all(head.key.pk, run_data_range(head.generation)):
        write = free_item_write(item)
        if write is not None:
            batch.append(write)
        if len(batch) == _BATCH_ITEMS:
            await kernel.journals.write_many(batch)
            batch = []
    await kernel.journals.write_many(batch)
