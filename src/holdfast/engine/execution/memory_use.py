"""How much a run holds in memory: no run may outgrow the workers that resume it.

A run holds its state, what its branches changed, and the answers of the waits and calls of nodes
that are not over. Callers, models and tools decide how much that is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.errors import ResultTooLarge
from holdfast.model.event import CallFinished, Event, NodeFinished, SignalTaken
from holdfast.model.execution import Execution
from holdfast.model.fold import folded, snapshot
from holdfast.model.payload_limits import PayloadLimits
from holdfast.records.codec import encode

__all__ = ["RunMemory"]

# By how much of the limit on states a run may grow between two measurements, at the least: or each
# small event of a large run would cost as much as all that the run holds.
_UNMEASURED_SHARE = 1 / 16


class RunMemory:
    """An upper bound of how many bytes a run holds, before compression.

    Events are no smaller than what they add. So their sum is a bound, and only where that exceeds a
    limit is the run measured.
    """

    def __init__(self, limits: PayloadLimits, bytes: int) -> None:
        self.bytes = bytes
        self._limits = limits
        self._measure_above = float(limits.state_bytes_max)

    def leaves_room(self, plain_bytes: int) -> bool:
        """Return whether events of so many bytes may come without a measurement."""
        return self.bytes + plain_bytes <= self._measure_above

    def admit(
        self,
        events: Sequence[Event],
        plain_bytes: int,
        *,
        before: Execution,
        in_flight: Iterable[Event],
    ) -> None:
        """Measure a run before it grows by events; ``under_way`` are not folded yet.

        What was larger before, under other limits, may stay so, but must not grow. Events that
        carry nothing from outside are always admitted: a run must be able to fail.

        Raises:
            ResultTooLarge: it would hold more than it may.
        """
        grown = self.bytes + plain_bytes
        if any(map(_carries_payload, events)):
            grown = self._checked_size(before, folded(before, [*in_flight, *events]))
            unmeasured = _UNMEASURED_SHARE * self._limits.state_bytes_max
            self._measure_above = max(self._limits.state_bytes_max, grown + unmeasured)
        self.bytes = grown

    def _checked_size(self, before: Execution, after: Execution) -> int:
        limits, held = self._limits, _held_bytes(after)
        if held > limits.memory_bytes_max and held > _held_bytes(before):
            raise ResultTooLarge(
                f"the run would hold {held:,} bytes before compression, and may hold "
                f"{limits.memory_bytes_max:,}, twice state_bytes_max: its state, what its branches "
                "changed, and the answers of waits and calls of nodes that are not over",
                size=held,
                limit=limits.memory_bytes_max,
            )
        if held > limits.state_bytes_max:
            state = len(encode(after.state))
            if state > limits.state_bytes_max and state > len(encode(before.state)):
                raise ResultTooLarge(
                    f"the state would have {state:,} bytes before compression, and "
                    f"state_bytes_max is {limits.state_bytes_max:,}",
                    size=state,
                    limit=limits.state_bytes_max,
                )
        return held


def _carries_payload(event: Event) -> bool:
    """Return whether an event carries what comes from outside."""
    if isinstance(event, CallFinished):
        return event.failure is None
    return isinstance(event, NodeFinished | SignalTaken)


def _held_bytes(execution: Execution) -> int:
    # The ids of signals grow for as long as a run lives, and are no reason to end it.
    held = msgspec.structs.replace(execution, taken=frozenset())
    return len(encode(snapshot(held, 0, size=0, blobs=False)))
