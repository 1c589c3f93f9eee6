"""Spending of calls: tokens, and money in whole nanodollars.

A token of a cheap model costs 80 nanodollars, and sums of floats drift.
"""

from __future__ import annotations

from decimal import Decimal
from typing import cast

from holdfast.model.json_form import JsonForm

__all__ = ["NANODOLLARS_PER_DOLLAR", "NO_SPENDING", "Spending", "is_amount"]

NANODOLLARS_PER_DOLLAR = 1_000_000_000
"""The number of nanodollars in a dollar."""


class Spending(JsonForm, frozen=True, array_like=True):
    """An amount of tokens and money."""

    tokens: int = 0
    nanodollars: int = 0
    """The exact amount of money; see `usd`."""

    def __add__(self, other: Spending) -> Spending:
        return Spending(self.tokens + other.tokens, self.nanodollars + other.nanodollars)

    def __sub__(self, other: Spending) -> Spending:
        return Spending(self.tokens - other.tokens, self.nanodollars - other.nanodollars)

    def at_most(self, other: Spending) -> Spending:
        """Return the smaller amount of tokens and the smaller amount of money."""
        return Spending(min(self.tokens, other.tokens), min(self.nanodollars, other.nanodollars))

    def at_least(self, other: Spending) -> Spending:
        """Return the larger amount of tokens and the larger amount of money."""
        return Spending(max(self.tokens, other.tokens), max(self.nanodollars, other.nanodollars))

    @property
    def usd(self) -> float:
        """The money in dollars, for display."""
        return self.nanodollars / NANODOLLARS_PER_DOLLAR


NO_SPENDING = Spending()


def is_amount(usd: object, max_usd: int) -> bool:
    """Return whether a value is an amount of dollars from 0 to a maximum."""
    # Not isinstance: a bool is an int. A comparison with a NaN is False, or raises for a Decimal.
    if type(usd) is Decimal:
        return usd.is_finite() and 0 <= usd <= max_usd
    return type(usd) in (int, float) and 0 <= cast(float, usd) <= max_usd
