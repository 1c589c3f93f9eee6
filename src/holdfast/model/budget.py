"""Budgets: what a run may spend, and whether a call still fits."""

from __future__ import annotations

import math

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.model.durations import Duration, milliseconds_of
from holdfast.model.spending import NANODOLLARS_PER_DOLLAR, Spending

__all__ = ["Budget", "BudgetLimits"]

_TOKENS_MAX = 10**15
_DOLLARS_MAX = 10**9


class BudgetLimits(msgspec.Struct, frozen=True):
    """The limits of a budget, as the run's row stores them. None is no limit."""

    tokens: int | None = None
    nanodollars: int | None = None
    wall_ms: int | None = None

    def shortfall(self, spent: Spending, wall_ms: int, need: Spending) -> str | None:
        """Return what is needed and what is left, for display; None if the need fits."""
        if self.wall_ms is not None and wall_ms >= self.wall_ms:
            return f"more than {self.wall_ms / 1000:g} seconds inside nodes"
        after = spent + need
        if self.tokens is not None and need.tokens and after.tokens > self.tokens:
            return f"{need.tokens:,} tokens, and {max(self.tokens - spent.tokens, 0):,} are left"
        money = self.nanodollars
        if money is not None and need.nanodollars and after.nanodollars > money:
            left = Spending(nanodollars=max(money - spent.nanodollars, 0))
            return f"${need.usd:.6f}, and ${left.usd:.6f} are left"
        return None

    def is_within(self, other: BudgetLimits) -> bool:
        """Return whether it allows at most the tokens and dollars of another budget."""
        return _is_within(self.tokens, other.tokens) and _is_within(
            self.nanodollars, other.nanodollars
        )


def _is_within(limit: int | None, other: int | None) -> bool:
    return other is None or (limit is not None and limit <= other)


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """The total that a run may spend: tokens, dollars, and time inside its nodes.

    The run pauses before a call that might cost more than is left.
    """

    tokens: int | None = None
    usd: float | None = None
    wall: Duration | None = None

    def __post_init__(self) -> None:
        if self.tokens is None and self.usd is None and self.wall is None:
            raise InvalidRequest(
                "a budget needs at least one of tokens, usd and wall", field="budget"
            )
        if self.tokens is not None and not (
            type(self.tokens) is int and 0 <= self.tokens <= _TOKENS_MAX
        ):
            raise InvalidRequest(
                f"tokens must be an integer from 0 to {_TOKENS_MAX:,}, got {self.tokens!r:.80}",
                field="tokens",
            )
        if self.usd is not None and not (
            type(self.usd) in (int, float)
            and math.isfinite(self.usd)
            and 0 <= self.usd <= _DOLLARS_MAX
        ):
            raise InvalidRequest(
                f"usd must be a number from 0 to {_DOLLARS_MAX:,}, got {self.usd!r:.80}",
                field="usd",
            )
        if self.wall is not None:
            milliseconds_of(self.wall, "wall")

    @property
    def limits(self) -> BudgetLimits:
        """The budget in whole units. Dollars are rounded down to whole nanodollars."""
        return BudgetLimits(
            self.tokens,
            None if self.usd is None else math.floor(round(self.usd * NANODOLLARS_PER_DOLLAR, 3)),
            None if self.wall is None else milliseconds_of(self.wall, "wall"),
        )
