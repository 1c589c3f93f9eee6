"""Seeds that every commit draws for itself, so that each change explores what none did before."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["FRESH_SEEDS", "Fresh", "fresh"]

FRESH_SEEDS = 300
FRESH_FROM = 1_000_000
"""Beyond all seeds that are fixed."""
_ROOT = Path(__file__).parents[2]
_WITHOUT_COMMIT = 0
_DIGITS = 7


class Fresh(NamedTuple):
    """The first of the fresh seeds, and what it was drawn from."""

    first: int
    source: str

    def __str__(self) -> str:
        last = self.first + FRESH_SEEDS - 1
        return f"fresh seeds of the simulator: {self.first}-{last} ({self.source})"


@cache
def fresh(root: Path = _ROOT) -> Fresh:
    """Return the seeds of this commit: the same in every process that collects tests."""
    try:
        asked = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        why = (getattr(error, "stderr", None) or str(error)).strip()
        return Fresh(_first(_WITHOUT_COMMIT), f"the same for all: there is no commit: {why}")
    commit = asked.stdout.strip()
    return Fresh(_first(int(commit[:_DIGITS], 16)), f"of commit {commit[:12]}")


def _first(number: int) -> int:
    # Round numbers, so that ranges of two commits are the same or do not meet.
    return FRESH_FROM + number * FRESH_SEEDS
