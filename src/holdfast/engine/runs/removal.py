"""Deletes the data of an ended run: blobs, journal, inbox, text, and the contents of its maps."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import ConditionFailed, JournalDamaged, RunNotFound
from holdfast.model.event import Event, Failed, Failure, Fenced
from holdfast.model.fold import is_terminal
from holdfast.records.blob_keys import blob_prefix
from holdfast.records.codec import pack, unpack_events
from holdfast.records.head import ENDED, Head, JournalExtent
from holdfast.records.journal import free_item_write
from holdfast.records.keys import map_contents_range, maps_range, run_data_range
from holdfast.records.map import free_map_write, map_of_item
from holdfast.storage import Delete, Key, Put
from holdfast.storage.layout import TOKEN

__all__ = [
    "check_journal_kept",
    "empty_endings",
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
    """Delete a run's blobs, journal, inbox and text, and the contents of its maps; idempotent.

    Empty records keep the positions of the journal until their ttl, so that no late write can take
    one. The chunks of its maps are runs of their own.
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
    if head.maps:
        await _free_maps(kernel, head)


async def empty_endings(kernel: Kernel, head: Head) -> None:
    """Reduce the records with the end of a freed run to the end itself; idempotent.

    `free_run` leaves them, because a stalled owner reads how the run ended. They also have the
    events that were written together with the end: of a short run, all of them.
    """
    async for item in kernel.journals.query_all(head.key.pk, run_data_range(head.generation)):
        if item.get("stays") != "whole" or not isinstance(item.get("data"), bytes):
            continue
        try:
            events = await kernel.offload.run(len(item["data"]), unpack_events, item["data"])
        except JournalDamaged as error:
            kernel.note_damage(item, error)
            continue
        kept = [_without_message(event) for event in events if _is_end(event)]
        if kept != events:
            write = Put({**item, "data": pack(kept)}, token=item.get(TOKEN))
            await kernel.journals.write_many([write])


def _is_end(event: Event) -> bool:
    return isinstance(event, Fenced) or is_terminal(event)


def _without_message(event: Event) -> Event:
    if not isinstance(event, Failed):
        return event
    return msgspec.structs.replace(event, failure=Failure(event.failure.type, "", ""))


async def _free_maps(kernel: Kernel, head: Head) -> None:
    """Delete the items with values and results of a run's maps, and what the maps were given."""
    run, generation = head.key, head.generation
    batch: list[Put | Delete] = []
    async for item in kernel.maps.query_all(run.pk, map_contents_range(generation)):
        batch.append(Delete(Key(item["PK"], item["SK"])))
        if len(batch) == _BATCH_ITEMS:
            await kernel.maps.write_many(batch)
            batch = []
    await kernel.maps.write_many(batch)
    async for item in kernel.maps.query_all(run.pk, maps_range(generation)):
        try:
            spec = map_of_item(item)
        except JournalDamaged as error:  # it is deleted by its ttl
            kernel.note_damage(item, error)
            continue
        write = free_map_write(run, generation, spec, token=kernel.ids.new())
        if write is not None:
            with suppress(ConditionFailed):  # its ttl has passed
                await kernel.resolve_write(kernel.maps, write)
