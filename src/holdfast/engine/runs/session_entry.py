"""Makes runs that have their place in a session: the run and its ticket in one transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec

from holdfast.engine.journal.in_memory import Stood
from holdfast.engine.journal.payloads import spilled
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.local_workers import Hands
from holdfast.engine.runs.session_queue import View, look
from holdfast.engine.runs.session_turns import look_again
from holdfast.errors import (
    InvalidInput,
    InvalidResult,
    SessionBusy,
    StoreUnavailable,
    StoreUnusable,
    TransactionCancelled,
)
from holdfast.model.run import OnBusy
from holdfast.model.signals import Signal
from holdfast.records import changes
from holdfast.records.codec import plain_bytes
from holdfast.records.head import Head, InboxSize, head_of, is_over
from holdfast.records.journal import signal_item
from holdfast.records.keys import LaneKey, RunKey
from holdfast.records.lane import asks_again_ms, enter, next_number, promotable
from holdfast.storage import Put, Update

__all__ = ["Entrance", "start_in_lane"]


class Entrance(msgspec.Struct, frozen=True):
    """How a run comes into a lane."""

    key: LaneKey
    on_busy: OnBusy
    packed: bytes
    """Its input."""
    keep_input: Callable[[Head], Awaitable[Head]]
    """Writes the input down where it does not fit into the row; to be called before that."""


async def start_in_lane(kernel: Kernel, hands: Hands, head: Head, entrance: Entrance) -> Head:
    """Make a run in a lane; return its row, or a pointer to the run that took its input.

    Raises:
        Stood: a run of this id is there.
        SessionBusy: another run of the session goes on, and this one is not to wait for it.
        InvalidInput: the input cannot be kept.
    """
    kept: Head | None = None
    passed_over: Head | None = None
    while True:
        view = await _look(kernel, hands, entrance.key)
        if view.first is not None and entrance.on_busy in ("reject", "promote"):
            standing = await kernel.heads.get(head.key.head)
            if standing is not None and not is_over(standing, kernel.clock.now_ms()):
                raise Stood(standing)  # perhaps it is itself what makes the lane busy
            if entrance.on_busy == "reject":
                raise SessionBusy(
                    f"run {view.first.ticket.run!r} of session {entrance.key.session!r} goes on",
                    run=view.first.ticket.run,
                )
            first = head_of(view.first.row)
            now = kernel.clock.now_ms()
            name = promotable(first, head.key.id, now)
            if name is not None and first != passed_over:
                answer = Signal(name, head.key.id, now, entrance.packed)
                pointer = await _promoted(kernel, hands, head, first, answer)
                if pointer is not None:
                    return pointer
                passed_over = first  # unless it has changed, its inbox holds another of this id
                continue
        # Only now, so that a start which is refused leaves no large input behind.
        kept = kept or await entrance.keep_input(head)
        made = _placed(kept, view, entrance.on_busy, kernel.clock.now_ms())
        now, token = kernel.clock.now_ms(), kernel.ids.new()
        ticket, counted = enter(view.lane, made, entrance.key, now_ms=now, token=token)
        if await _carried_out(
            kernel, made, (changes.created(made, now_ms=now, token=token), ticket, counted)
        ):
            if view.first is not None:
                await look_again(kernel, hands, made)
            return made


async def _look(kernel: Kernel, hands: Hands, key: LaneKey) -> View:
    view = await look(kernel, key)
    if view.first is not None:
        run = RunKey(key.tenant, view.first.ticket.run)
        if hands.holds(run):
            # Whoever heard that it has ended here does not find the lane busy with it.
            await hands.settled(run)
            return await look(kernel, key)
    return view


def _placed(head: Head, view: View, on_busy: OnBusy, now_ms: int) -> Head:
    """Return the row of a run that comes into a lane which looks like this."""
    number = next_number(view.lane)
    if view.first is None:
        return msgspec.structs.replace(head, ticket=number)
    head = msgspec.structs.replace(head, ticket=number, replaces=on_busy == "replace", owner=None)
    if head.reason == "scheduled":
        return head  # when its time has come it will see where it stands
    return msgspec.structs.replace(
        head,
        status="waiting",
        reason="queued",
        place=head.due(asks_again_ms(head, now_ms), head.epoch),
    )


async def _promoted(
    kernel: Kernel, hands: Hands, head: Head, first: Head, answer: Signal
) -> Head | None:
    """Answer what the run in front waits for; return a pointer to it, or None if that was late."""
    try:
        content = await spilled(kernel, first, answer.body, f"signal-{kernel.ids.new()}")
    except InvalidResult as error:
        raise InvalidInput(f"the input: {error}", field="input") from None
    pointer = msgspec.structs.replace(
        head, status="promoted", into=first.key.id, owner=None, place=None, input=None, reason=None
    )
    now, token, size = kernel.clock.now_ms(), kernel.ids.new(), plain_bytes(answer.body)
    made = changes.created(pointer, now_ms=now, token=token)
    put = signal_item(
        first,
        name=answer.name,
        id=answer.id,
        content=content,
        plain_bytes=size,
        accepted_ms=answer.accepted_ms,
        token=token,
    )
    # It is counted, and not refused: the run waits for it.
    woken = changes.nudged(
        first,
        worker=None,
        spilled=content.blob is not None,
        adds=InboxSize(1, size),
        now_ms=now,
        token=token,
    )
    if await _carried_out(kernel, pointer, (made, put, woken)):
        hands.offer(changes.place_in(woken))
        return pointer
    if content.blob is not None and kernel.blobs is not None:
        with suppress(StoreUnavailable, StoreUnusable):
            await kernel.blobs.delete(content.blob.key)  # nobody names it
    return None


async def _carried_out(kernel: Kernel, head: Head, writes: Sequence[Put | Update]) -> bool:
    """Carry out a transaction whose first write makes a run; return whether it was.

    The others compare what was read of the lane, and never hold again once they did not.

    Raises:
        Stood: a run of this id is there.
    """
    try:
        await kernel.settle_together(kernel.lanes, writes)
    except TransactionCancelled as cancelled:
        if 0 not in cancelled.failed:
            return False
        # Not every service hands out what stood in the way.
        item = cancelled.items.get(0) or await kernel.heads.get(head.key.head)
        if item is None:
            return False
        if item.get("generation") != head.generation:
            raise Stood(item) from None
        # An earlier sending of it was carried out, and only its answer was lost.
    return True
