"""Converts milliseconds to dates."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["utc_datetime"]


def utc_datetime(ms: int) -> datetime:
    """Return a time in milliseconds as a date in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC)
