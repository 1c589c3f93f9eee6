"""Points in time as callers write them: a datetime with a time zone, or ISO 8601 text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TypeAlias

from holdfast.errors import InvalidRequest

__all__ = ["MOMENT_MS_MAX", "Moment", "moment_ms", "utc_text"]

Moment: TypeAlias = datetime | str
"""A datetime with a time zone, or ISO 8601 text."""

MOMENT_MS_MAX = 9_999_999_999_999
"""The last point in time that a key can hold: in the year 2286."""


def moment_ms(moment: Moment, field: str) -> int:
    """Return a point in time in milliseconds since 1970.

    Raises:
        InvalidRequest: not a point in time, one without a time zone, or one before 1970 or after
            2286.
    """
    read: object = moment
    if isinstance(moment, str):
        try:
            read = datetime.fromisoformat(moment)
        except ValueError:
            read = None
    if not isinstance(read, datetime) or read.tzinfo is None:
        raise InvalidRequest(
            f"{field} must be a datetime with a time zone or ISO 8601 text such as "
            f"'2026-11-01T09:30:00Z', got {moment!r:.80}",
            field=field,
        )
    try:
        ms = round(read.timestamp() * 1000)
    except OverflowError:  # its time zone carries it out of what Python can count
        ms = -1
    if not 0 <= ms <= MOMENT_MS_MAX:
        raise InvalidRequest(f"{field} must be from 1970 to 2286, got {moment}", field=field)
    return ms


def utc_text(moment: datetime) -> str:
    """Return a time as ISO 8601 text in UTC, to the millisecond."""
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
