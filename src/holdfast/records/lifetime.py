"""How long the items and the blobs of a run are kept: ttl and retention class."""

from __future__ import annotations

__all__ = ["longer_retention_class", "retention_class", "retention_seconds", "ttl_of"]

_DAY_SECONDS = 24 * 3600
# DynamoDB deletes items up to two days after their ttl, and never before.
_TTL_DELAY_SECONDS = 2 * _DAY_SECONDS
# A bucket has one lifecycle rule, by prefix, for each of these.
_RETENTION_DAYS = (10, 40, 100, 400, 4_000, 40_000, 400_000)


def retention_seconds(retention_ms: int) -> int:
    """Return how long the items of a run are kept after its expiry."""
    return max(-(-retention_ms // 1000), _TTL_DELAY_SECONDS)


def ttl_of(expires_ms: int, retention_seconds: int) -> int:
    """Return the ttl of the items of a run."""
    return -(-expires_ms // 1000) + retention_seconds


def retention_class(seconds: int) -> str:
    """Return the retention class of a blob that must be kept this long from now.

    Raises:
        ValueError: no run can last that long.
    """
    for days in _RETENTION_DAYS:
        if seconds <= (days - 1) * _DAY_SECONDS:
            return f"keep-{days}d"
    raise ValueError(f"{seconds} seconds are more than any retention class has")


def longer_retention_class(one: str, other: str) -> str:
    """Return the longer of two retention classes."""
    return max(one, other, key=_days)


def _days(retention_class: str) -> int:
    return int(retention_class.removeprefix("keep-").removesuffix("d"))
