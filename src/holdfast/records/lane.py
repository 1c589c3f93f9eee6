"""Lanes: the order of the runs of one session, as tickets with numbers.

A ticket stands as long as its run has not left the lane. Numbers are given out by one item, which
every start compares and raises. So a ticket never comes to stand before one that is there, however
late its write is carried out: whoever was once in front stays in front until it leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.model.call import is_ambiguous
from holdfast.model.child import is_childs_signal
from holdfast.model.signals import Signal, Take, Wait, resolved
from holdfast.records.damage import DAMAGE, attribute, damaged
from holdfast.records.head import Head, is_over
from holdfast.records.keys import LaneKey, ticket_number
from holdfast.storage import Absent, AllOf, AnyOf, Delete, Equals, Less, Put, Update

__all__ = [
    "Lane",
    "Ticket",
    "asks_again_ms",
    "enter",
    "front",
    "lane_of",
    "leave",
    "next_number",
    "prolong",
    "promotable",
    "stands_for",
]

_ASK_FIRST_MS = 60_000
_ASK_MOST_MS = 3_600_000


class Ticket(msgspec.Struct, frozen=True):
    """A run's place in a lane."""

    number: int
    run: str
    generation: str
    ttl: int


class Lane(msgspec.Struct, frozen=True):
    """A lane, as far as it was read."""

    last: int
    """The last number that was given out."""
    ttl: int
    """When its counting may be forgotten: not before any of its tickets."""
    tickets: tuple[Ticket, ...]


def lane_of(items: Iterable[Mapping[str, Any]]) -> Lane:
    """Return the lane that some items of its partition are, in their order.

    Raises:
        JournalDamaged: one of them is neither a ticket nor the last number.
    """
    last, ttl = 0, 0
    tickets: list[Ticket] = []
    for item in items:
        try:
            if item["SK"] == "LAST":
                last, ttl = attribute(item, "last", int), attribute(item, "ttl", int)
            else:
                tickets.append(_ticket_in(item))
        except DAMAGE as error:
            raise damaged(item, "the order of a session", error) from error
    return Lane(last, ttl, tuple(tickets))


def _ticket_in(item: Mapping[str, Any]) -> Ticket:
    return Ticket(
        ticket_number(item["SK"]),
        attribute(item, "run", str),
        attribute(item, "generation", str),
        attribute(item, "ttl", int),
    )


def front(lane: Lane, now_ms: int) -> Ticket | None:
    """Return who stands in front; one whose time is over has left, though it may still stand."""
    standing = (ticket for ticket in lane.tickets if ticket.ttl >= now_ms // 1000)
    return min(standing, key=lambda ticket: ticket.number, default=None)


def stands_for(ticket: Ticket, row: Mapping[str, Any] | None, now_ms: int) -> bool:
    """Return whether the row under a ticket's id is that of its run, and not over."""
    if row is None or row.get("generation") != ticket.generation:
        return False
    return not is_over(row, now_ms)


def next_number(lane: Lane) -> int:
    """Return the number of the next ticket."""
    return max(lane.last, *(ticket.number for ticket in lane.tickets), 0) + 1


def enter(lane: Lane, head: Head, key: LaneKey, *, now_ms: int, token: str) -> tuple[Put, Update]:
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
    as_read = AllOf((Equals("last", lane.last), Equals("ttl", lane.ttl)))
    counted = Update(
        key=key.last,
        set={"last": head.ticket, "ttl": max(lane.ttl, head.ttl)},
        condition=as_read if lane.last else Absent("PK"),
        token=token,
    )
    return Put(item, free, token), counted


def leave(key: LaneKey, number: int, generation: str) -> Delete:
    """Return the write by which a run leaves its lane."""
    return Delete(key.ticket(number), Equals("generation", generation))


def prolong(head: Head, key: LaneKey, *, token: str) -> tuple[Update, Update]:
    """Return the writes that let a run's ticket, and the counting, last as long as its row."""
    lasts: dict[str, Any] = {"ttl": head.ttl}
    shorter = Less("ttl", head.ttl)
    its_own = AllOf((Equals("generation", head.generation), shorter))
    return (
        Update(key=key.last, set=lasts, condition=shorter, token=token),
        Update(key=key.ticket(head.ticket), set=lasts, condition=its_own, token=token),
    )


def asks_again_ms(head: Head, now_ms: int) -> int:
    """Return when a queued run asks again whether it stands in front, unless it is told before.

    It is only the net under those who tell it, so it asks more and more seldom.
    """
    waited_ms = now_ms - max(head.created_ms, head.starts_ms)
    return now_ms + min(max(waited_ms, _ASK_FIRST_MS), _ASK_MOST_MS)


def promotable(head: Head, id: str, now_ms: int) -> str | None:
    """Return the name of a signal for which a run waits, and that would be in time now.

    Where it waits for several, it is the one for which it has waited the longest.
    """
    if not head.awaits_signal or now_ms >= head.expires_ms:
        return None
    waits = sorted(head.waits, key=lambda wait: (wait.since_ms, wait.branch, wait.visit, wait.key))
    names = (wait.signal for wait in waits if _is_answered(wait, id, now_ms))
    return next(names, None)


def _is_answered(wait: Wait, id: str, now_ms: int) -> bool:
    if is_childs_signal(wait.signal) or is_ambiguous(wait.signal):
        # Only the child itself can tell how it ended, and of a call only who has looked.
        return False
    answer = [] if wait.signal is None else [Signal(wait.signal, id, now_ms)]
    return isinstance(resolved(wait, answer, (), now_ms), Take)
