"""What anybody can do to a run from outside: look at it, signal it, cancel it, retry it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from holdfast.engine.contents import Packed, contents_of, packed, spilled, unpacked
from holdfast.engine.debts import owes, owes_family, pay
from holdfast.engine.hands import NOBODY, Hands
from holdfast.engine.inbox import prolong
from holdfast.engine.kernel import Kernel
from holdfast.engine.loading import Loaded, load_journal
from holdfast.engine.removal import freed_at_ms
from holdfast.engine.waking import changed, woken
from holdfast.errors import (
    AlreadyExists,
    BlobNotFound,
    ConditionFailed,
    InboxFull,
    InvalidInput,
    InvalidResult,
    JournalDamaged,
    NotRetryable,
    PayloadTooLarge,
    RunClosing,
    RunEnded,
    RunNotFound,
)
from holdfast.graph.values import Misfit, Oversize
from holdfast.model.event import Cancelled
from holdfast.model.execution import folded
from holdfast.model.limits import PayloadLimits
from holdfast.model.signals import is_callers
from holdfast.records import changes
from holdfast.records.codec import canonical_hash, pack, unpack_value
from holdfast.records.damage import part
from holdfast.records.head import (
    ENDED,
    OPEN,
    TROUBLE,
    Head,
    InboxSize,
    RetryRequest,
    head_of,
    is_over,
)
from holdfast.records.journal import (
    Content,
    accepted_ms_of,
    content_of,
    record,
    signal_item,
    ttl_of_signal,
)
from holdfast.records.keys import Place, RunKey, inbox_key
from holdfast.storage import Delete, Key, Put

__all__ = ["cancel", "read", "retry", "send"]


async def read(kernel: Kernel, run: RunKey) -> Head:
    """Return a run's row, consistently.

    Raises:
        RunNotFound: there is none, or its time is over.
    """
    item = await kernel.heads.get(run.head)
    if item is None or is_over(item, kernel.clock.now_ms()):
        raise RunNotFound(f"there is no run {run.id!r} of tenant {run.tenant!r}")
    return head_of(item)


# --- signals --------------------------------------------------------------------------------------


async def send(
    kernel: Kernel,
    hands: Hands,
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
    signal = _Sent(name, id, payload, ends_child, limit)
    if not is_callers(name):
        return await _send(kernel, hands, run, signal)
    async with kernel.deliveries.turn(run):
        await _send(kernel, hands, run, signal)


async def _send(kernel: Kernel, hands: Hands, run: RunKey, signal: _Sent) -> None:
    remembered = hands.recall(run)
    if remembered is not None:
        # Perhaps another run has the id by now, or room was made since.
        with suppress(RunNotFound, RunEnded, InboxFull):
            return await _deliver(kernel, hands, remembered, signal)
    await _deliver(kernel, hands, await read(kernel, run), signal)


class _Sent(msgspec.Struct, frozen=True):
    """A signal on its way."""

    name: str
    id: str
    payload: Any
    ends_child: bool
    bytes_max: int


class _Lying(msgspec.Struct, frozen=True):
    """A signal that lies in the inbox."""

    ttl: int
    spilled: bool
    put: Put | None = None
    """The write that we sent, though it may not be what put it there."""
    adds: InboxSize = InboxSize()
    """What the row has to count of it. Whoever only sends it again counts nothing: the sender that
    put it there did, or died before that, and then the run itself counts it when it pauses."""


async def _deliver(kernel: Kernel, hands: Hands, head: Head, signal: _Sent) -> None:
    if head.status not in OPEN and await _has_counted(kernel, head, signal):
        return
    _check_open(head)
    if kernel.clock.now_ms() >= head.expires_ms and not signal.ends_child:
        lying = await _accepted_before(kernel, head, signal)
    else:
        lying = await _accept(kernel, head, signal)
    if lying is None:
        standing = await read(kernel, head.key)
        if standing.expires_ms > head.expires_ms:  # it was extended since its row was read
            return await _deliver(kernel, hands, standing, signal)
        raise RunEnded(f"run {head.key.id!r} has expired", status="expired")
    async with _withdrawn_if_over(kernel, lying.put):
        await _tell_run(kernel, hands, head, signal, lying)


async def _accept(kernel: Kernel, head: Head, signal: _Sent) -> _Lying | None:
    """Put a signal into the inbox, unless it lies there; return None where it is too late.

    Raises:
        InboxFull: it does not, and there is no room for it.
    """
    made = await _packed(kernel, signal)
    callers = is_callers(signal.name)
    full = _overflow(kernel.limits, head, made) if callers else None
    if full is not None:
        item = await kernel.inboxes.get(_key(head, signal))
        if item is None:
            raise full
        return _Lying(
            await _check_same(kernel, head, item, signal), content_of(item).blob is not None
        )
    content = await _kept(kernel, head, made)
    spilled = content.blob is not None
    put = signal_item(
        head,
        name=signal.name,
        id=signal.id,
        content=content,
        plain_bytes=made.plain_bytes,
        accepted_ms=kernel.clock.now_ms(),
        token=kernel.ids.new(),
    )
    if put.item["accepted_ms"] >= head.expires_ms and not signal.ends_child:
        await _discard(kernel, content)  # it took so long to keep the payload
        return None
    try:
        await kernel.settle(kernel.inboxes, put)
    except ConditionFailed as failed:
        async with _withdrawn_if_over(kernel, put):
            ttl = await _check_same(kernel, head, failed.item or {}, signal)
        # What lies there may be larger than what we sent, where it is the end of a child.
        return _Lying(ttl, spilled or "blob" in (failed.item or {}), put)
    return _Lying(
        head.ttl, spilled, put, InboxSize(1, made.plain_bytes) if callers else InboxSize()
    )


async def _accepted_before(kernel: Kernel, head: Head, signal: _Sent) -> _Lying | None:
    """Return a signal that was accepted before the run expired, and is only sent again."""
    item = await kernel.inboxes.get(_key(head, signal))
    if item is None or accepted_ms_of(item) >= head.expires_ms:
        return None
    return _Lying(await _check_same(kernel, head, item, signal), content_of(item).blob is not None)


async def _tell_run(kernel: Kernel, hands: Hands, head: Head, signal: _Sent, lying: _Lying) -> None:
    """Let a run know of a signal that lies in its inbox; return when it counts.

    From here on the row decides, and not our clock: the signal may be taken already.
    """
    row: Head | None = head
    ttl, spilled, adds = lying.ttl, lying.spilled, lying.adds
    while row is not None:
        if row.status not in OPEN and await _was_taken(kernel, row, signal.name, signal.id):
            return
        _check_open(row)
        if ttl < row.ttl:  # the run was extended meanwhile, which may have missed the signal
            await prolong(kernel, row, name=signal.name, id=signal.id)
            ttl = row.ttl
        if row.awaits_signal:
            row = await woken(kernel, hands, row, spilled=spilled, adds=adds)
        else:
            now = kernel.clock.now_ms()
            token = kernel.ids.new()
            write = changes.signalled(row, spilled=spilled, adds=adds, now_ms=now, token=token)
            row = await changed(kernel, row, write)
            hands.hear(head.key)


@asynccontextmanager
async def _withdrawn_if_over(kernel: Kernel, put: Put | None) -> AsyncGenerator[None, None]:
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
        await kernel.settle(kernel.inboxes, Delete(put.key))
        await _discard(kernel, content_of(put.item))


async def _discard(kernel: Kernel, content: Content) -> None:
    """Delete a payload that nothing names."""
    blob, blobs = content.blob, kernel.blobs
    if blob is not None and blobs is not None:
        await kernel.persistently(lambda: blobs.delete(blob.key))


async def _has_counted(kernel: Kernel, head: Head, signal: _Sent) -> bool:
    """Return whether a run that takes no signals any more took this very one before."""
    item = await kernel.inboxes.get(_key(head, signal))
    if item is None or not await _was_taken(kernel, head, signal.name, signal.id):
        return False
    try:
        await _check_same(kernel, head, item, signal)
    except InvalidInput:  # what cannot be kept was not sent before
        return False
    return True


async def _was_taken(kernel: Kernel, head: Head, name: str, id: str) -> bool:
    if _is_freed(head):
        return False
    try:
        async with kernel.deliveries.reading:
            return (name, id) in (await load_journal(kernel, head)).execution.taken
    except JournalDamaged:
        if _is_freed(await read(kernel, head.key)):
            return False  # while it was read
        raise


def _is_freed(head: Head) -> bool:
    return head.freed or head.status == "expired"


async def _check_not_freed(kernel: Kernel, run: RunKey) -> None:
    """Check that what a run keeps was not freed while it was read.

    Raises:
        RunEnded: it was.
    """
    head = await read(kernel, run)
    if _is_freed(head):
        raise RunEnded(f"run {run.id!r} is {head.status}", status=head.status)


def _key(head: Head, signal: _Sent) -> Key:
    return inbox_key(head.key, head.generation, signal.name, signal.id)


async def _packed(kernel: Kernel, signal: _Sent) -> Packed:
    """Return the payload of a signal as it is kept.

    Raises:
        PayloadTooLarge: it has more bytes than it may have.
        InvalidInput: it cannot be kept.
    """
    try:
        return await packed(kernel, signal.payload, bytes_max=signal.bytes_max)
    except Oversize as error:
        message = f"the payload: {error}"
        if is_callers(signal.name):  # others have limits of their own
            message += "; PayloadLimits.signal_bytes_max sets the limit"
        raise PayloadTooLarge(
            message, field="payload", size=error.size, limit=error.limit
        ) from None
    except (InvalidResult, Misfit) as error:
        raise InvalidInput(f"the payload: {error}", field="payload") from None


async def _kept(kernel: Kernel, head: Head, made: Packed) -> Content:
    try:
        return await spilled(kernel, head, made.data, f"signal-{kernel.ids.new()}")
    except InvalidResult as error:
        raise InvalidInput(f"the payload: {error}", field="payload") from None


def _overflow(limits: PayloadLimits, head: Head, made: Packed) -> InboxFull | None:
    """Return why a run's inbox has no room for a payload, None where it has."""
    run, waits = head.key.id, head.inbox
    items = waits.items + 1
    if items > limits.inbox_items_max:
        limit = limits.inbox_items_max
        return InboxFull(
            f"{waits.items:,} signals wait in the inbox of run {run!r}, and inbox_items_max "
            f"is {limit:,}; send this one again later",
            size=items,
            limit=limit,
        )
    total = waits.bytes + made.plain_bytes
    if total > limits.inbox_bytes_max:
        limit = limits.inbox_bytes_max
        return InboxFull(
            f"signals of {waits.bytes:,} bytes wait in the inbox of run {run!r}, this one has "
            f"{made.plain_bytes:,}, and inbox_bytes_max is {limit:,}; send it again later",
            size=total,
            limit=limit,
        )
    return None


def _check_open(head: Head) -> None:
    if head.status == "closing":
        raise RunClosing(
            f"run {head.key.id!r} is past its expiry and carries out what it holds, perhaps this "
            "signal: send it again later, with the same signal_id"
        )
    if head.status not in OPEN:
        raise RunEnded(f"run {head.key.id!r} is {head.status}", status=head.status)


async def _check_same(kernel: Kernel, head: Head, item: Mapping[str, Any], signal: _Sent) -> int:
    """Check that a signal which is there already is this one; return its ttl.

    Raises:
        AlreadyExists: it is another one.
        RunEnded: the run has expired, and was freed meanwhile.
    """
    if signal.ends_child:
        return ttl_of_signal(item)
    try:
        (data,) = await contents_of(kernel, [content_of(item)])
    except BlobNotFound:
        await _check_not_freed(kernel, head.key)
        raise
    made = await _packed(kernel, signal)
    # Not by ==, to which 0 and False are the same.
    if data != made.data and canonical_hash([made.value]) != canonical_hash(
        [await unpacked(kernel, data, unpack_value)]
    ):
        raise AlreadyExists(
            f"a signal {signal.name!r} of the id {signal.id!r} is there, with another payload"
        ) from None
    return ttl_of_signal(item)


# --- cancelling -----------------------------------------------------------------------------------


async def cancel(kernel: Kernel, run: RunKey, *, reason: str, hands: Hands = NOBODY) -> Head:
    """End a run; whoever holds it learns of it at its next write. Return its row.

    First the row says that it is to end, so that nobody can forget it; then it stands in the
    journal, after which nothing else can.

    Raises:
        RunNotFound: there is no such run.
        RunEnded: it ended before, otherwise than by being cancelled.
    """
    head = await read(kernel, run)
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
        head = await changed(kernel, head, write) or await read(kernel, run)
    return await _cancelled(kernel, hands, head, reason)


async def _cancelled(kernel: Kernel, hands: Hands, head: Head, reason: str) -> Head:
    while True:
        try:
            loaded = await load_journal(kernel, head)
        except JournalDamaged:
            await _check_not_freed(kernel, head.key)
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
    head = await read(kernel, run)
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
    return await changed(kernel, head, write) or await read(kernel, run)


# --- retrying -------------------------------------------------------------------------------------


async def retry(kernel: Kernel, run: RunKey, *, from_node: str | None) -> Place:
    """Let a run that failed, or is quarantined, go on; return where it is due.

    Raises:
        RunNotFound: there is no such run.
        NotRetryable: it has not failed.
        RunEnded: it has expired.
    """
    head = await read(kernel, run)
    if head.status not in TROUBLE:
        raise NotRetryable(f"run {run.id!r} is {head.status}; only one that failed can be retried")
    if kernel.clock.now_ms() >= head.expires_ms:
        raise RunEnded(f"run {run.id!r} failed, and has expired since", status="expired")
    request = RetryRequest(kernel.ids.new(), from_node)
    write = changes.with_retry(head, request, now_ms=kernel.clock.now_ms(), token=kernel.ids.new())
    standing = await changed(
        kernel, head, write, lambda item: part(item, "retry", "id") == request.id
    )
    if standing is not None:
        raise NotRetryable(f"run {run.id!r} is {standing.status} by now")
    return changes.place_in(write)
