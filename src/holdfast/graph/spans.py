"""Durations in the declaration of a graph."""

from __future__ import annotations

from holdfast.errors import InvalidGraph
from holdfast.model.durations import Duration, milliseconds_of

__all__ = ["positive_ms"]


def positive_ms(duration: Duration | None, field: str) -> int | None:
    """Return a duration in milliseconds; None if there is none.

    Raises:
        InvalidGraph: it is 0.
        InvalidRequest: it is not a duration.
    """
    if duration is None:
        return None
    span_ms = milliseconds_of(duration, field)
    if span_ms == 0:
        raise InvalidGraph(f"{field} must be more than 0 seconds")
    return span_ms
