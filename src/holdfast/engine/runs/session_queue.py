"""Reads and prunes the queue of a session's runs, and wakes the next run when one leaves."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.engine.runs.waking import wake_queued
from holdfast.errors import ConditionFailed, JournalDamaged
from holdfast.records.head import Head, head_of
from holdfast.records.keys import RunKey, SessionQueueKey
from holdfast.records.session_queue import (
    SessionQueue,
    Ticket,
    extend_ticket_writes,
    front_ticket,
    is_live_ticket,
    leave_queue_write,
    session_queue_of,
)

__all__ = ["QueueFront", "QueueView", "extend_ticket", "leave_queue", "list_queue", "prune_queue"]

# A queue is read page by page from its beginning, up to the first live ticket.
_PAGE_ITEMS = 8


class QueueFront(msgspec.Struct, frozen=True):
    """The run at the front of a session queue."""

    ticket: Ticket
    row: Mapping[str, Any]


class QueueView(msgspec.Struct, frozen=True):
    """A session queue at one moment."""

    queue: SessionQueue
    first: QueueFront | None


async def prune_queue(kernel: Kernel, key: SessionQueueKey) -> QueueView:
    """Delete the tickets of runs that are gone from the front of a queue, and return the queue."""
    while True:
        queue = await _read_to_front(kernel, key)
        now = kernel.clock.now_ms()
        ticket = front_ticket(queue, now)
        if ticket is None:
            return QueueView(queue, None)
        row = await kernel.heads.get(RunKey(key.tenant, ticket.run).head)
        if row is not None and is_live_ticket(ticket, row, now):
            return QueueView(queue, QueueFront(ticket, row))
        await _delete_ticket(kernel, key, ticket.number, ticket.generation)


async def leave_queue(
    kernel: Kernel, workers: LocalWorkers, head: Head, key: SessionQueueKey
) -> None:
    """Delete the ticket of a run that has ended, and wake the next run; idempotent."""
    await _delete_ticket(kernel, key, head.ticket, head.generation)
    first = (await prune_queue(kernel, key)).first
    # If the run was not at the front, the runs behind it go on waiting.
    if first is not None and first.ticket.number > head.ticket:
        with suppress(JournalDamaged):  # a row of a newer release: that run asks by itself
            await wake_queued(kernel, workers, head_of(first.row))


async def extend_ticket(kernel: Kernel, head: Head) -> None:
    """Extend the ttl of a run's ticket to that of its row, after the run was extended."""
    if head.session_queue is None:
        return
    for write in extend_ticket_writes(head, head.session_queue, token=kernel.ids.new()):
        with suppress(ConditionFailed):  # it lasts long enough, or the run has left the queue
            await kernel.resolve_write(kernel.session_queues, write)


async def list_queue(kernel: Kernel, key: SessionQueueKey) -> list[Head]:
    """Return the rows of all runs in a session queue, in order."""
    queue = session_queue_of([item async for item in kernel.session_queues.query_all(key.pk)])
    rows = await kernel.heads.get_many(
        RunKey(key.tenant, ticket.run).head for ticket in queue.tickets
    )
    now = kernel.clock.now_ms()
    return [
        head_of(row)
        for ticket, row in zip(queue.tickets, rows, strict=True)
        if row is not None and is_live_ticket(ticket, row, now)
    ]


async def _read_to_front(kernel: Kernel, key: SessionQueueKey) -> SessionQueue:
    items: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = await kernel.session_queues.query(key.pk, limit=_PAGE_ITEMS, cursor=cursor)
        items += page.items
        queue, cursor = session_queue_of(items), page.cursor
        if cursor is None or front_ticket(queue, kernel.clock.now_ms()) is not None:
            return queue


async def _delete_ticket(
    kernel: Kernel, key: SessionQueueKey, number: int, generation: str
) -> None:
    with suppress(ConditionFailed):  # the ticket is gone already
        await kernel.resolve_write(
            kernel.session_queues, leave_queue_write(key, number, generation)
        )
