"""Durations as users write them: ``"1h30m"``, ``days(7)``, a timedelta, or plain seconds."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from decimal import Decimal
from typing import TypeAlias

from holdfast.errors import InvalidRequest

__all__ = [
    "Duration",
    "days",
    "duration_text",
    "hours",
    "milliseconds_of",
    "minutes",
    "seconds",
    "seconds_of",
]

Duration: TypeAlias = float | int | timedelta | str
"""Seconds, a timedelta, or text such as ``"7d"``, ``"90m"``, ``"1h30m"`` or ``"500ms"``."""

_UNITS_MS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
# ASCII digits only, each unit at most once, the largest first. Units of text that is shown have no
# weeks: 8d is easier to compare with 7d than 1w1d.
_NUMBER = r"([0-9]{1,12}(?:\.[0-9]{1,6})?)"
_TEXT = re.compile("".join(f"(?:{_NUMBER}{unit})?" for unit in _UNITS_MS))
_EXAMPLES = "'500ms', '90s', '1h30m' or '7d'"
_SHOWN_UNITS = ("d", "h", "m", "s", "ms")

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
    exact = _exact_ms(duration)
    if exact is None:
        kinds = "a duration" if isinstance(duration, str) else "seconds, a timedelta, or text"
        raise InvalidRequest(
            f"{field} must be {kinds} such as {_EXAMPLES}, got {duration!r:.80}", field=field
        )
    if not 0 <= exact <= _MILLISECONDS_MAX:
        raise InvalidRequest(
            f"{field} must be from 0 seconds to a hundred years, got {duration!r:.80}", field=field
        )
    return math.ceil(exact)


def seconds_of(duration: Duration, field: str) -> float:
    """Return a duration in seconds; a number stays as it is.

    Raises:
        InvalidRequest: the value is not a duration, is negative, or is over a hundred years.
    """
    span_ms = milliseconds_of(duration, field)
    return duration if isinstance(duration, int | float) else span_ms / 1000


def _exact_ms(duration: object) -> float | Decimal | None:
    """Return the milliseconds of a duration; None if the value is not one."""
    if isinstance(duration, timedelta):
        return duration.total_seconds() * 1000
    if isinstance(duration, int | float) and not isinstance(duration, bool):
        return duration * 1000
    read = _TEXT.fullmatch(duration) if isinstance(duration, str) and duration else None
    if read is None:
        return None
    return sum(
        (
            Decimal(number) * unit_ms
            for number, unit_ms in zip(read.groups(), _UNITS_MS.values(), strict=True)
            if number is not None
        ),
        Decimal(),
    )


def duration_text(milliseconds: int) -> str:
    """Return a duration as text that `milliseconds_of` reads: ``1h30m``, ``2d``, ``0s``."""
    left, parts = milliseconds, ""
    for unit in _SHOWN_UNITS:
        count, left = divmod(left, _UNITS_MS[unit])
        if count:
            parts += f"{count}{unit}"
    return parts or "0s"
