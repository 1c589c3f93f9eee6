"""Decides which callers of this process may take a free slot of a quota before their time.

A caller that finds no slot gets a place in the quota's line: the time at which it asks again. That
time is a guess. So when this process writes to the quota and a slot is free, callers of this
process that wait in place take it in the same write, in the order of their places.

They must not overtake callers that wait elsewhere. The quota stores only where the line ends, so
this process remembers what it has seen of the line:

- Another process has callers in the line. Until their places have passed, callers of this process
  wait for their own times.
- This process told callers to come back later. Until their places have passed, only callers in
  front of the first of them take slots early.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import Generic, Protocol, TypeVar

from holdfast.model.level import LATE_US

__all__ = ["Waiters"]


class _Waiting(Protocol):
    @property
    def told_us(self) -> int | None:
        """The place in the line: when the caller asks again."""
        ...


W = TypeVar("W", bound=_Waiting)


class Waiters(Generic[W]):
    """The callers of this process that wait in place for a slot of one quota."""

    def __init__(self) -> None:
        self.line_us = 0
        """Where the line ended when this process last wrote it."""
        self._waiting: list[W] = []
        # Callers of other processes may have places up to here.
        self._foreign_until_us = 0
        # The places of callers of this process that do not wait in place, the first in front.
        self._away_us: list[int] = []
        self._away_until_us = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __contains__(self, caller: object) -> bool:
        return caller in self._waiting

    def add(self, caller: W) -> None:
        """Add a caller that waits in place."""
        self._waiting.append(caller)

    def remove(self, caller: W) -> None:
        """Remove a caller, if it waits."""
        if caller in self._waiting:
            self._waiting.remove(caller)

    def note_away(self, told_us: int, *, now_us: int) -> None:
        """Note that a caller of this process has this place, and does not wait for it here."""
        self._forget_past(now_us)
        heappush(self._away_us, told_us)
        self._away_until_us = max(told_us, self._away_until_us)

    def see(self, line_us: int) -> None:
        """Note where the line ends after another process wrote to the quota."""
        if line_us != self.line_us:
            self.line_us = line_us
            self._foreign_until_us = line_us + LATE_US

    def first(self, now_us: int) -> list[W]:
        """Return the callers that may take a slot before their time."""
        if self.share_line(now_us):
            return []
        self._forget_past(now_us)
        first_us = self._away_us[0] if self._away_us else math.inf
        return [one for one in self._waiting if _place_us(one) <= first_us]

    def due(self, now_us: int) -> list[W]:
        """Return the callers whose time has come."""
        return [one for one in self._waiting if _place_us(one) <= now_us]

    def share_line(self, now_us: int) -> bool:
        """Return whether callers of other processes may be in the line."""
        return self._foreign_until_us > now_us

    def are_alone(self, now_us: int) -> bool:
        """Return whether all callers in the line wait in place in this process."""
        return max(self._foreign_until_us, self._away_until_us) <= now_us

    def _forget_past(self, now_us: int) -> None:
        while self._away_us and self._away_us[0] <= now_us:
            heappop(self._away_us)


def _place_us(caller: _Waiting) -> int:
    return caller.told_us or 0
