"""Extends the expiry of a run, and the ttl of everything that the run needs until then.

All items of a run have the ttl of its old expiry, and no single write changes them all. So the
order of the steps is the protocol. A process that dies between two steps has changed nothing that
counts, and another call completes the extension:

1. The row names the retention class of the new blobs, so that they can be deleted.
2. A snapshot with the new ttl is written to the journal. Later writers read it, and use the new
   ttl. Older records may expire.
3. The row gets the new ttl, and readers begin at the snapshot. A sender of a signal compares the
   ttl after its write: from now on each signal lasts long enough, or its sender extends it.
4. The ticket in the session queue gets the new ttl, and so do the related items (children,
   ambiguous calls, budget accounts, reviews) and the signals that were there before.
5. Only now does the row get the new expiry. If a signal came too late for the old expiry, as the
   end of a child can, the same write wakes the run.

The row alone decides: an owner that closes an expired run compares the expiry, and the first write
wins.

A run that failed or is quarantined is extended in the same way, also after its expiry: its snapshot
follows its end. It can then be retried.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec

from holdfast.engine.journal.payloads import delete_orphaned_blob, spill_if_large
from holdfast.engine.journal.reader import LoadedRun, load_journal
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.inbox import extend_signals
from holdfast.engine.runs.removal import extendable_until_ms, freed_at_ms
from holdfast.engine.runs.rows import read_row
from holdfast.engine.runs.session_queue import extend_ticket
from holdfast.engine.runs.waking import conflicting_head
from holdfast.errors import (
    ConditionFailed,
    ExpiryNotLater,
    InvalidRequest,
    InvalidResult,
    JournalDamaged,
    RunEnded,
)
from holdfast.model.event import Extended
from holdfast.model.fold import snapshot
from holdfast.records import run_writes
from holdfast.records.codec import pack
from holdfast.records.head import OPEN, TROUBLED, Head, head_of
from holdfast.records.journal import extend_ttl_write, record_write
from holdfast.records.keys import RunKey, related_items_range
from holdfast.records.lifetime import longer_retention_class, retention_class, ttl_of
from holdfast.records.review import extend_review_write, review_ttl, run_reviews_range
from holdfast.records.times import utc_datetime
from holdfast.storage import Update

__all__ = ["extend_run"]


class _Lifetime(msgspec.Struct, frozen=True):
    """The new expiry, ttl and retention class of a run."""

    expires_ms: int
    ttl: int
    kept: str


async def extend_run(kernel: Kernel, run: RunKey, *, expires_ms: int) -> Head:
    """Extend the expiry of a run; return its row.

    Raises:
        RunNotFound: there is no such run.
        RunEnded: the run has finished, expired or been cancelled; or it has failed, and its data is
            deleted soon.
        ExpiryNotLater: the run already expires later than that.
        InvalidRequest: its state is too large to be stored without a bucket.
    """
    head = await read_row(kernel, run)
    _check_extendable(kernel, head)
    if expires_ms == head.expires_ms:
        return head
    if expires_ms < head.expires_ms:
        raise ExpiryNotLater(
            f"run {run.id!r} expires at {utc_datetime(head.expires_ms)}, and an expiry is never "
            f"shortened: {utc_datetime(expires_ms)} is before that"
        )
    lifetime = _lifetime(head, expires_ms, kernel.clock.now_ms())

    def reclassed(head: Head) -> Update:
        return run_writes.retention_class_write(
            head, lifetime.kept, now_ms=kernel.clock.now_ms(), token=kernel.ids.new()
        )

    def fits(head: Head) -> bool:
        return longer_retention_class(head.kept, lifetime.kept) == head.kept

    head = await _update_until(kernel, head, fits, reclassed)
    loaded = await _write_snapshot(kernel, head, lifetime)
    position = loaded.extent.position

    def lasting(head: Head) -> Update:
        return run_writes.lifetime_write(
            head,
            ttl=max(lifetime.ttl, head.ttl),
            expires_ms=max(lifetime.expires_ms, head.extends_ms),
            snapshot=position,
            now_ms=kernel.clock.now_ms(),
            token=kernel.ids.new(),
        )

    def lasts(head: Head) -> bool:
        return head.ttl >= lifetime.ttl and head.snapshot >= position

    head = await _update_until(kernel, head, lasts, lasting)
    await extend_ticket(kernel, head)
    await _extend_related_items(kernel, head)
    return await _write_expiry(kernel, head, expires_ms, loaded)


async def _write_expiry(kernel: Kernel, head: Head, expires_ms: int, loaded: LoadedRun) -> Head:
    """Extend the ttl of the signals, then the expiry of the run; return its row."""
    taken = loaded.execution.answered
    wakes = await extend_signals(kernel, head, taken)
    while head.expires_ms < expires_ms:
        _check_extendable(kernel, head)
        write = run_writes.extend_write(
            head,
            expires_ms=expires_ms,
            wakes=wakes,
            free_ms=freed_at_ms(head, loaded.extent) if head.status in TROUBLED else None,
            now_ms=kernel.clock.now_ms(),
            token=kernel.ids.new(),
        )
        try:
            return head_of(await kernel.resolve_write(kernel.heads, write))
        except ConditionFailed as failed:
            head = conflicting_head(head, failed)
        if head.status == "waiting" and head.owner is None:
            # The run may have been woken, ignored the late signal, and wait again.
            wakes = await extend_signals(kernel, head, taken)
    return head


def _lifetime(head: Head, expires_ms: int, now_ms: int) -> _Lifetime:
    # The ttl may belong to a later expiry that another extension did not finish writing.
    retention = head.ttl - ttl_of(max(head.expires_ms, head.extends_ms), 0)
    ttl = max(ttl_of(expires_ms, retention), head.ttl)
    try:
        needed = retention_class(ttl - now_ms // 1000)
    except ValueError as error:
        raise JournalDamaged(f"the row of run {head.key.id!r} has an impossible ttl") from error
    kept = longer_retention_class(head.kept, needed)
    return _Lifetime(expires_ms, ttl, kept)


async def _write_snapshot(kernel: Kernel, head: Head, lifetime: _Lifetime) -> LoadedRun:
    """Write a snapshot with the new ttl; return the run as it was read for it."""
    while True:
        loaded = await _load_journal(kernel, head)
        if loaded.execution.ending not in (None, "failed"):
            status = loaded.execution.ending
            raise RunEnded(f"run {head.key.id!r} is {status}", status=status)
        now, extent = kernel.clock.now_ms(), loaded.extent
        # A process that died may have promised a later one.
        ttl = max(lifetime.ttl, loaded.execution.ttl)
        lasting = msgspec.structs.replace(head, ttl=ttl)
        events = [
            snapshot(loaded.execution, now, size=extent.size, blobs=extent.blobs),
            Extended(now, lifetime.expires_ms, ttl, head.kept),
        ]
        # A name of its own: the owner may be writing the blob of a record right now.
        name = f"snapshot-{kernel.ids.new()}"
        try:
            content = await spill_if_large(kernel, lasting, pack(events), name)
        except InvalidResult as error:
            raise InvalidRequest(f"run {head.key.id!r} cannot be extended: {error}") from None
        token = kernel.ids.new()
        put = record_write(lasting, extent.position, content, token=token)
        try:
            await kernel.resolve_write(kernel.journals, put)
        except ConditionFailed:
            # Another record took the position, or the run was freed.
            await delete_orphaned_blob(kernel.blobs, content)
            head = await read_row(kernel, head.key)
            _check_extendable(kernel, head)
            continue
        blobs = extent.blobs or content.blob is not None
        loaded.extent = msgspec.structs.replace(extent, blobs=blobs)
        return loaded


async def _extend_related_items(kernel: Kernel, head: Head) -> None:
    async for item in kernel.journals.query_all(head.key.pk, related_items_range()):
        if item["ttl"] < head.ttl and item["SK"].split("#")[1] == head.generation:
            with suppress(ConditionFailed):  # it lasts long enough, or is deleted
                await kernel.resolve_write(kernel.journals, extend_ttl_write(item, head.ttl))
    ttl = review_ttl(head.ttl)
    async for item in kernel.reviews.query_all(head.key.pk, run_reviews_range(head.generation)):
        if item["ttl"] < ttl:
            write = extend_review_write(item, ttl, token=kernel.ids.new())
            with suppress(ConditionFailed):
                await kernel.resolve_write(kernel.reviews, write)


async def _load_journal(kernel: Kernel, head: Head) -> LoadedRun:
    try:
        return await load_journal(kernel, head)
    except JournalDamaged:
        # The run may have expired and been freed since its row was read.
        _check_extendable(kernel, await read_row(kernel, head.key))
        raise


async def _update_until(
    kernel: Kernel, head: Head, done: Callable[[Head], bool], write: Callable[[Head], Update]
) -> Head:
    """Write the row until ``done`` holds for it, as long as it can be extended; return it."""
    while not done(head):
        _check_extendable(kernel, head)
        try:
            head = head_of(await kernel.resolve_write(kernel.heads, write(head)))
        except ConditionFailed as failed:
            head = conflicting_head(head, failed)
    return head


def _check_extendable(kernel: Kernel, head: Head) -> None:
    if head.status in TROUBLED:
        if head.freed or kernel.clock.now_ms() >= extendable_until_ms(head):
            raise RunEnded(
                f"run {head.key.id!r} is {head.status}, and its journal is deleted or soon will be",
                status=head.status,
            )
        return
    expired = kernel.clock.now_ms() >= head.expires_ms or head.status == "closing"
    if expired or head.status not in OPEN:
        status = "expired" if head.status in OPEN or head.status == "closing" else head.status
        raise RunEnded(f"run {head.key.id!r} is {status}", status=status)
