"""The price of a call: what is reserved before it is made, and what it cost afterwards."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from holdfast.model.quota import ONE_REQUEST, Cost
from holdfast.model.spending import NO_SPENDING, Spending

__all__ = ["FREE", "CallPrice", "ChargedResult", "SmallerBounds"]


class ChargedResult(msgspec.Struct):
    """What a call returned, with its cost."""

    result: Any
    spent: Spending = NO_SPENDING
    saved: Spending = NO_SPENDING
    """What it would have cost without the cached answer."""
    source: str = ""
    """Where a cached answer came from; empty if the call was made."""


class SmallerBounds(Protocol):
    """Bounds of a call's cost that are smaller than `CallPrice.max_spending`."""

    is_estimated: bool
    """Whether the last bound that it gave is an estimate, which the call may exceed."""

    @property
    def min_spending(self) -> Spending:
        """What no bound is smaller than."""
        ...

    async def count(self) -> Spending | None:
        """Ask the service for a bound that it guarantees; return None if there is none."""
        ...

    def estimate(self) -> Spending | None:
        """Return an estimate, which the call may exceed; None if there is none."""
        ...

    def describe(self, *, estimates: bool) -> str:
        """Return what the smallest bound so far consists of, and what makes it fit."""
        ...


class CallPrice(Protocol):
    """The price of a kind of calls."""

    max_spending: Spending
    """An upper bound of the cost of one call."""
    unknown_reason: str
    """Why the upper bound is unknown; empty if it is known."""

    @property
    def bounds(self) -> SmallerBounds | None:
        """Bounds to try if the upper bound does not fit into a budget; None if there are none."""
        ...

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
    bounds = None
    quota_cost = ONE_REQUEST

    def charged(self, value: Any) -> ChargedResult:
        return ChargedResult(value)

    def is_unpaid(self, error: Exception) -> bool:
        return True


FREE: CallPrice = _FreePrice()
