"""What a model's call took, and what that costs.

Money is whole nanodollars: a token of a cheap model costs 35 of them, and sums of floats drift.
Prices are dated data. A model without a list price here has none: a wrong one would let a budget be
missed, and whoever knows better gives an adapter its ``price=``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from decimal import ROUND_CEILING, Decimal

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.model.spending import NANODOLLARS_PER_DOLLAR

__all__ = ["MODEL_PRICES", "ModelPrice", "ModelPrices", "Usage", "price_of"]

_MILLION = 1_000_000

# What may follow a model's name in its id: a date or "latest", a version, the size of its context.
_VERSION = re.compile(r"(-(\d{8}|\d{4}-\d\d-\d\d|latest))?(-v\d+)?(:\d+)?(:\w+)?", re.ASCII)
# Where Bedrock may send a call; only "global" may have a price of its own.
_GEOGRAPHY = re.compile(r"(apac|au|ca|eu|jp|sa|us|us-gov|global)\.")


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
    long_above: int | None = None
    """Above how many input tokens a call, as a whole, has the price ``long``."""
    long: ModelPrice | None = None

    def __post_init__(self) -> None:
        for field in ("input", "output", "cached_input", "long_above"):
            value = getattr(self, field)
            if value is None and field in ("cached_input", "long_above"):
                continue
            if type(value) is not int or value < 0:
                raise InvalidRequest(
                    f"a price is whole nanodollars a token, and {field}={value!r:.80} is not",
                    field=field,
                )
        if (self.long is None) != (self.long_above is None):
            raise InvalidRequest("long and long_above go together", field="long")

    @classmethod
    def per_million(
        cls,
        input: float | str | Decimal,
        output: float | str | Decimal,
        *,
        cached_input: float | str | Decimal | None = None,
        long_above: int | None = None,
        long: ModelPrice | None = None,
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
            long_above,
            long,
        )

    def cost(self, usage: Usage) -> int:
        """Return what that usage of one call costs, in nanodollars."""
        price = self._tier_for(usage.input_tokens)
        cached = min(usage.cached_input_tokens, usage.input_tokens)
        cached_price = price.input if price.cached_input is None else price.cached_input
        return (
            (usage.input_tokens - cached) * price.input
            + cached * cached_price
            + usage.output_tokens * price.output
        )

    def max_cost(self, tokens: tuple[int, int]) -> int:
        """Return what a call costs at most that takes no more tokens than these, in and out."""
        price = self._tier_for(tokens[0])
        return tokens[0] * max(price.input, price.cached_input or 0) + tokens[1] * price.output

    def _tier_for(self, input_tokens: int) -> ModelPrice:
        if self.long is None or self.long_above is None or input_tokens <= self.long_above:
            return self
        return self.long


def _nanodollars(field: str, dollars: float | str | Decimal) -> int:
    try:
        # By its text, since 0.1 as a float is a little more than a tenth.
        exact = Decimal(str(dollars)) * NANODOLLARS_PER_DOLLAR / _MILLION
        if exact >= 0:
            return int(exact.to_integral_value(ROUND_CEILING))
    except ArithmeticError:
        pass
    raise InvalidRequest(f"{field}={dollars!r:.80} is no sum of dollars", field=field)


class ModelPrices(msgspec.Struct, frozen=True, kw_only=True):
    """The list prices that hold from a day on, until a later list names the model again."""

    valid_from: date
    source: str
    prices: Mapping[str, ModelPrice]
    """By the model's id without its version."""


def price_of(model_id: str, on: date | None = None) -> ModelPrice | None:
    """Return the list price of a model on that day, or the newest; None where none is known.

    An id goes by what it begins with, and may be that of a profile of Bedrock or its ARN.
    """
    name = model_id.rpartition("/")[2] if model_id.startswith("arn:") else model_id
    names = [name, _GEOGRAPHY.sub("", name, count=1)]
    for listed in reversed(MODEL_PRICES):
        if on is not None and on < listed.valid_from:
            continue
        for each in names:
            for known in sorted(listed.prices, key=len, reverse=True):
                if each.startswith(known) and _VERSION.fullmatch(each, len(known)):
                    return listed.prices[known]
    return None


_per_million = ModelPrice.per_million

# On-demand calls at the standard tier, in dollars for a million tokens, in us-east-1. Two are
# derived, not read one by one: Claude on Bedrock costs, from 4.5 on, a tenth more within a
# geography than under a global profile, and what Nova 1 reads from its cache a quarter. Left out
# are models that ask more for what they put into their cache: usage does not tell that apart.
MODEL_PRICES: tuple[ModelPrices, ...] = (
    ModelPrices(
        valid_from=date(2025, 11, 24),
        source="Anthropic's price page; AWS' and OpenAI's as others quote them; copies, 2026-11-16",
        prices={
            "anthropic.claude-3-haiku": _per_million(0.25, 1.25),
            "anthropic.claude-3-5-haiku": _per_million(0.8, 4, cached_input=0.08),
            "anthropic.claude-3-7-sonnet": _per_million(3, 15, cached_input=0.3),
            "anthropic.claude-sonnet-4": _per_million(3, 15, cached_input=0.3),
            "anthropic.claude-opus-4-1": _per_million(15, 75, cached_input=1.5),
            "anthropic.claude-haiku-4-5": _per_million(1.1, 5.5, cached_input=0.11),
            "global.anthropic.claude-haiku-4-5": _per_million(1, 5, cached_input=0.1),
            "anthropic.claude-sonnet-4-5": _per_million(
                3.3,
                16.5,
                cached_input=0.33,
                long_above=200_000,
                long=_per_million(6.6, 24.75, cached_input=0.66),
            ),
            "global.anthropic.claude-sonnet-4-5": _per_million(
                3,
                15,
                cached_input=0.3,
                long_above=200_000,
                long=_per_million(6, 22.5, cached_input=0.6),
            ),
            "anthropic.claude-opus-4-5": _per_million(5.5, 27.5, cached_input=0.55),
            "global.anthropic.claude-opus-4-5": _per_million(5, 25, cached_input=0.5),
            "amazon.nova-micro": _per_million(0.035, 0.14, cached_input=0.00875),
            "amazon.nova-lite": _per_million(0.06, 0.24, cached_input=0.015),
            "amazon.nova-pro": _per_million(0.8, 3.2, cached_input=0.2),
            "amazon.nova-premier": _per_million(2.5, 12.5, cached_input=0.625),
            "gpt-4o-2024-05-13": _per_million(5, 15),
            "gpt-4o": _per_million(2.5, 10, cached_input=1.25),
            "gpt-4o-mini": _per_million(0.15, 0.6, cached_input=0.075),
            "gpt-4.1": _per_million(2, 8, cached_input=0.5),
            "gpt-4.1-mini": _per_million(0.4, 1.6, cached_input=0.1),
            "gpt-4.1-nano": _per_million(0.1, 0.4, cached_input=0.025),
            "o3": _per_million(2, 8, cached_input=0.5),
            "o4-mini": _per_million(1.1, 4.4, cached_input=0.275),
            "gpt-5": _per_million(1.25, 10, cached_input=0.125),
            "gpt-5-mini": _per_million(0.25, 2, cached_input=0.025),
            "gpt-5-nano": _per_million(0.05, 0.4, cached_input=0.005),
            "gpt-5.1": _per_million(1.25, 10, cached_input=0.125),
        },
    ),
    ModelPrices(
        valid_from=date(2026, 4, 23),
        source="the same; what came out between the two days",
        prices={
            "anthropic.claude-sonnet-4-6": _per_million(3.3, 16.5, cached_input=0.33),
            "global.anthropic.claude-sonnet-4-6": _per_million(3, 15, cached_input=0.3),
            "anthropic.claude-opus-4-6": _per_million(5.5, 27.5, cached_input=0.55),
            "global.anthropic.claude-opus-4-6": _per_million(5, 25, cached_input=0.5),
            "amazon.nova-2-lite": _per_million(0.3, 2.5, cached_input=0.075),
            "gpt-5.2": _per_million(1.75, 14, cached_input=0.175),
            "gpt-5.4": _per_million(
                2.5,
                15,
                cached_input=0.25,
                long_above=272_000,
                long=_per_million(5, 22.5, cached_input=0.5),
            ),
            "gpt-5.4-mini": _per_million(0.75, 4.5, cached_input=0.075),
            "gpt-5.4-nano": _per_million(0.2, 1.25, cached_input=0.02),
            "gpt-5.5": _per_million(
                5,
                30,
                cached_input=0.5,
                long_above=272_000,
                long=_per_million(10, 45, cached_input=1),
            ),
        },
    ),
)
"""The oldest list first."""
