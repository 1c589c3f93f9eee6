"""The budget of a run as its row stores it.

Two stored names are older than the words in the code: ``wall_ms`` is the limit on the time inside
nodes, and ``elapsed_ms`` the one on the time since the start of the run.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.budget import BudgetLimits

__all__ = ["budget_from_map", "budget_map"]


class _StoredBudget(msgspec.Struct, frozen=True, omit_defaults=True):
    tokens: int | None = None
    nanodollars: int | None = None
    wall_ms: int | None = None
    estimate: bool = False
    elapsed_ms: int | None = None


def budget_map(limits: BudgetLimits) -> dict[str, Any]:
    """Return a budget as a map, without what it does not limit."""
    stored = _StoredBudget(
        limits.tokens,
        limits.nanodollars,
        limits.node_time_ms,
        limits.estimate,
        limits.wall_ms,
    )
    return msgspec.to_builtins(stored)


def budget_from_map(stored: Any) -> BudgetLimits:
    """Return the budget that a map describes.

    Raises:
        msgspec.ValidationError: the map is not a budget.
    """
    read = msgspec.convert(stored, _StoredBudget)
    return BudgetLimits(read.tokens, read.nanodollars, read.wall_ms, read.estimate, read.elapsed_ms)
