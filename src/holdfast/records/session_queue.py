"""Lanes: the order of the runs of one session, as tickets with numbers.

A ticket stands as long as its run has not left the lane. Numbers are given out by one item, which
every start compares and raises. So a ticket never comes to stand before one that is there, however
late its write is carried out: whoever was once in front stays in front until it leaves.
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
    """A run's place in a lane."""

    number: int
    run: str
    generation: str
    ttl: int


class SessionQueue(msgspec.Struct, frozen=True):
    """A lane, as far as it was read."""

    last: int
    """The last number that was given out."""
    ttl: int
    """When its counting may be forgotten: not before any of its tickets."""
    tickets: tuple[Ticket, ...]


def session_queue_of(items: Iterable[Mapping[str, Any]]) -> SessionQueue:
    """Return the lane that some items of its partition are, in their order.

    Raises:
        JournalDamaged: one of them is neither a ticket nor the last number.
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
            raise damaged_item_error(item, "the order of a session", error) from error
    return SessionQueue(last, ttl, tuple(tickets))


def _ticket_of(item: Mapping[str, Any]) -> Ticket:
    return Ticket(
        ticket_number(item["SK"]),
        typed_attribute(item, "run", str),
        typed_attribute(item, "generation", str),
        typed_attribute(item, "ttl", int),
    )


def front_ticket(queue: SessionQueue, now_ms: int) -> Ticket | None:
    """Return who stands in front; one whose time is over has left, though it may still stand."""
    standing = (ticket for ticket in queue.tickets if ticket.ttl >= now_ms // 1000)
    return min(standing, key=lambda ticket: ticket.number, default=None)


def is_live_ticket(ticket: Ticket, row: Mapping[str, Any] | None, now_ms: int) -> bool:
    """Return whether the row under a ticket's id is that of its run, and not over."""
    if row is None or row.get("generation") != ticket.generation:
        return False
    return not is_past_ttl(row, now_ms)


def next_ticket_number(queue: SessionQueue) -> int:
    """Return the number of the next ticket."""
    return max(queue.last, *(ticket.number for ticket in queue.tickets), 0) + 1


def enter_queue_writes(
    queue: SessionQueue, head: Head, key: SessionQueueKey, *, now_ms: int, token: str
) -> tuple[Put, Update]:
    """Return the writes that give a run its ticket, and count it.

    They are part of the transaction that makes the run: a ticket without a run would never leave.
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
    """Return the write by which a run leaves its lane."""
    return Delete(key.ticket(number), Equals("generation", generation))


def extend_ticket_writes(head: Head, key: SessionQueueKey, *, token: str) -> tuple[Update, Update]:
    """Return the writes that let a run's ticket, and the counting, last as long as its row."""
    lasts: dict[str, Any] = {"ttl": head.ttl}
    shorter = Less("ttl", head.ttl)
    its_own = AllOf((Equals("generation", head.generation), shorter))
    return (
        Update(key=key.last, set=lasts, condition=shorter, token=token),
        Update(key=key.ticket(head.ticket), set=lasts, condition=its_own, token=token),
    )


def next_recheck_ms(head: Head, now_ms: int) -> int:
    """Return when a queued run asks again whether it stands in front, unless it is told before.

    It is only the net under those who tell it, so it asks more and more seldom.
    """
    waited_ms = now_ms - max(head.created_ms, head.starts_ms)
    return now_ms + min(max(waited_ms, _RECHECK_MS_MIN), _RECHECK_MS_MAX)


def promotable_signal(head: Head, id: str, now_ms: int) -> str | None:
    """Return the name of a signal for which a run waits, and that would be in time now.

    Where it waits for several, it is the one for which it has waited the longest.
    """
    if not head.awaits_signal or now_ms >= head.expires_ms:
        return None
    waits = sorted(head.waits, key=lambda wait: (wait.since_ms, wait.branch, wait.visit, wait.key))
    names = (wait.signal for wait in waits if _would_answer(wait, id, now_ms))
    return next(names, None)


def _would_answer(wait: Wait, id: str, now_ms: int) -> bool:
    # Only a child can report its end, and only a person can say what became of a call.
    if wait.signal is None or not wait.kind.takes_caller_signal:
        return False
    answer = [Signal(wait.signal, id, now_ms)]
    return isinstance(resolved_wait(wait, answer, (), now_ms), TakeSignal)
