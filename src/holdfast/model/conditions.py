"""What a node can wait for besides a signal, and the answer to a wait for the first of several."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.durations import Duration, milliseconds_of

__all__ = ["Timer", "WaitAnswer", "timer"]


class Timer(msgspec.Struct, frozen=True):
    """The condition that a time has passed since the node began to wait."""

    duration_ms: int


def timer(duration: Duration) -> Timer:
    """Return the condition that this much time has passed, for `ctx.wait_any`.

    Raises:
        InvalidRequest: the value is not a duration, is negative, or is over a hundred years.
    """
    return Timer(milliseconds_of(duration, "timer"))


class WaitAnswer(msgspec.Struct, frozen=True):
    """Which of several conditions came first, and what it brought."""

    condition: Any
    """The condition, as the node passed it."""
    index: int
    """Its position among the conditions, from 0."""
    payload: Any = None
    """The payload of the signal, or the result of the child; None for a timer."""
