"""How often the lists of dead workers are swept again, and how far the fleet has got with it.

When a worker is reaped, its runs are re-queued. An index may lag, and a write that the dead worker
sent may land late: then a run stands under its name that the sweep did not see. So each list is
swept again, in stages: at the next turn, then at ages that double up to a day. A run that shows up
late is found after at most twice that time.

One item holds a cursor for each stage: the last dead worker, in the order in which they were
reaped, that the stage has dealt with. One worker at a time takes a turn, and moves the cursors on
by at most `SWEEPS_MAX` dead workers. So the work in a lease is bounded, whatever their number, and
is done once for the whole fleet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.records.damage import DECODE_ERRORS, damaged_item_error, typed_attribute
from holdfast.records.keys import REAPING
from holdfast.storage import Absent, Equals, Update

__all__ = [
    "RESWEEP_AGES_MS",
    "SWEEPS_MAX",
    "SweepTurn",
    "advance_turn_write",
    "sweep_turn_of",
    "take_turn_write",
]

_DAY_MS = 24 * 3600 * 1000
_DOUBLINGS = 12

RESWEEP_AGES_MS = (0, *(_DAY_MS >> halvings for halvings in range(_DOUBLINGS, -1, -1)))
"""How long after it was reaped a dead worker's list is swept again: 0, then 21 s to a day."""
SWEEPS_MAX = 512
"""How many lists are swept again in a turn."""
_BEGINNING = f"{0:013d}"


class SweepTurn(msgspec.Struct, frozen=True):
    """How far the fleet has got."""

    number: int = 0
    """How many turns were taken."""
    next_ms: int = 0
    """When the next one is to be taken, by the clock of who took the last."""
    cursors: tuple[str, ...] = (_BEGINNING,) * len(RESWEEP_AGES_MS)
    """For each stage, the place of the last dead worker that it has dealt with."""


def sweep_turn_of(item: Mapping[str, Any] | None) -> SweepTurn:
    """Return what the item says; the beginning where there is none.

    Raises:
        JournalDamaged: it does not say how far the fleet has got.
    """
    if item is None:
        return SweepTurn()
    try:
        known = msgspec.convert(item.get("cursors", ()), tuple[str, ...])[: len(RESWEEP_AGES_MS)]
        turn, next_ms = typed_attribute(item, "turn", int), typed_attribute(item, "next_ms", int)
    except DECODE_ERRORS as error:
        raise damaged_item_error(item, "the turn", error) from error
    # A release with fewer stages wrote it: the stages that it lacks begin at the beginning.
    return SweepTurn(turn, next_ms, (*known, *SweepTurn().cursors[len(known) :]))


def take_turn_write(before: SweepTurn, *, next_ms: int, token: str) -> Update:
    """Return the write by which one worker of many takes the next turn."""
    return Update(
        key=REAPING,
        set={"turn": before.number + 1, "next_ms": next_ms},
        condition=Equals("turn", before.number) if before.number else Absent("PK"),
        token=token,
    )


def advance_turn_write(turn: SweepTurn, *, token: str) -> Update:
    """Return the write that ends a turn, unless another worker has taken the next one."""
    return Update(
        key=REAPING,
        set={"cursors": list(turn.cursors)},
        condition=Equals("turn", turn.number),
        token=token,
    )
