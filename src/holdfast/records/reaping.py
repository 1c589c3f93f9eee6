"""The item that coordinates repeated sweeps of dead workers' runs.

When a worker is reaped, its runs are re-queued. An index may lag, and a write of the dead worker
may land late: then a run is listed under the dead worker that the sweep did not see. So the runs of
each dead worker are swept again, in stages: at the next turn, then at ages that double up to a day.
A run that appears late is found after at most twice its age.

The item has a cursor for each stage: the last dead worker, in the order of reaping, that the stage
has finished. One worker at a time takes a turn, and moves the cursors on by at most `SWEEPS_MAX`
dead workers. So the work in a lease is bounded, and is done once for the whole fleet.
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
"""The ages at which the runs of a reaped worker are swept again: 0, then 21 s to a day."""
SWEEPS_MAX = 512
"""How many dead workers are swept again in a turn."""
_BEGINNING = f"{0:013d}"


class SweepTurn(msgspec.Struct, frozen=True):
    """The turn of the fleet, and how far each stage has come."""

    number: int = 0
    """The number of turns so far."""
    next_ms: int = 0
    """When the next turn is due, by the clock of the worker that took the last one."""
    cursors: tuple[str, ...] = (_BEGINNING,) * len(RESWEEP_AGES_MS)
    """For each stage, the index key of the last dead worker that it has finished."""


def sweep_turn_of(item: Mapping[str, Any] | None) -> SweepTurn:
    """Return the turn in an item; the first turn if there is no item.

    Raises:
        JournalDamaged: the item cannot be read.
    """
    if item is None:
        return SweepTurn()
    try:
        known = msgspec.convert(item.get("cursors", ()), tuple[str, ...])[: len(RESWEEP_AGES_MS)]
        turn, next_ms = typed_attribute(item, "turn", int), typed_attribute(item, "next_ms", int)
    except DECODE_ERRORS as error:
        raise damaged_item_error(item, "the turn", error) from error
    # A release with fewer stages may have written it: missing stages start at the beginning.
    return SweepTurn(turn, next_ms, (*known, *SweepTurn().cursors[len(known) :]))


def take_turn_write(before: SweepTurn, *, next_ms: int, token: str) -> Update:
    """Return the write by which a worker takes the next turn. Only one worker succeeds."""
    return Update(
        key=REAPING,
        set={"turn": before.number + 1, "next_ms": next_ms},
        condition=Equals("turn", before.number) if before.number else Absent("PK"),
        token=token,
    )


def advance_turn_write(turn: SweepTurn, *, token: str) -> Update:
    """Return the write that saves the cursors, unless another worker has taken the next turn."""
    return Update(
        key=REAPING,
        set={"cursors": list(turn.cursors)},
        condition=Equals("turn", turn.number),
        token=token,
    )
