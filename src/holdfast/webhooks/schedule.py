"""When a run that webhooks follow is looked at again: pure."""

from __future__ import annotations

__all__ = ["DAMAGED_MS", "LEASE_MS", "ORPHAN_MS", "next_look_ms"]

_SECOND_MS = 1_000
_MINUTE_MS = 60 * _SECOND_MS
_HOUR_MS = 60 * _MINUTE_MS

LEASE_MS = 30 * _SECOND_MS
"""For how long one process may deliver a message: longer than an attempt may take."""
ORPHAN_MS = 5 * _MINUTE_MS
"""How old an item without a run must be before it is deleted: its start may still be under way."""
DAMAGED_MS = _HOUR_MS
"""How long a run is left alone whose row cannot be read."""
_FIRST_LOOK_MS = 15 * _SECOND_MS
_LOOK_MS_MAX = _HOUR_MS


def next_look_ms(looks: int, now_ms: int, random: float) -> int:
    """Return when to look at a run of which nothing was new for that many looks.

    The interval doubles from 15 s to an hour. The process that pauses or ends the run looks at
    once, so these looks only find what was missed because a process died.
    """
    span_ms = min(_FIRST_LOOK_MS << min(looks - 1, 20), _LOOK_MS_MAX)
    return now_ms + round(span_ms * (1 - random / 4))
