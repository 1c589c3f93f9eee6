"""The price of a call: what is reserved before it is made, and what it cost afterwards."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from holdfast.model.quota import ONE_REQUEST, Cost
from holdfast.model.spending import NO_SPENDING, Spending

__all__ = ["FREE", "CallPrice", "ChargedResult"]


class ChargedResult(msgspec.Struct):
    """What a call returned, with its cost."""

    result: Any
    spent: Spending = NO_SPENDING
    saved: Spending = NO_SPENDING
    """What it would have cost without the cached answer."""
    source: str = ""
    """Where a cached answer came from; empty if the call was made."""


class CallPrice(Protocol):
    """The price of a kind of calls."""

    max_spending: Spending
    """An upper bound of the cost of one call."""
    unknown_reason: str
    """Why the upper bound is unknown; empty if it is known."""

    @property
    def quota_cost(self) -> Cost:
        """What one call takes from a quota."""
        ...

    def charged(self, value: Any) -> ChargedResult:
        """Return the cost of a call that returned this value."""
        ...

    def is_unpaid(self, error: Exception) -> bool:
        """Return whether a call that raised this error certainly cost nothing."""
        ...


class _FreePrice:
    """The price of calls without a declared price."""

    max_spending = NO_SPENDING
    unknown_reason = ""
    quota_cost = ONE_REQUEST

    def charged(self, value: Any) -> ChargedResult:
        return ChargedResult(value)

    def is_unpaid(self, error: Exception) -> bool:
        return True


FREE: CallPrice = _FreePrice()
