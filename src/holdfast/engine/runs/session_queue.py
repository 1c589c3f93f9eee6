"""The order of a session's runs: who stands in front, and what is done when it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.local_workers import Hands
from holdfast.engine.runs.waking import wake_queued
from holdfast.errors import ConditionFailed, JournalDamaged
from holdfast.records.head import Head, head_of
from holdfast.records.keys import LaneKey, RunKey
from holdfast.records.lane import Lane, Ticket, front, lane_of, leave, prolong, stands_for

__all__ = ["First", "View", "keep_place", "leave_lane", "listed", "look"]

# A lane is read from its beginning, up to whoever stands in front.
_PART = 8


class First(msgspec.Struct, frozen=True):
    """Who stands in front of a lane."""

    ticket: Ticket
    row: Mapping[str, Any]


class View(msgspec.Struct, frozen=True):
    """A lane at one moment."""

    lane: Lane
    first: First | None


async def look(kernel: Kernel, key: LaneKey) -> View:
    """Return a lane as far as its front; clear away who is gone without having left."""
    while True:
        lane = await _read(kernel, key)
        now = kernel.clock.now_ms()
        ticket = front(lane, now)
        if ticket is None:
            return View(lane, None)
        row = await kernel.heads.get(RunKey(key.tenant, ticket.run).head)
        if row is not None and stands_for(ticket, row, now):
            return View(lane, First(ticket, row))
        await _left(kernel, key, ticket.number, ticket.generation)


async def leave_lane(kernel: Kernel, hands: Hands, head: Head, key: LaneKey) -> None:
    """Take a run that has ended out of its lane, and let the next one know; idempotent."""
    await _left(kernel, key, head.ticket, head.generation)
    first = (await look(kernel, key)).first
    # Those behind one that did not stand in front go on waiting.
    if first is not None and first.ticket.number > head.ticket:
        with suppress(JournalDamaged):  # of a newer release: it will ask by itself
            await wake_queued(kernel, hands, head_of(first.row))


async def keep_place(kernel: Kernel, head: Head) -> None:
    """Let a run's place in its lane last as long as its row, which was given more time."""
    if head.lane is None:
        return
    for write in prolong(head, head.lane, token=kernel.ids.new()):
        with suppress(ConditionFailed):  # it lasts long enough, or the run has left
            await kernel.settle(kernel.lanes, write)


async def listed(kernel: Kernel, key: LaneKey) -> list[Head]:
    """Return the rows of all runs in a lane, in their order."""
    lane = lane_of([item async for item in kernel.lanes.every(key.pk)])
    rows = await kernel.heads.get_many(
        RunKey(key.tenant, ticket.run).head for ticket in lane.tickets
    )
    now = kernel.clock.now_ms()
    return [
        head_of(row)
        for ticket, row in zip(lane.tickets, rows, strict=True)
        if row is not None and stands_for(ticket, row, now)
    ]


async def _read(kernel: Kernel, key: LaneKey) -> Lane:
    items: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = await kernel.lanes.query(key.pk, limit=_PART, cursor=cursor)
        items += page.items
        lane, cursor = lane_of(items), page.cursor
        if cursor is None or front(lane, kernel.clock.now_ms()) is not None:
            return lane


async def _left(kernel: Kernel, key: LaneKey, number: int, generation: str) -> None:
    with suppress(ConditionFailed):  # it has left before
        await kernel.settle(kernel.lanes, leave(key, number, generation))
