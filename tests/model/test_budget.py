"""What a budget may be, and what it is in whole units."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from holdfast import Budget
from holdfast.errors import InvalidRequest


@pytest.mark.parametrize(
    ("usd", "nanodollars"),
    [
        (Decimal("1.50"), 1_500_000_000),
        (Decimal("0.1"), 100_000_000),
        (Decimal("0.000000001"), 1),
        (Decimal("0.0000000019"), 1),
        (Decimal("1E-400000"), 0),
        (Decimal("123456789.123456789123456789123456789"), 123_456_789_123_456_789),
        (Decimal(10**9), 10**18),
        (Decimal(0), 0),
        (Decimal("-0"), 0),
        (1, 1_000_000_000),
        (0.1, 100_000_000),
    ],
)
def test_dollars_are_converted_to_whole_nanodollars(usd: float | Decimal, nanodollars: int) -> None:
    assert Budget(usd=usd).limits.nanodollars == nanodollars


@pytest.mark.parametrize(
    "usd",
    [
        float("nan"),
        float("inf"),
        -0.01,
        -1,
        True,
        "1.50",
        1j,
        10**9 + 1,
        Decimal("NaN"),
        Decimal("sNaN"),
        Decimal("Infinity"),
        Decimal("-0.01"),
        Decimal(10**9) + 1,
    ],
)
def test_what_is_no_amount_of_dollars_is_refused(usd: Any) -> None:
    with pytest.raises(InvalidRequest, match="usd must be an int, float or Decimal") as refused:
        Budget(usd=usd)
    assert refused.value.field == "usd"
