"""Session queues: the order of the runs of one session, as numbered tickets.

A ticket exists until its run leaves the queue. One item has the last number, and each start
increases it with a conditional write. So a late write never puts a ticket before an existing one:
the run in front stays in front until it leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.model.signals import Signal, TakeSignal, resolved_wait
from holdfast.model.wait import Wait
from holdfast.records.damage import DECODE_ERRORS, damaged_item_error, typed_attribute
from holdfast.records.head import Head, is_past_ttl
from holdfast.records.keys import SessionQueueKey, ticket_number
from holdfast.storage import Absent, AllOf, AnyOf, Delete, Equals, Less, Put, Update

__all__ = [
    "SessionQueue",
    "Ticket",
    "enter_queue_writes",
    "extend_ticket_writes",
    "front_ticket",
    "is_live_ticket",
    "leave_queue_write",
    "next_recheck_ms",
    "next_ticket_number",
    "promotable_signal",
    "session_queue_of",
]

_RECHECK_MS_MIN = 60_000
_RECHECK_MS_MAX = 3_600_000


class Ticket(msgspec.Struct, frozen=True):
    """The place of a run in a session queue."""

    number: int
    run: str
    generation: str
    ttl: int


class SessionQueue(msgspec.Struct, frozen=True):
    """A session queue, as far as it was read."""

    last: int
    """The last number that was given out."""
    ttl: int
    """The ttl of the last number. It is not before that of any ticket."""
    tickets: tuple[Ticket, ...]


def session_queue_of(items: Iterable[Mapping[str, Any]]) -> SessionQueue:
    """Return the session queue in the items of its partition.

    Raises:
        JournalDamaged: an item is neither a ticket nor the last number.
    """
    last, ttl = 0, 0
    tickets: list[Ticket] = []
    for item in items:
        try:
            if item["SK"] == "LAST":
                last, ttl = typed_attribute(item, "last", int), typed_attribute(item, "ttl", int)
            else:
                tickets.append(_ticket_of(item))
        except DECODE_ERRORS as error:
            raise damaged_item_error(item, "the session queue", error) from error
    return SessionQueue(last, ttl, tuple(tickets))


def _ticket_of(item: Mapping[str, Any]) -> Ticket:
    return Ticket(
        ticket_number(item["SK"]),
        typed_attribute(item, "run", str),
        typed_attribute(item, "generation", str),
        typed_attribute(item, "ttl", int),
    )


def front_ticket(queue: SessionQueue, now_ms: int) -> Ticket | None:
    """Return the ticket in front, without tickets past their ttl; None if the queue is empty."""
    standing = (ticket for ticket in queue.tickets if ticket.ttl >= now_ms // 1000)
    return min(standing, key=lambda ticket: ticket.number, default=None)


def is_live_ticket(ticket: Ticket, row: Mapping[str, Any] | None, now_ms: int) -> bool:
    """Return whether a row belongs to the run of a ticket, and is not past its ttl."""
    if row is None or row.get("generation") != ticket.generation:
        return False
    return not is_past_ttl(row, now_ms)


def next_ticket_number(queue: SessionQueue) -> int:
    """Return the number of the next ticket."""
    return max(queue.last, *(ticket.number for ticket in queue.tickets), 0) + 1


def enter_queue_writes(
    queue: SessionQueue, head: Head, key: SessionQueueKey, *, now_ms: int, token: str
) -> tuple[Put, Update]:
    """Return the writes that add a run's ticket to the queue and increase the last number.

    They are part of the transaction that creates the run: a ticket without a run would never leave.
    """
    place = key.ticket(head.ticket)
    item = {
        "PK": place.pk,
        "SK": place.sk,
        "run": head.key.id,
        "generation": head.generation,
        "ttl": head.ttl,
    }
    free = AnyOf((Absent("PK"), Less("ttl", now_ms // 1000)))
    as_read = AllOf((Equals("last", queue.last), Equals("ttl", queue.ttl)))
    counted = Update(
        key=key.last,
        set={"last": head.ticket, "ttl": max(queue.ttl, head.ttl)},
        condition=as_read if queue.last else Absent("PK"),
        token=token,
    )
    return Put(item, free, token), counted


def leave_queue_write(key: SessionQueueKey, number: int, generation: str) -> Delete:
    """Return the write by which a run leaves its session queue."""
    return Delete(key.ticket(number), Equals("generation", generation))


def extend_ticket_writes(head: Head, key: SessionQueueKey, *, token: str) -> tuple[Update, Update]:
    """Return the writes that extend the ttl of a ticket and of the last number to the row's."""
    lasts: dict[str, Any] = {"ttl": head.ttl}
    shorter = Less("ttl", head.ttl)
    its_own = AllOf((Equals("generation", head.generation), shorter))
    return (
        Update(key=key.last, set=lasts, condition=shorter, token=token),
        Update(key=key.ticket(head.ticket), set=lasts, condition=its_own, token=token),
    )


def next_recheck_ms(head: Head, now_ms: int) -> int:
    """Return when a queued run checks again whether it is in front.

    The run before it normally wakes it. The check is a fallback, so its interval grows.
    """
    waited_ms = now_ms - max(head.created_ms, head.starts_ms)
    return now_ms + min(max(waited_ms, _RECHECK_MS_MIN), _RECHECK_MS_MAX)


def promotable_signal(head: Head, id: str, now_ms: int) -> str | None:
    """Return the name of a signal that a run waits for and that would be in time now.

    Of several it is the one for which the run has waited the longest.
    """
    if not head.awaits_signal or now_ms >= head.expires_ms:
        return None
    waits = sorted(head.waits, key=lambda wait: (wait.since_ms, wait.branch, wait.visit, wait.key))
    names = (wait.signal for wait in waits if _would_answer(head, wait, id, now_ms))
    return next(names, None)


def _would_answer(head: Head, wait: Wait, id: str, now_ms: int) -> bool:
    # Only a child can report its end, and only a person can say what became of a call.
    if wait.signal is None or not wait.kind.takes_caller_signal:
        return False
    answer = [Signal(wait.signal, id, now_ms)]
    found = resolved_wait(wait, answer, (), now_ms, expires_ms=head.expires_ms)
    return isinstance(found, TakeSignal)
