"""Sends signals: writes one to the inbox of a run, and wakes the run."""

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
from holdfast.engine.runs.inbox import SignalFenced, extend_signal
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.engine.runs.rows import check_not_freed, is_freed, read_row
from holdfast.engine.runs.signal_checks import find_misfit, inbox_overflow, may_set_aside
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
    SignalMisfit,
    UnknownSignal,
)
from holdfast.graph.mismatch import Mismatch, TooLarge
from holdfast.model.execution import Execution
from holdfast.model.run import SignalReceipt
from holdfast.model.signals import is_caller_signal
from holdfast.model.wait import SignalWait
from holdfast.records.codec import canonical_hash, unpack_value
from holdfast.records.head import (
    OPEN,
    ROW_WAITS_MAX,
    Head,
    InboxSize,
)
from holdfast.records.journal import (
    Content,
    accepted_ms_of,
    content_of,
    is_fence,
    signal_write,
    ttl_of_signal,
)
from holdfast.records.keys import RunKey, inbox_key
from holdfast.storage import Delete, Put

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
    first_counts: bool = False,
    bytes_max: int | None = None,
    generation: str | None = None,
    deadline_ms: int | None = None,
    fences_below: int = 0,
) -> SignalReceipt:
    """Write a signal to a run's inbox, and wake the run if it waits.

    The inbox is written before the row, so the run finds the signal, or the sender finds the run
    waiting. A repeated signal wakes the run again, because the first sender may have died between
    the two writes.

    A signal that ``ends_child`` is written even if the run has expired by the clock of this
    process: it counts if a process with a slower clock extends the run. If the inbox has it with
    another payload, that one counts: the child may have spent less by now, because its own children
    returned money.

    With ``first_counts``, a signal that is there with another payload counts instead, and wakes the
    run again: the receipt says that it is ``repeated``.

    ``bytes_max`` limits the payload, by default to the limit for callers. With a ``generation``,
    a later run of the same id does not get the signal. From ``deadline_ms`` on, it is refused as it
    is after the expiry of the run. It replaces a fence with a position less than ``fences_below``.

    Raises:
        RunNotFound: there is no such run.
        RunEnded: the run has ended or expired, and did not take the signal before.
        AlreadyExists: there is a signal with this id and another payload.
        PayloadTooLarge: the payload has more bytes than the limit allows.
        InvalidInput: the payload cannot be stored.
        SignalMisfit: the payload does not fit the type that the run waits for.
        UnknownSignal: the graph declares its signals, and this is none of them.
        InboxFull: the inbox has no room for it.
        RunClosing: the run has expired and processes its inbox, perhaps with this signal.
        OutcomeUnknown: the outcome of the write is unknown.
        SignalFenced: a fence keeps it out; nothing was written.
    """
    limit = kernel.limits.signal_bytes_max if bytes_max is None else bytes_max
    signal = _OutgoingSignal(
        name,
        id,
        payload,
        ends_child,
        limit,
        generation,
        first_counts or ends_child,
        deadline_ms,
        fences_below,
    )
    if not is_caller_signal(name):
        return await _send_to_run(kernel, workers, run, signal)
    async with kernel.delivery_limiter.acquire(run):
        return await _send_to_run(kernel, workers, run, signal)


async def _send_to_run(
    kernel: Kernel, workers: LocalWorkers, run: RunKey, signal: _OutgoingSignal
) -> SignalReceipt:
    cached = workers.take_cached_head(run)
    if cached is not None:
        # The cached row may be stale: read the current one before giving up.
        with suppress(RunNotFound, RunEnded, InboxFull, SignalMisfit, UnknownSignal):
            return await _deliver(kernel, workers, cached, signal)
    return await _deliver(kernel, workers, await read_row(kernel, run), signal)


class _OutgoingSignal(msgspec.Struct, frozen=True):
    """A signal that is being sent."""

    name: str
    id: str
    payload: Any
    ends_child: bool
    bytes_max: int
    generation: str | None = None
    """The only generation of the run that it is for; None for the current one."""
    first_counts: bool = False
    """Whether the stored signal counts if there is one with another payload."""
    deadline_ms: int | None = None
    fences_below: int = 0

    def is_late(self, head: Head, now_ms: int) -> bool:
        """Return whether the run does not accept it any more."""
        late = self.deadline_ms is not None and now_ms >= self.deadline_ms
        return late or (now_ms >= head.expires_ms and not self.ends_child)


class _StoredSignal(msgspec.Struct, frozen=True):
    """A signal in the inbox."""

    ttl: int
    spilled: bool
    put: Put | None = None
    """The write of this sender, even if an earlier sender had written the signal."""
    repeated: bool = True
    """Whether it was there before this sender wrote it."""
    inbox_added: InboxSize = InboxSize()
    """What the row must count for it. A repeated signal counts nothing: its first sender counted
    it, or died before, and then the run counts it when it pauses."""


async def _deliver(
    kernel: Kernel, workers: LocalWorkers, head: Head, signal: _OutgoingSignal
) -> SignalReceipt:
    if signal.generation not in (None, head.generation):
        raise RunNotFound(f"there is no run {head.key.id!r} of this generation")
    if head.status not in OPEN and await _was_delivered(kernel, head, signal):
        return _receipt(head, signal, repeated=True)
    _check_open(head)
    if signal.is_late(head, kernel.clock.now_ms()):
        stored = await _find_accepted(kernel, head, signal)
    else:
        stored = await _put_in_inbox(kernel, head, signal)
    if stored is None:
        current = await read_row(kernel, head.key)
        if current.expires_ms > head.expires_ms:  # extended since its row was read
            return await _deliver(kernel, workers, current, signal)
        raise RunEnded(f"run {head.key.id!r} has expired", status="expired")
    receipt = _receipt(head, signal, repeated=stored.repeated)
    if receipt.repeated and receipt.answers_wait and is_caller_signal(signal.name):
        receipt = await _receipt_of_repeat(kernel, head, signal, receipt)
    async with _withdraw_if_ended(kernel, stored.put):
        await _notify_run(kernel, workers, head, signal, stored)
    return receipt


async def _receipt_of_repeat(
    kernel: Kernel, head: Head, signal: _OutgoingSignal, receipt: SignalReceipt
) -> SignalReceipt:
    """Return the receipt of a signal that the run had; if it took the signal, no wait gets it.

    The row is read after the journal: a run that pauses after it took the signal waits again.
    """
    if not await _was_taken(kernel, head, signal.name, signal.id):
        return receipt
    current = _receipt(await read_row(kernel, head.key), signal, repeated=True)
    return msgspec.structs.replace(
        current, answers_wait=False, waits_again=signal.name in current.waits_for
    )


def _receipt(head: Head, signal: _OutgoingSignal, *, repeated: bool) -> SignalReceipt:
    waits = head.waits if head.is_paused else ()
    names = [wait.signal for wait in waits if isinstance(wait.kind, SignalWait) and wait.signal]
    return SignalReceipt(
        repeated=repeated,
        # With this many waits, the row may not show all of them.
        answers_wait=signal.name in names or len(waits) >= ROW_WAITS_MAX,
        waits_for=tuple(dict.fromkeys(names)),
    )


async def _put_in_inbox(
    kernel: Kernel, head: Head, signal: _OutgoingSignal
) -> _StoredSignal | None:
    """Write a signal to the inbox, unless it is there; return None if the run has expired.

    Raises:
        InboxFull: it is not there, and the inbox has no room for it.
        SignalMisfit, UnknownSignal: it is not there, and the run does not take it.
    """
    packed = await _pack_payload(kernel, signal)
    from_caller = is_caller_signal(signal.name)
    refusal = await _find_refusal(kernel, head, signal, packed) if from_caller else None
    if refusal is not None:
        item = await _read_stored(kernel, head, signal)
        if item is None:
            raise refusal
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
        fences_below=signal.fences_below,
    )
    if signal.is_late(head, put.item["accepted_ms"]):
        # The run expired while the payload was written.
        await delete_orphaned_blob(kernel.blobs, content)
        return None
    try:
        await kernel.resolve_write(kernel.inboxes, put)
    except ConditionFailed as failed:
        if is_fence(failed.item or {}):
            await delete_orphaned_blob(kernel.blobs, content)
            raise SignalFenced from None
        async with _withdraw_if_ended(kernel, put):
            ttl = await _check_same_signal(kernel, head, failed.item or {}, signal)
        # The stored end of a child may be larger than the one that was sent now.
        return _StoredSignal(ttl, spilled or "blob" in (failed.item or {}), put)
    return _StoredSignal(
        head.ttl,
        spilled,
        put,
        repeated=False,
        inbox_added=InboxSize(1, packed.plain_bytes) if from_caller else InboxSize(),
    )


async def _find_refusal(
    kernel: Kernel, head: Head, signal: _OutgoingSignal, packed: PackedValue
) -> InboxFull | SignalMisfit | UnknownSignal | None:
    """Return the error if a run does not accept a signal that is not in its inbox yet."""
    misfit = await find_misfit(kernel, head, signal.name, packed.value)
    return misfit or inbox_overflow(kernel.limits, head, packed.plain_bytes)


async def _find_accepted(
    kernel: Kernel, head: Head, signal: _OutgoingSignal
) -> _StoredSignal | None:
    """Return the stored signal, if it was accepted before the run expired."""
    item = await _read_stored(kernel, head, signal)
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
    """Tell a run that there is a signal in its inbox; return when that is durable.

    From here on the row decides and not the clock: the run may have taken the signal already.
    """
    row: Head | None = head
    ttl, spilled, inbox_added = stored.ttl, stored.spilled, stored.inbox_added
    while row is not None:
        if row.status not in OPEN and await _was_taken(kernel, row, signal.name, signal.id):
            return
        _check_open(row)
        if ttl < row.ttl:  # the extension of the run may have missed the signal
            await extend_signal(kernel, row, name=signal.name, id=signal.id)
            ttl = row.ttl
        # A caller's signal that no wait can take would only run the waiting nodes again.
        from_caller = is_caller_signal(signal.name)
        if row.may_await(signal.name) if from_caller else row.awaits_signal:
            row = await wake_run(kernel, workers, row, spilled=spilled, inbox_added=inbox_added)
        else:
            row = await notify_owner(kernel, row, spilled=spilled, inbox_added=inbox_added)
            workers.on_signal(head.key)


@asynccontextmanager
async def _withdraw_if_ended(kernel: Kernel, put: Put | None) -> AsyncGenerator[None, None]:
    """Withdraw a signal if its run turns out to have expired, or to be gone."""
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
    """Delete a signal from the inbox of a run that has expired, or is gone.

    The worker that frees the run may have emptied the inbox before the signal was written. This
    also holds if the signal was there before: its blob may have been written later, and a delayed
    first attempt may be carried out after the second one was refused.
    """
    if put is not None:
        await kernel.resolve_write(kernel.inboxes, Delete(put.key))
        await delete_orphaned_blob(kernel.blobs, content_of(put.item))


async def _was_delivered(kernel: Kernel, head: Head, signal: _OutgoingSignal) -> bool:
    """Return whether a run that takes no more signals has taken this one before."""
    item = await _read_stored(kernel, head, signal)
    if item is None or not await _was_taken(kernel, head, signal.name, signal.id):
        return False
    try:
        await _check_same_signal(kernel, head, item, signal)
    except SignalMisfit:
        raise
    except InvalidInput:  # a payload that cannot be stored was not sent before
        return False
    return True


async def _was_taken(kernel: Kernel, head: Head, name: str, id: str) -> bool:
    execution = await _load_execution(kernel, head)
    return execution is not None and (name, id) in execution.taken


async def _load_execution(kernel: Kernel, head: Head) -> Execution | None:
    """Return the execution of a run; None if the run is freed."""
    if is_freed(head):
        return None
    try:
        async with kernel.delivery_limiter.journal_reads:
            return (await load_journal(kernel, head)).execution
    except JournalDamaged:
        if is_freed(await read_row(kernel, head.key)):
            return None  # it was freed while it was read
        raise


async def _check_not_set_aside(kernel: Kernel, head: Head, signal: _OutgoingSignal) -> None:
    """Check that the run did not set a stored signal aside.

    Only a run that waits for a typed signal sets one aside. Others are not read for this.

    Raises:
        SignalMisfit: the run set it aside.
    """
    if not is_caller_signal(signal.name) or not await may_set_aside(kernel, head, signal.name):
        return
    execution = await _load_execution(kernel, head)
    for event in () if execution is None else execution.set_aside:
        if (event.name, event.id) == (signal.name, signal.id):
            raise SignalMisfit(
                f"run {head.key.id!r} has set the signal {signal.name!r} with the id {signal.id!r} "
                f"aside: {event.reason}; send another signal with another id",
                field="payload",
            )


async def _read_stored(
    kernel: Kernel, head: Head, signal: _OutgoingSignal
) -> Mapping[str, Any] | None:
    """Return the item of a signal in the inbox; None if there is none, or a fence in its place."""
    key = inbox_key(head.key, head.generation, signal.name, signal.id)
    item = await kernel.inboxes.get(key)
    return None if item is None or is_fence(item) else item


async def _pack_payload(kernel: Kernel, signal: _OutgoingSignal) -> PackedValue:
    """Return the packed payload of a signal.

    Raises:
        PayloadTooLarge: it has more bytes than the limit allows.
        InvalidInput: it cannot be stored.
    """
    try:
        return await pack_payload(kernel, signal.payload, bytes_max=signal.bytes_max)
    except TooLarge as error:
        message = f"the payload: {error}"
        if is_caller_signal(signal.name):  # other signals have other limits
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


def _check_open(head: Head) -> None:
    if head.status == "closing":
        raise RunClosing(
            f"run {head.key.id!r} has expired and still processes its inbox, perhaps with this "
            "signal: send it again later, with the same signal_id"
        )
    if head.status not in OPEN:
        told = f"run {head.key.id!r} is {head.status}"
        if head.status in ("failed", "quarantined"):
            told += (
                ", and takes no signals: retry it ('holdfast run retry', or retry() of its handle),"
                " then it goes on and its waits ask again"
            )
        raise RunEnded(told, status=head.status)


async def _check_same_signal(
    kernel: Kernel, head: Head, item: Mapping[str, Any], signal: _OutgoingSignal
) -> int:
    """Check that the stored signal has the same payload; return its ttl.

    Raises:
        AlreadyExists: it has another payload.
        SignalMisfit: the run has set it aside.
        RunEnded: the run has expired, and was freed meanwhile.
    """
    if signal.first_counts:
        return ttl_of_signal(item)
    try:
        (data,) = await load_payloads(kernel, [content_of(item)])
    except BlobNotFound:
        await check_not_freed(kernel, head.key)
        raise
    packed = await _pack_payload(kernel, signal)
    # Not with ==, for which 0 and False are equal.
    if data != packed.data and canonical_hash([packed.value]) != canonical_hash(
        [await unpack_payload(kernel, data, unpack_value)]
    ):
        raise AlreadyExists(
            f"there is a signal {signal.name!r} with the id {signal.id!r} and another payload"
        ) from None
    await _check_not_set_aside(kernel, head, signal)
    return ttl_of_signal(item)
