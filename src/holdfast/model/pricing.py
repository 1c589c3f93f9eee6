"""What a model's call took, and what that costs.

Money is whole nanodollars: a token of a cheap model costs 35 of them, and sums of floats drift.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal

import msgspec

from holdfast.errors import InvalidRequest

__all__ = ["ModelPrice", "Usage"]

_NANODOLLARS = 1_000_000_000
_MILLION = 1_000_000


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The tokens that a call took, as the service counted them."""

    input_tokens: int = 0
    """All that was read, what came out of the service's cache included."""
    output_tokens: int = 0
    """All that was made, what the model thought to itself included."""
    cached_input_tokens: int = 0
    """How many of the input tokens came out of the service's cache."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_input_tokens + other.cached_input_tokens,
        )


class ModelPrice(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a token costs, in nanodollars."""

    input: int
    output: int
    cached_input: int | None = None
    """For input out of the service's cache; None where it costs what other input costs."""

    def __post_init__(self) -> None:
        for field in ("input", "output", "cached_input"):
            value = getattr(self, field)
            if value is None and field == "cached_input":
                continue
            if type(value) is not int or value < 0:
                raise InvalidRequest(
                    f"a price is whole nanodollars a token, and {field}={value!r:.80} is not",
                    field=field,
                )

    @classmethod
    def a_million(
        cls,
        input: float | str | Decimal,
        output: float | str | Decimal,
        *,
        cached_input: float | str | Decimal | None = None,
    ) -> ModelPrice:
        """Return the price that is listed as so many dollars for a million tokens.

        What is no whole nanodollar a token is rounded up: a budget is rather kept than missed.

        Raises:
            InvalidRequest: one of them is not a sum of money.
        """
        return cls(
            _nanodollars("input", input),
            _nanodollars("output", output),
            None if cached_input is None else _nanodollars("cached_input", cached_input),
        )

    def cost(self, usage: Usage) -> int:
        """Return what that usage costs, in nanodollars."""
        cached = min(usage.cached_input_tokens, usage.input_tokens)
        cached_price = self.input if self.cached_input is None else self.cached_input
        return (
            (usage.input_tokens - cached) * self.input
            + cached * cached_price
            + usage.output_tokens * self.output
        )

    def cost_at_most(self, tokens: tuple[int, int]) -> int:
        """Return what a call costs at most that takes no more tokens than these, in and out."""
        return tokens[0] * max(self.input, self.cached_input or 0) + tokens[1] * self.output


def _nanodollars(field: str, dollars: float | str | Decimal) -> int:
    try:
        # By its text, since 0.1 as a float is a little more than a tenth.
        exact = Decimal(str(dollars)) * _NANODOLLARS / _MILLION
        if exact >= 0:
            return int(exact.to_integral_value(ROUND_CEILING))
    except ArithmeticError:
        pass
    raise InvalidRequest(f"{field}={dollars!r:.80} is no sum of dollars", field=field)
