"""Counts in each process what calls would have cost that were answered from records."""

from __future__ import annotations

import msgspec

from holdfast.model.spending import NO_SPENDING, Spending

__all__ = ["Saved", "SavingsCounter"]


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """What calls would have cost that were answered without being made."""

    calls: int = 0
    """How many calls were answered from records, or by the answer of another run."""
    spending: Spending = NO_SPENDING

    @property
    def tokens(self) -> int:
        """How many tokens they would have taken."""
        return self.spending.tokens

    @property
    def usd(self) -> float:
        """How many dollars they would have cost."""
        return self.spending.usd


class SavingsCounter:
    """Counts what this process saved."""

    def __init__(self) -> None:
        self.total = Saved()

    def add(self, spending: Spending) -> None:
        """Count a call that was answered without being made."""
        self.total = Saved(calls=self.total.calls + 1, spending=self.total.spending + spending)
