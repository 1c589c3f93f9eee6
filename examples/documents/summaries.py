"""How summaries are reduced: consecutive ones to one, and those again, until few are left.

Each prompt has at most `GROUP` summaries of a bounded length. A document of 3,000 segments takes
150 questions, then 8, then one about the whole document.
"""

from __future__ import annotations

__all__ = ["GROUP", "levels_of"]

GROUP = 20
"""How many summaries a model sums up at a time."""


def levels_of(segments: int) -> list[int]:
    """Return how many questions each level asks, before the last one about the whole document."""
    levels: list[int] = []
    while segments > GROUP:
        segments = -(-segments // GROUP)
        levels.append(segments)
    return levels
