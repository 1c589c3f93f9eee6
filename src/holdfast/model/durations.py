"""Spans of time as people write them: ``days(7)``, ``timedelta(hours=4)`` or plain seconds."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TypeAlias

from holdfast.errors import InvalidRequest

__all__ = ["Duration", "days", "hours", "milliseconds_of", "minutes", "seconds"]

Duration: TypeAlias = float | int | timedelta

# A hundred years: more is a slip of units, and would overflow the keys of the due index.
_MILLISECONDS_MAX = 100 * 365 * 24 * 3600 * 1000


def seconds(count: float) -> timedelta:
    """Return that many seconds."""
    return _timedelta("seconds", count)


def minutes(count: float) -> timedelta:
    """Return that many minutes."""
    return _timedelta("minutes", count)


def hours(count: float) -> timedelta:
    """Return that many hours."""
    return _timedelta("hours", count)


def days(count: float) -> timedelta:
    """Return that many days."""
    return _timedelta("days", count)


def _timedelta(unit: str, count: float) -> timedelta:
    try:
        return timedelta(**{unit: count})
    except (TypeError, ValueError, OverflowError):
        raise InvalidRequest(
            f"{unit} is a number of them, and no more than a hundred years, not {count!r:.80}",
            field=unit,
        ) from None


def milliseconds_of(duration: Duration, field: str) -> int:
    """Return a span of time in whole milliseconds, rounded up.

    Raises:
        InvalidRequest: not a span of time, negative, or over a hundred years.
    """
    if isinstance(duration, timedelta):
        exact = duration.total_seconds() * 1000
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        exact = duration * 1000
    else:
        raise InvalidRequest(
            f"{field} is seconds or a timedelta, not {duration!r:.80}", field=field
        )
    if not 0 <= exact <= _MILLISECONDS_MAX:
        raise InvalidRequest(
            f"{field} is from 0 seconds to a hundred years, not {duration!r:.80}", field=field
        )
    return math.ceil(exact)
