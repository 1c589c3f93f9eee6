"""Limits how much a run holds in memory, so that no run outgrows the workers that resume it.

A run holds its state, the changes of its branches, and the answers to waits and calls of nodes that
have not finished. Callers, models and tools decide how large these are.
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

# A run may grow at least by this share of state_bytes_max between two measurements. Otherwise each
# small event of a large run would cost an encoding of the whole run.
_UNMEASURED_SHARE = 1 / 16


class RunMemory:
    """An upper bound of the bytes that a run holds, before compression.

    No event is smaller than what it adds to the run, so the sum of the events is a bound. The run
    is measured only when the bound exceeds a limit.
    """

    def __init__(self, limits: PayloadLimits, bytes: int) -> None:
        self.bytes = bytes
        self._limits = limits
        self._measure_above = float(limits.state_bytes_max)

    def leaves_room(self, plain_bytes: int) -> bool:
        """Return whether events of that many bytes may be added without a measurement."""
        return self.bytes + plain_bytes <= self._measure_above

    def admit(
        self,
        events: Sequence[Event],
        plain_bytes: int,
        *,
        before: Execution,
        in_flight: Iterable[Event],
    ) -> None:
        """Measure the run with events that are about to be added; check its limits.

        ``in_flight`` are events that are being written and are not folded yet. A run that exceeded
        its limits before, when they were larger, may stay as large but must not grow. Events
        without a payload from outside are always admitted: a run must be able to fail.

        Raises:
            ResultTooLarge: the run would exceed a limit.
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
                f"the run would hold {held:,} bytes before compression; it may hold "
                f"{limits.memory_bytes_max:,}, twice state_bytes_max: its state, the changes of "
                "its branches, and the answers to waits and calls of unfinished nodes",
                size=held,
                limit=limits.memory_bytes_max,
            )
        if held > limits.state_bytes_max:
            state = len(encode(after.state))
            if state > limits.state_bytes_max and state > len(encode(before.state)):
                raise ResultTooLarge(
                    f"the state would have {state:,} bytes before compression; "
                    f"state_bytes_max is {limits.state_bytes_max:,}",
                    size=state,
                    limit=limits.state_bytes_max,
                )
        return held


def _carries_payload(event: Event) -> bool:
    """Return whether an event carries a value from a caller, a model, a tool or a node."""
    if isinstance(event, CallFinished):
        return event.failure is None
    return isinstance(event, NodeFinished | SignalTaken)


def _held_bytes(execution: Execution) -> int:
    # The ids of taken signals grow as long as a run lives; they are no reason to end it.
    held = msgspec.structs.replace(execution, taken=frozenset())
    return len(encode(snapshot(held, 0, size=0, blobs=False)))
