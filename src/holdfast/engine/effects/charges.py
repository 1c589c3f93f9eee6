"""What calls cost: what is set aside for one before it is made, and what counts afterwards."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from holdfast.model.quota import ONE_REQUEST, Cost
from holdfast.model.spending import NOTHING, Spending

__all__ = ["FREE", "Charged", "Price"]


class Charged(msgspec.Struct):
    """What a call returned, and what it cost."""

    result: Any
    spent: Spending = NOTHING
    saved: Spending = NOTHING
    """What it would have cost, had there not been an answer already."""
    by: str = ""


class Price(Protocol):
    """What calls of a kind cost."""

    most: Spending
    """More than a call can cost."""
    unknown: str
    """Why nobody knows that, where nobody does."""

    @property
    def cost(self) -> Cost:
        """What a call takes of a quota."""
        ...

    def charged(self, value: Any) -> Charged:
        """Return what a call cost that returned this."""
        ...

    def unpaid(self, error: Exception) -> bool:
        """Return whether a call that raised this is sure to have cost nothing."""
        ...


class _Free:
    """The price of calls of which nobody said that they cost anything."""

    most = NOTHING
    unknown = ""
    cost = ONE_REQUEST

    def charged(self, value: Any) -> Charged:
        return Charged(value)

    def unpaid(self, error: Exception) -> bool:
        return True


FREE: Price = _Free()
