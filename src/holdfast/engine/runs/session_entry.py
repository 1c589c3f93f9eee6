"""Starts runs of a session: writes the run and its ticket in one transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from holdfast.engine.journal.in_memory import RunExists
from holdfast.engine.journal.payloads import (
    delete_orphaned_blob,
    spill_if_large,
    unpack_payload,
)
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.engine.runs.session_queue import QueueView, prune_queue
from holdfast.engine.runs.session_turns import recheck_queue
from holdfast.engine.runs.signal_checks import find_misfit
from holdfast.engine.runs.webhook_watch import watch_run
from holdfast.errors import (
    InvalidInput,
    InvalidResult,
    SessionBusy,
    TransactionCancelled,
)
from holdfast.model.run import OnBusy
from holdfast.model.signals import Signal
from holdfast.records import run_writes
from holdfast.records.codec import plain_bytes, unpack_value
from holdfast.records.head import Head, InboxSize, head_of, is_past_ttl
from holdfast.records.journal import signal_write
from holdfast.records.keys import RunKey, SessionQueueKey
from holdfast.records.session_queue import (
    enter_queue_writes,
    next_recheck_ms,
    next_ticket_number,
    promotable_signal,
)
from holdfast.storage import Put, Update

__all__ = ["QueueAdmission", "start_in_queue"]


class QueueAdmission(msgspec.Struct, frozen=True):
    """How a run enters a session queue."""

    key: SessionQueueKey
    on_busy: OnBusy
    packed_input: bytes
    write_input: Callable[[Head], Awaitable[Head]]
    """Writes an input that does not fit into the row; call it before the row is written."""


async def start_in_queue(
    kernel: Kernel, workers: LocalWorkers, head: Head, admission: QueueAdmission
) -> Head:
    """Start a run in a session queue; return its row, or a pointer to the run that took its input.

    Raises:
        RunExists: there is a run with this id.
        SessionBusy: another run of the session is open, and ``on_busy`` says not to wait for it.
        InvalidInput: the input cannot be stored.
    """
    with_input: Head | None = None
    passed_over: Head | None = None
    while True:
        view = await _prune_after_exit(kernel, workers, admission.key)
        if view.first is not None and admission.on_busy in ("reject", "promote"):
            current = await kernel.heads.get(head.key.head)
            if current is not None and not is_past_ttl(current, kernel.clock.now_ms()):
                raise RunExists(current)  # it may itself be what makes the session busy
            if admission.on_busy == "reject":
                raise SessionBusy(
                    f"run {view.first.ticket.run!r} of session {admission.key.session!r} is open",
                    run=view.first.ticket.run,
                )
            first = head_of(view.first.row)
            now = kernel.clock.now_ms()
            name = promotable_signal(first, head.key.id, now)
            if name is not None and first != passed_over:
                answer = Signal(name, head.key.id, now, admission.packed_input)
                pointer = await _promote(kernel, workers, head, first, answer)
                if pointer is not None:
                    return pointer
                passed_over = (
                    first  # unless it has changed, its inbox has another signal of this id
                )
                continue
        # Written this late, so that a refused start leaves no large input behind.
        with_input = with_input or await admission.write_input(head)
        made = _queued_head(with_input, view, admission.on_busy, kernel.clock.now_ms())
        await watch_run(kernel, made)
        now, token = kernel.clock.now_ms(), kernel.ids.new()
        ticket, counted = enter_queue_writes(
            view.queue, made, admission.key, now_ms=now, token=token
        )
        if await _try_transact(
            kernel, made, (run_writes.create_write(made, now_ms=now, token=token), ticket, counted)
        ):
            if view.first is not None:
                await recheck_queue(kernel, workers, made)
            return made


async def _prune_after_exit(
    kernel: Kernel, workers: LocalWorkers, key: SessionQueueKey
) -> QueueView:
    """Prune the queue; if this process is about to end the run at its front, wait for that."""
    view = await prune_queue(kernel, key)
    if view.first is not None:
        run = RunKey(key.tenant, view.first.ticket.run)
        if workers.has_claimed(run):
            # A caller that was told here that the run ended must not find the session busy.
            await workers.wait_for_exit(run)
            return await prune_queue(kernel, key)
    return view


def _queued_head(head: Head, view: QueueView, on_busy: OnBusy, now_ms: int) -> Head:
    """Return the row of a run that enters a queue in this state."""
    number = next_ticket_number(view.queue)
    if view.first is None:
        return msgspec.structs.replace(head, ticket=number)
    head = msgspec.structs.replace(head, ticket=number, replaces=on_busy == "replace", owner=None)
    if head.reason == "scheduled":
        return head  # it looks for its place in the queue when it is due
    return msgspec.structs.replace(
        head,
        status="waiting",
        reason="queued",
        index_key=head.due_index_key(next_recheck_ms(head, now_ms), head.epoch),
    )


async def _promote(
    kernel: Kernel, workers: LocalWorkers, head: Head, first: Head, answer: Signal
) -> Head | None:
    """Answer the wait of the run at the front; return a pointer to it, or None if too late.

    Raises:
        SignalMisfit: the input does not fit the type that the run waits for.
    """
    payload = await unpack_payload(kernel, answer.body, unpack_value)
    misfit = await find_misfit(kernel, first, answer.name, payload)
    if misfit is not None:
        raise misfit
    try:
        content = await spill_if_large(kernel, first, answer.body, f"signal-{kernel.ids.new()}")
    except InvalidResult as error:
        raise InvalidInput(f"the input: {error}", field="input") from None
    pointer = msgspec.structs.replace(
        head,
        status="promoted",
        into=first.key.id,
        owner=None,
        index_key=None,
        input=None,
        reason=None,
    )
    now, token, size = kernel.clock.now_ms(), kernel.ids.new(), plain_bytes(answer.body)
    made = run_writes.create_write(pointer, now_ms=now, token=token)
    put = signal_write(
        first,
        name=answer.name,
        id=answer.id,
        content=content,
        plain_bytes=size,
        accepted_ms=answer.accepted_ms,
        token=token,
    )
    # It counts against the inbox limits but is never refused: the run waits for it.
    wake = run_writes.wake_write(
        first,
        worker=None,
        spilled=content.blob is not None,
        adds=InboxSize(1, size),
        now_ms=now,
        token=token,
    )
    if await _try_transact(kernel, pointer, (made, put, wake)):
        workers.offer(run_writes.index_key_in(wake))
        return pointer
    await delete_orphaned_blob(kernel.blobs, content)
    return None


async def _try_transact(kernel: Kernel, head: Head, writes: Sequence[Put | Update]) -> bool:
    """Carry out a transaction that creates a run with its first write; return whether it did.

    The other writes compare the queue with what was read; once that fails, it fails for good.

    Raises:
        RunExists: there is a run with this id.
    """
    try:
        await kernel.resolve_transaction(kernel.session_queues, writes)
    except TransactionCancelled as cancelled:
        if 0 not in cancelled.failed:
            return False
        # Not every service returns the item that failed the condition.
        item = cancelled.items.get(0) or await kernel.heads.get(head.key.head)
        if item is None:
            return False
        if item.get("generation") != head.generation:
            raise RunExists(item) from None
        # An earlier attempt was carried out, and only its reply was lost.
    return True
