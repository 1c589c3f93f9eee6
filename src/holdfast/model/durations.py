"""Durations as users write them: ``days(7)``, ``timedelta(hours=4)`` or plain seconds."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TypeAlias

from holdfast.errors import InvalidRequest

__all__ = ["Duration", "days", "hours", "milliseconds_of", "minutes", "seconds"]

Duration: TypeAlias = float | int | timedelta

# A hundred years. More is probably a wrong unit, and would overflow keys of the due index.
_MILLISECONDS_MAX = 100 * 365 * 24 * 3600 * 1000


def seconds(count: float) -> timedelta:
    """Return a duration of this many seconds."""
    return _timedelta("seconds", count)


def minutes(count: float) -> timedelta:
    """Return a duration of this many minutes."""
    return _timedelta("minutes", count)


def hours(count: float) -> timedelta:
    """Return a duration of this many hours."""
    return _timedelta("hours", count)


def days(count: float) -> timedelta:
    """Return a duration of this many days."""
    return _timedelta("days", count)


def _timedelta(unit: str, count: float) -> timedelta:
    try:
        return timedelta(**{unit: count})
    except (TypeError, ValueError, OverflowError):
        raise InvalidRequest(
            f"{unit} must be a number, at most a hundred years, got {count!r:.80}",
            field=unit,
        ) from None


def milliseconds_of(duration: Duration, field: str) -> int:
    """Return a duration in whole milliseconds, rounded up.

    Raises:
        InvalidRequest: the value is not a duration, is negative, or is over a hundred years.
    """
    if isinstance(duration, timedelta):
        exact = duration.total_seconds() * 1000
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        exact = duration * 1000
    else:
        raise InvalidRequest(
            f"{field} must be seconds or a timedelta, got {duration!r:.80}", field=field
        )
    if not 0 <= exact <= _MILLISECONDS_MAX:
        raise InvalidRequest(
            f"{field} must be from 0 seconds to a hundred years, got {duration!r:.80}", field=field
        )
    return math.ceil(exact)
