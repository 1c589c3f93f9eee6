"""Milliseconds as the dates that people read."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["moment"]


def moment(ms: int) -> datetime:
    """Return a time in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC)
