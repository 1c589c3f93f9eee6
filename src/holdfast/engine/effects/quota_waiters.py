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

from holdfast.model.quota_admission import LATENESS_US

__all__ = ["PermitWaiters"]


class _Waiter(Protocol):
    @property
    def retry_at_us(self) -> int | None:
        """The place in the line: when the caller asks again."""
        ...


W = TypeVar("W", bound=_Waiter)


class PermitWaiters(Generic[W]):
    """The callers of this process that wait in place for a slot of one quota."""

    def __init__(self) -> None:
        self.line_us = 0
        """Where the line ended when this process last wrote it."""
        self._waiting: list[W] = []
        # Callers of other processes may have places up to here.
        self._others_until_us = 0
        # The places of callers of this process that do not wait in place, the first in front.
        self._deferred_us: list[int] = []
        self._last_deferred_us = 0

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

    def note_deferred(self, retry_at_us: int, *, now_us: int) -> None:
        """Note that a caller of this process has this place, and does not wait for it here."""
        self._drop_past(now_us)
        heappush(self._deferred_us, retry_at_us)
        self._last_deferred_us = max(retry_at_us, self._last_deferred_us)

    def observe_line(self, line_us: int) -> None:
        """Note where the line ends after another process wrote to the quota."""
        if line_us != self.line_us:
            self.line_us = line_us
            self._others_until_us = line_us + LATENESS_US

    def next_early(self, now_us: int) -> list[W]:
        """Return the callers that may take a slot before their time."""
        if self.is_line_shared(now_us):
            return []
        self._drop_past(now_us)
        first_us = self._deferred_us[0] if self._deferred_us else math.inf
        return [caller for caller in self._waiting if _place_us(caller) <= first_us]

    def due(self, now_us: int) -> list[W]:
        """Return the callers whose time has come."""
        return [caller for caller in self._waiting if _place_us(caller) <= now_us]

    def is_line_shared(self, now_us: int) -> bool:
        """Return whether callers of other processes may be in the line."""
        return self._others_until_us > now_us

    def is_line_local(self, now_us: int) -> bool:
        """Return whether all callers in the line wait in place in this process."""
        return max(self._others_until_us, self._last_deferred_us) <= now_us

    def _drop_past(self, now_us: int) -> None:
        while self._deferred_us and self._deferred_us[0] <= now_us:
            heappop(self._deferred_us)


def _place_us(caller: _Waiter) -> int:
    return caller.retry_at_us or 0
