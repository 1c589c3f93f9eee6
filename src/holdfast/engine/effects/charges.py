"""What calls cost: what is set aside for one before it is made, and what counts afterwards."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from holdfast.model.quota import ONE_REQUEST, Cost
from holdfast.model.spending import NO_SPENDING, Spending

__all__ = ["FREE", "CallPrice", "ChargedResult"]


class ChargedResult(msgspec.Struct):
    """What a call returned, and what it cost."""

    result: Any
    spent: Spending = NO_SPENDING
    saved: Spending = NO_SPENDING
    """What it would have cost, had there not been an answer already."""
    source: str = ""


class CallPrice(Protocol):
    """What calls of a kind cost."""

    max_spending: Spending
    """More than a call can cost."""
    unknown_reason: str
    """Why nobody knows that, where nobody does."""

    @property
    def quota_cost(self) -> Cost:
        """What a call takes of a quota."""
        ...

    def charged(self, value: Any) -> ChargedResult:
        """Return what a call cost that returned this."""
        ...

    def is_unpaid(self, error: Exception) -> bool:
        """Return whether a call that raised this is sure to have cost nothing."""
        ...


class _FreePrice:
    """The price of calls of which nobody said that they cost anything."""

    max_spending = NO_SPENDING
    unknown_reason = ""
    quota_cost = ONE_REQUEST

    def charged(self, value: Any) -> ChargedResult:
        return ChargedResult(value)

    def is_unpaid(self, error: Exception) -> bool:
        return True


FREE: CallPrice = _FreePrice()
