"""When a message that could not be sent is tried again, and when it is given up."""

from __future__ import annotations

__all__ = ["gives_up", "next_retry_ms"]

_HOUR_MS = 3600 * 1000
_FIRST_RETRY_MS = 5 * 1000
_RETRY_MS_MAX = _HOUR_MS
_GIVE_UP_MS = 3 * 24 * _HOUR_MS


def next_retry_ms(attempts: int, now_ms: int, random: float) -> int:
    """Return when to try again after that many failed attempts: exponential, with jitter."""
    span_ms = min(_FIRST_RETRY_MS << min(attempts - 1, 20), _RETRY_MS_MAX)
    return now_ms + round(span_ms * (1 - random / 2))


def gives_up(failing_ms: int, now_ms: int) -> bool:
    """Return whether a message that failed since a time is not tried again."""
    return now_ms - failing_ms >= _GIVE_UP_MS
