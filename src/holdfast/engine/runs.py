"""What anybody can do to a run from outside: look at it, signal it, cancel it, retry it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.engine.crew import Crew
from holdfast.engine.inbox import prolong
from holdfast.engine.kernel import Kernel
from holdfast.engine.ledger import Loaded, contents_of, load, spilled
from holdfast.engine.removal import freed_at_ms
from holdfast.errors import (
    AlreadyExists,
    ConditionFailed,
    InvalidInput,
    InvalidResult,
    NotRetryable,
    OutcomeUnknown,
    RunEnded,
    RunNotFound,
)
from holdfast.graph.values import Misfit, durable
from holdfast.model.event import Cancelled
from holdfast.model.execution import folded
from holdfast.records import changes
from holdfast.records.codec import pack, unpack_value
from holdfast.records.head import ENDED, OPEN, TROUBLE, Head, RetryRequest, head_of, is_over
from holdfast.records.journal import Content, content_of, record, signal_item
from holdfast.records.keys import Place, RunKey
from holdfast.storage import Update

__all__ = ["cancel", "read", "retry", "send", "standing"]


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
    kernel: Kernel, crew: Crew, run: RunKey, *, name: str, id: str, payload: Any
) -> None:
    """Put a signal into a run's inbox, and wake the run if it waits.

    First the inbox, then the row: so the run finds the signal, or whoever sends it finds the run
    waiting. A repeated one wakes the run again, since the first sender may have died in between.

    Raises:
        RunNotFound: there is no such run.
        RunEnded: it has ended, or expired: the signal does not count.
        AlreadyExists: a signal of this id is there, with another payload.
        InvalidInput: the payload cannot be kept.
        OutcomeUnknown: the run is just being closed, or the store does not say.
    """
    signal = _Sent(name, id, payload)
    remembered = crew.recall(run)
    if remembered is not None:
        with suppress(RunNotFound, RunEnded):  # perhaps another run has the id by now
            return await _deliver(kernel, crew, remembered, signal)
    await _deliver(kernel, crew, await read(kernel, run), signal)


class _Sent(msgspec.Struct, frozen=True):
    """A signal on its way."""

    name: str
    id: str
    payload: Any


async def _deliver(kernel: Kernel, crew: Crew, head: Head, signal: _Sent) -> None:
    run, name, id = head.key, signal.name, signal.id
    _check_open(head)
    content = await _payload(kernel, head, signal.payload)
    accepted_ms = kernel.clock.now_ms()
    if accepted_ms >= head.expires_ms:
        raise RunEnded(f"run {run.id!r} has expired", status="expired")
    put = signal_item(
        head,
        name=name,
        id=id,
        content=content,
        accepted_ms=accepted_ms,
        token=kernel.ids.new(),
    )
    try:
        await kernel.settle(kernel.inboxes, put)
        ttl = head.ttl
    except ConditionFailed as failed:
        ttl = await _check_same(kernel, failed, signal)
    row: Head | None = head
    spilled = content.blob is not None
    while row is not None:
        # From here on the row decides, and not our clock: the signal may be taken already.
        if row.status in ENDED and await _was_taken(kernel, row, name, id):
            return
        _check_open(row)
        if ttl < row.ttl:  # the run was extended meanwhile, and whoever did so may have missed it
            await prolong(kernel, row, name=name, id=id)
            ttl = row.ttl
        if row.awaits_signal:
            row = await _woken(kernel, crew, row, spilled=spilled)
        else:
            now = kernel.clock.now_ms()
            write = changes.signalled(row, spilled=spilled, now_ms=now, token=kernel.ids.new())
            row = await _changed(kernel, row, write)


async def _was_taken(kernel: Kernel, head: Head, name: str, id: str) -> bool:
    if head.freed or head.status == "expired":
        return False
    return (name, id) in (await load(kernel, head)).execution.taken


async def _woken(kernel: Kernel, crew: Crew, head: Head, *, spilled: bool) -> Head | None:
    """Wake a run that waits; return None, or its row if it does not look like that any more."""
    room = crew.reserve(head.key, head.graph, head.pool)
    now, worker = kernel.clock.now_ms(), None if room is None else room.owner
    write = changes.nudged(head, worker=worker, spilled=spilled, now_ms=now, token=kernel.ids.new())
    claimed = (worker, head.epoch + 1)
    try:
        item = await kernel.settle(
            kernel.heads,
            write,
            stands=lambda item: room is not None and (item.get("owner"), item["epoch"]) == claimed,
        )
    except ConditionFailed as failed:
        if room is not None:
            room.give_back()
        return standing(head, failed)
    except BaseException:
        if room is not None:
            room.give_back(unsure=True)
        raise
    if room is not None:
        room.take(head_of(item))
    else:
        crew.offer(changes.place_in(write))
    return None


async def _payload(kernel: Kernel, head: Head, payload: Any) -> Content:
    try:
        data = pack(durable(payload))
        return await spilled(kernel, head, data, f"signal-{kernel.ids.new()}")
    except (InvalidResult, Misfit) as error:
        raise InvalidInput(f"the payload: {error}", field="payload") from None


def _check_open(head: Head) -> None:
    if head.status == "closing":
        # Past its expiry it still carries out what it holds, and that may be this signal.
        raise OutcomeUnknown(f"run {head.key.id!r} is being closed; ask for it in a moment")
    if head.status not in OPEN:
        raise RunEnded(f"run {head.key.id!r} is {head.status}", status=head.status)


async def _check_same(kernel: Kernel, failed: ConditionFailed, signal: _Sent) -> int:
    """Check that a signal which is there already is this one; return its ttl."""
    item = failed.item or {}
    (data,) = await contents_of(kernel, [content_of(item)])
    payload = durable(signal.payload)
    if data != pack(payload) and unpack_value(data) != payload:
        raise AlreadyExists(
            f"a signal {signal.name!r} of the id {signal.id!r} is there, with another payload"
        ) from None
    return item["ttl"]


async def _changed(
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
        return standing(head, failed)
    return None


def standing(head: Head, failed: ConditionFailed) -> Head:
    """Return the row that stood in the way of a write.

    Raises:
        RunNotFound: it is gone, or another run has its id by now.
    """
    found = None if failed.item is None else head_of(failed.item)
    if found is None or found.generation != head.generation:
        raise RunNotFound(f"the run {head.key.id!r} is gone") from None
    return found


# --- cancelling -----------------------------------------------------------------------------------


async def cancel(kernel: Kernel, run: RunKey, *, reason: str) -> Head:
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
        changed = await _changed(kernel, head, write)
        head = changed or await read(kernel, run)
    return await _cancelled(kernel, head, reason)


async def _cancelled(kernel: Kernel, head: Head, reason: str) -> Head:
    while True:
        loaded = await load(kernel, head)
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
            put = record(lasting, position, content, token=token, stays=True)
            try:
                await kernel.settle(kernel.journals, put)
            except ConditionFailed:
                continue  # somebody wrote there first
            loaded = msgspec.structs.replace(loaded, execution=folded(loaded.execution, [event]))
        return await _closed(kernel, head.key, loaded)


async def _closed(kernel: Kernel, run: RunKey, loaded: Loaded) -> Head:
    """Close the row of a cancelled run that nobody holds; an owner closes it by itself."""
    head = await read(kernel, run)
    if head.owner is not None or head.status in ENDED:
        return head
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
    return await _changed(kernel, head, write) or await read(kernel, run)


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
    changed = await _changed(
        kernel, head, write, lambda item: item.get("retry", {}).get("id") == request.id
    )
    if changed is not None:
        raise NotRetryable(f"run {run.id!r} is {changed.status} by now")
    return changes.place_in(write)
