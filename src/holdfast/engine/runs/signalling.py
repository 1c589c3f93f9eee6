"""Sends signals: puts one into the inbox of a run, and wakes the run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from holdfast.engine.journal.payloads import (
    PackedValue,
    delete_orphaned_blob,
    load_payloads,
    pack_payload,
    spill_if_large,
    unpack_payload,
)
from holdfast.engine.journal.reader import load_journal
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.inbox import extend_signal
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.engine.runs.rows import check_not_freed, is_freed, read_row
from holdfast.engine.runs.waking import notify_owner, wake_run
from holdfast.errors import (
    AlreadyExists,
    BlobNotFound,
    ConditionFailed,
    InboxFull,
    InvalidInput,
    InvalidResult,
    JournalDamaged,
    PayloadTooLarge,
    RunClosing,
    RunEnded,
    RunNotFound,
)
from holdfast.graph.mismatch import Mismatch, TooLarge
from holdfast.model.payload_limits import PayloadLimits
from holdfast.model.signals import is_caller_signal
from holdfast.records.codec import canonical_hash, unpack_value
from holdfast.records.head import (
    OPEN,
    Head,
    InboxSize,
)
from holdfast.records.journal import (
    Content,
    accepted_ms_of,
    content_of,
    signal_write,
    ttl_of_signal,
)
from holdfast.records.keys import RunKey, inbox_key
from holdfast.storage import Delete, Key, Put

__all__ = ["send_signal"]


async def send_signal(
    kernel: Kernel,
    workers: LocalWorkers,
    run: RunKey,
    *,
    name: str,
    id: str,
    payload: Any,
    ends_child: bool = False,
    bytes_max: int | None = None,
) -> None:
    """Put a signal into a run's inbox, and wake the run if it waits.

    First the inbox, then the row: so the run finds the signal, or whoever sends it finds the run
    waiting. A repeated one wakes the run again, since the first sender may have died in between.

    One that ``ends_child`` is put there although the run's time is over by our clock: it counts if
    the run is extended by a clock that is behind ours. If it lies there with another payload, that
    one counts: what a child spent may be less by now, since its own children gave something back.

    ``bytes_max`` is what the payload may have, where it is not a caller's.

    Raises:
        RunNotFound: there is no such run.
        RunEnded: it has ended, or expired, and did not take the signal before.
        AlreadyExists: a signal of this id is there, with another payload.
        PayloadTooLarge: the payload has more bytes than it may have.
        InvalidInput: the payload cannot be kept.
        InboxFull: as many signals as there may be wait in the inbox.
        RunClosing: it is past its expiry and carries out what it holds, perhaps this signal.
        OutcomeUnknown: the store does not say.
    """
    limit = kernel.limits.signal_bytes_max if bytes_max is None else bytes_max
    signal = _OutgoingSignal(name, id, payload, ends_child, limit)
    if not is_caller_signal(name):
        return await _send_to_run(kernel, workers, run, signal)
    async with kernel.delivery_limiter.acquire(run):
        await _send_to_run(kernel, workers, run, signal)


async def _send_to_run(
    kernel: Kernel, workers: LocalWorkers, run: RunKey, signal: _OutgoingSignal
) -> None:
    cached = workers.take_cached_head(run)
    if cached is not None:
        # Perhaps another run has the id by now, or room was made since.
        with suppress(RunNotFound, RunEnded, InboxFull):
            return await _deliver(kernel, workers, cached, signal)
    await _deliver(kernel, workers, await read_row(kernel, run), signal)


class _OutgoingSignal(msgspec.Struct, frozen=True):
    """A signal on its way."""

    name: str
    id: str
    payload: Any
    ends_child: bool
    bytes_max: int


class _StoredSignal(msgspec.Struct, frozen=True):
    """A signal that lies in the inbox."""

    ttl: int
    spilled: bool
    put: Put | None = None
    """The write that we sent, though it may not be what put it there."""
    inbox_added: InboxSize = InboxSize()
    """What the row has to count of it. Whoever only sends it again counts nothing: the sender that
    put it there did, or died before that, and then the run itself counts it when it pauses."""


async def _deliver(
    kernel: Kernel, workers: LocalWorkers, head: Head, signal: _OutgoingSignal
) -> None:
    if head.status not in OPEN and await _was_delivered(kernel, head, signal):
        return
    _check_open(head)
    if kernel.clock.now_ms() >= head.expires_ms and not signal.ends_child:
        stored = await _find_accepted(kernel, head, signal)
    else:
        stored = await _put_in_inbox(kernel, head, signal)
    if stored is None:
        current = await read_row(kernel, head.key)
        if current.expires_ms > head.expires_ms:  # it was extended since its row was read_row
            return await _deliver(kernel, workers, current, signal)
        raise RunEnded(f"run {head.key.id!r} has expired", status="expired")
    async with _withdraw_if_ended(kernel, stored.put):
        await _notify_run(kernel, workers, head, signal, stored)


async def _put_in_inbox(
    kernel: Kernel, head: Head, signal: _OutgoingSignal
) -> _StoredSignal | None:
    """Put a signal into the inbox, unless it lies there; return None where it is too late.

    Raises:
        InboxFull: it does not, and there is no room for it.
    """
    packed = await _pack_payload(kernel, signal)
    from_caller = is_caller_signal(signal.name)
    full = _inbox_overflow(kernel.limits, head, packed) if from_caller else None
    if full is not None:
        item = await kernel.inboxes.get(_signal_key(head, signal))
        if item is None:
            raise full
        return _StoredSignal(
            await _check_same_signal(kernel, head, item, signal), content_of(item).blob is not None
        )
    content = await _spill_payload(kernel, head, packed)
    spilled = content.blob is not None
    put = signal_write(
        head,
        name=signal.name,
        id=signal.id,
        content=content,
        plain_bytes=packed.plain_bytes,
        accepted_ms=kernel.clock.now_ms(),
        token=kernel.ids.new(),
    )
    if put.item["accepted_ms"] >= head.expires_ms and not signal.ends_child:
        await delete_orphaned_blob(kernel.blobs, content)  # it took so long to keep the payload
        return None
    try:
        await kernel.resolve_write(kernel.inboxes, put)
    except ConditionFailed as failed:
        async with _withdraw_if_ended(kernel, put):
            ttl = await _check_same_signal(kernel, head, failed.item or {}, signal)
        # What lies there may be larger than what we sent, where it is the end of a child.
        return _StoredSignal(ttl, spilled or "blob" in (failed.item or {}), put)
    return _StoredSignal(
        head.ttl, spilled, put, InboxSize(1, packed.plain_bytes) if from_caller else InboxSize()
    )


async def _find_accepted(
    kernel: Kernel, head: Head, signal: _OutgoingSignal
) -> _StoredSignal | None:
    """Return a signal that was accepted before the run expired, and is only sent again."""
    item = await kernel.inboxes.get(_signal_key(head, signal))
    if item is None or accepted_ms_of(item) >= head.expires_ms:
        return None
    return _StoredSignal(
        await _check_same_signal(kernel, head, item, signal), content_of(item).blob is not None
    )


async def _notify_run(
    kernel: Kernel,
    workers: LocalWorkers,
    head: Head,
    signal: _OutgoingSignal,
    stored: _StoredSignal,
) -> None:
    """Let a run know of a signal that lies in its inbox; return when it counts.

    From here on the row decides, and not our clock: the signal may be taken already.
    """
    row: Head | None = head
    ttl, spilled, inbox_added = stored.ttl, stored.spilled, stored.inbox_added
    while row is not None:
        if row.status not in OPEN and await _was_taken(kernel, row, signal.name, signal.id):
            return
        _check_open(row)
        if ttl < row.ttl:  # the run was extended meanwhile, which may have missed the signal
            await extend_signal(kernel, row, name=signal.name, id=signal.id)
            ttl = row.ttl
        if row.awaits_signal:
            row = await wake_run(kernel, workers, row, spilled=spilled, inbox_added=inbox_added)
        else:
            row = await notify_owner(kernel, row, spilled=spilled, inbox_added=inbox_added)
            workers.on_signal(head.key)


@asynccontextmanager
async def _withdraw_if_ended(kernel: Kernel, put: Put | None) -> AsyncGenerator[None, None]:
    """Take a signal that we sent back where its run turns out to be over for good."""
    try:
        yield
    except RunNotFound:
        await _withdraw(kernel, put)
        raise
    except RunEnded as ended:
        if ended.status == "expired":
            await _withdraw(kernel, put)
        raise


async def _withdraw(kernel: Kernel, put: Put | None) -> None:
    """Take a signal out of the inbox of a run that is over for good.

    The worker that frees the run may have gone through the inbox before the signal came. That may
    also be so where it lay there already: our payload may have come later, and our first sending
    may be carried out after a further one was refused.
    """
    if put is not None:
        await kernel.resolve_write(kernel.inboxes, Delete(put.key))
        await delete_orphaned_blob(kernel.blobs, content_of(put.item))


async def _was_delivered(kernel: Kernel, head: Head, signal: _OutgoingSignal) -> bool:
    """Return whether a run that takes no signals any more took this very one before."""
    item = await kernel.inboxes.get(_signal_key(head, signal))
    if item is None or not await _was_taken(kernel, head, signal.name, signal.id):
        return False
    try:
        await _check_same_signal(kernel, head, item, signal)
    except InvalidInput:  # what cannot be kept was not sent before
        return False
    return True


async def _was_taken(kernel: Kernel, head: Head, name: str, id: str) -> bool:
    if is_freed(head):
        return False
    try:
        async with kernel.delivery_limiter.journal_reads:
            return (name, id) in (await load_journal(kernel, head)).execution.taken
    except JournalDamaged:
        if is_freed(await read_row(kernel, head.key)):
            return False  # while it was read_row
        raise


def _signal_key(head: Head, signal: _OutgoingSignal) -> Key:
    return inbox_key(head.key, head.generation, signal.name, signal.id)


async def _pack_payload(kernel: Kernel, signal: _OutgoingSignal) -> PackedValue:
    """Return the payload of a signal as it is kept.

    Raises:
        PayloadTooLarge: it has more bytes than it may have.
        InvalidInput: it cannot be kept.
    """
    try:
        return await pack_payload(kernel, signal.payload, bytes_max=signal.bytes_max)
    except TooLarge as error:
        message = f"the payload: {error}"
        if is_caller_signal(signal.name):  # others have limits of their own
            message += "; PayloadLimits.signal_bytes_max sets the limit"
        raise PayloadTooLarge(
            message, field="payload", size=error.size, limit=error.limit
        ) from None
    except (InvalidResult, Mismatch) as error:
        raise InvalidInput(f"the payload: {error}", field="payload") from None


async def _spill_payload(kernel: Kernel, head: Head, packed: PackedValue) -> Content:
    try:
        return await spill_if_large(kernel, head, packed.data, f"signal-{kernel.ids.new()}")
    except InvalidResult as error:
        raise InvalidInput(f"the payload: {error}", field="payload") from None


def _inbox_overflow(limits: PayloadLimits, head: Head, packed: PackedValue) -> InboxFull | None:
    """Return why a run's inbox has no room for a payload, None where it has."""
    run, inbox = head.key.id, head.inbox
    items = inbox.items + 1
    if items > limits.inbox_items_max:
        limit = limits.inbox_items_max
        return InboxFull(
            f"{inbox.items:,} signals wait in the inbox of run {run!r}, and inbox_items_max "
            f"is {limit:,}; send_signal this one again later",
            size=items,
            limit=limit,
        )
    total = inbox.bytes + packed.plain_bytes
    if total > limits.inbox_bytes_max:
        limit = limits.inbox_bytes_max
        return InboxFull(
            f"signals of {inbox.bytes:,} bytes wait in the inbox of run {run!r}, this one has "
            f"{packed.plain_bytes:,}, and inbox_bytes_max is {limit:,}; send_signal it again later",
            size=total,
            limit=limit,
        )
    return None


def _check_open(head: Head) -> None:
    if head.status == "closing":
        raise RunClosing(
            f"run {head.key.id!r} is past its expiry and carries out what it holds, perhaps this "
            "signal: send_signal it again later, with the same signal_id"
        )
    if head.status not in OPEN:
        raise RunEnded(f"run {head.key.id!r} is {head.status}", status=head.status)


async def _check_same_signal(
    kernel: Kernel, head: Head, item: Mapping[str, Any], signal: _OutgoingSignal
) -> int:
    """Check that a signal which is there already is this one; return its ttl.

    Raises:
        AlreadyExists: it is another one.
        RunEnded: the run has expired, and was freed meanwhile.
    """
    if signal.ends_child:
        return ttl_of_signal(item)
    try:
        (data,) = await load_payloads(kernel, [content_of(item)])
    except BlobNotFound:
        await check_not_freed(kernel, head.key)
        raise
    packed = await _pack_payload(kernel, signal)
    # Not by ==, to which 0 and False are the same.
    if data != packed.data and canonical_hash([packed.value]) != canonical_hash(
        [await unpack_payload(kernel, data, unpack_value)]
    ):
        raise AlreadyExists(
            f"a signal {signal.name!r} of the id {signal.id!r} is there, with another payload"
        ) from None
    return ttl_of_signal(item)
