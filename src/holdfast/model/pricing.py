"""The token usage of calls to models, and what it costs.

Money is counted in whole nanodollars: a token of a cheap model costs 35 of them, and sums of floats
drift. List prices are valid from a date. A model that is not listed has no price, because a wrong
price would let a run exceed its budget. Pass ``price=`` to the adapter of such a model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.model.spending import NANODOLLARS_PER_DOLLAR, is_amount

__all__ = ["MODEL_PRICES", "ModelPrice", "ModelPrices", "Usage", "foundation_model", "price_of"]

_MILLION = 1_000_000
_USD_MAX = 1_000_000

# The rest of an id after the model's name: a date or "latest", a version, a context size.
_VERSION = re.compile(r"(-(\d{8}|\d{4}-\d\d-\d\d|latest))?(-v\d+)?(:\d+)?(:\w+)?", re.ASCII)
# The geography of a Bedrock profile. Only "global" may have its own price.
_GEOGRAPHY = re.compile(r"(apac|au|ca|eu|jp|sa|us|us-gov|global)\.")


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The tokens of a call, as counted by the service."""

    input_tokens: int = 0
    """All input tokens, including cached ones."""
    output_tokens: int = 0
    """All output tokens, including reasoning."""
    cached_input_tokens: int = 0
    """How many of the input tokens came from the cache of the service."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_input_tokens + other.cached_input_tokens,
        )


class ModelPrice(msgspec.Struct, frozen=True, kw_only=True):
    """The price of a model's tokens: US dollars for a million tokens, as price lists state it.

    Raises:
        InvalidRequest: a price is not an amount of dollars, ``long_above`` is not a number of
            tokens, or only one of ``long`` and ``long_above`` is set.
    """

    input_usd: float | Decimal
    output_usd: float | Decimal
    cached_input_usd: float | Decimal | None = None
    """The price of cached input; None if it is that of other input."""
    long_above: int | None = None
    """A call with more input tokens than this has the price ``long`` as a whole."""
    long: ModelPrice | None = None

    def __post_init__(self) -> None:
        for field in ("input_usd", "output_usd", "cached_input_usd"):
            value = getattr(self, field)
            if not is_amount(value, _USD_MAX) and (value, field) != (None, "cached_input_usd"):
                raise InvalidRequest(
                    f"{field} must be an int, float or Decimal from 0 to {_USD_MAX:,}: dollars for "
                    f"a million tokens, got {value!r:.80}",
                    field=field,
                )
        above = self.long_above
        if above is not None and (type(above) is not int or above < 0):
            raise InvalidRequest(
                f"long_above must be an integer of tokens, from 0, got {above!r:.80}",
                field="long_above",
            )
        if not isinstance(self.long, ModelPrice | None):
            raise InvalidRequest(f"long must be a ModelPrice, got {self.long!r:.80}", field="long")
        if (self.long is None) != (above is None):
            raise InvalidRequest("set both of long and long_above, or neither", field="long")

    def cost_nanodollars(self, usage: Usage) -> int:
        """Return the exact cost of one call."""
        fresh, cached, output = _nanodollars_per_token(self._tier_for(usage.input_tokens))
        from_cache = min(usage.cached_input_tokens, usage.input_tokens)
        return (
            (usage.input_tokens - from_cache) * fresh
            + from_cache * cached
            + usage.output_tokens * output
        )

    def max_cost_nanodollars(self, tokens: tuple[int, int]) -> int:
        """Return the highest cost of a call with at most these input and output tokens."""
        fresh, cached, output = _nanodollars_per_token(self._tier_for(tokens[0]))
        return tokens[0] * max(fresh, cached) + tokens[1] * output

    def _tier_for(self, input_tokens: int) -> ModelPrice:
        if self.long is None or self.long_above is None or input_tokens <= self.long_above:
            return self
        return self.long


@lru_cache
def _nanodollars_per_token(price: ModelPrice) -> tuple[int, int, int]:
    """Return the prices of a token of input, of cached input, and of output.

    Fractions of a nanodollar are rounded up, so that a run does not exceed its budget.
    """
    cached = price.input_usd if price.cached_input_usd is None else price.cached_input_usd
    fresh, cached, output = (
        # Through its text: the float 0.1 is slightly more than a tenth.
        (Decimal(str(usd)) * NANODOLLARS_PER_DOLLAR / _MILLION).to_integral_value(ROUND_CEILING)
        for usd in (price.input_usd, cached, price.output_usd)
    )
    return int(fresh), int(cached), int(output)


class ModelPrices(msgspec.Struct, frozen=True, kw_only=True):
    """List prices from a day on, until a later list has the model again."""

    valid_from: date
    source: str
    prices: Mapping[str, ModelPrice]
    """The prices by model id without its version."""


def price_of(model_id: str, on: date | None = None) -> ModelPrice | None:
    """Return the list price of a model on a day, by default the newest; None if it is not listed.

    The id can have a version, and can be a profile of Bedrock or its ARN.
    """
    names = [_without_arn(model_id), foundation_model(model_id)]
    for listed in reversed(MODEL_PRICES):
        if on is not None and on < listed.valid_from:
            continue
        for each in names:
            for known in sorted(listed.prices, key=len, reverse=True):
                if each.startswith(known) and _VERSION.fullmatch(each, len(known)):
                    return listed.prices[known]
    return None


def foundation_model(model_id: str) -> str:
    """Return the model behind an id of Bedrock, which may be a profile of a geography or an ARN."""
    return _GEOGRAPHY.sub("", _without_arn(model_id), count=1)


def _without_arn(model_id: str) -> str:
    return model_id.rpartition("/")[2] if model_id.startswith("arn:") else model_id


def _per_million(input: float, output: float, **more: Any) -> ModelPrice:
    return ModelPrice(input_usd=input, output_usd=output, **more)


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
            "anthropic.claude-3-5-haiku": _per_million(0.8, 4, cached_input_usd=0.08),
            "anthropic.claude-3-7-sonnet": _per_million(3, 15, cached_input_usd=0.3),
            "anthropic.claude-sonnet-4": _per_million(3, 15, cached_input_usd=0.3),
            "anthropic.claude-opus-4-1": _per_million(15, 75, cached_input_usd=1.5),
            "anthropic.claude-haiku-4-5": _per_million(1.1, 5.5, cached_input_usd=0.11),
            "global.anthropic.claude-haiku-4-5": _per_million(1, 5, cached_input_usd=0.1),
            "anthropic.claude-sonnet-4-5": _per_million(
                3.3,
                16.5,
                cached_input_usd=0.33,
                long_above=200_000,
                long=_per_million(6.6, 24.75, cached_input_usd=0.66),
            ),
            "global.anthropic.claude-sonnet-4-5": _per_million(
                3,
                15,
                cached_input_usd=0.3,
                long_above=200_000,
                long=_per_million(6, 22.5, cached_input_usd=0.6),
            ),
            "anthropic.claude-opus-4-5": _per_million(5.5, 27.5, cached_input_usd=0.55),
            "global.anthropic.claude-opus-4-5": _per_million(5, 25, cached_input_usd=0.5),
            "amazon.nova-micro": _per_million(0.035, 0.14, cached_input_usd=0.00875),
            "amazon.nova-lite": _per_million(0.06, 0.24, cached_input_usd=0.015),
            "amazon.nova-pro": _per_million(0.8, 3.2, cached_input_usd=0.2),
            "amazon.nova-premier": _per_million(2.5, 12.5, cached_input_usd=0.625),
            "gpt-4o-2024-05-13": _per_million(5, 15),
            "gpt-4o": _per_million(2.5, 10, cached_input_usd=1.25),
            "gpt-4o-mini": _per_million(0.15, 0.6, cached_input_usd=0.075),
            "gpt-4.1": _per_million(2, 8, cached_input_usd=0.5),
            "gpt-4.1-mini": _per_million(0.4, 1.6, cached_input_usd=0.1),
            "gpt-4.1-nano": _per_million(0.1, 0.4, cached_input_usd=0.025),
            "o3": _per_million(2, 8, cached_input_usd=0.5),
            "o4-mini": _per_million(1.1, 4.4, cached_input_usd=0.275),
            "gpt-5": _per_million(1.25, 10, cached_input_usd=0.125),
            "gpt-5-mini": _per_million(0.25, 2, cached_input_usd=0.025),
            "gpt-5-nano": _per_million(0.05, 0.4, cached_input_usd=0.005),
            "gpt-5.1": _per_million(1.25, 10, cached_input_usd=0.125),
        },
    ),
    ModelPrices(
        valid_from=date(2026, 4, 23),
        source="the same; what came out between the two days",
        prices={
            "anthropic.claude-sonnet-4-6": _per_million(3.3, 16.5, cached_input_usd=0.33),
            "global.anthropic.claude-sonnet-4-6": _per_million(3, 15, cached_input_usd=0.3),
            "anthropic.claude-opus-4-6": _per_million(5.5, 27.5, cached_input_usd=0.55),
            "global.anthropic.claude-opus-4-6": _per_million(5, 25, cached_input_usd=0.5),
            "amazon.nova-2-lite": _per_million(0.3, 2.5, cached_input_usd=0.075),
            "gpt-5.2": _per_million(1.75, 14, cached_input_usd=0.175),
            "gpt-5.4": _per_million(
                2.5,
                15,
                cached_input_usd=0.25,
                long_above=272_000,
                long=_per_million(5, 22.5, cached_input_usd=0.5),
            ),
            "gpt-5.4-mini": _per_million(0.75, 4.5, cached_input_usd=0.075),
            "gpt-5.4-nano": _per_million(0.2, 1.25, cached_input_usd=0.02),
            "gpt-5.5": _per_million(
                5,
                30,
                cached_input_usd=0.5,
                long_above=272_000,
                long=_per_million(10, 45, cached_input_usd=1),
            ),
        },
    ),
)
"""The oldest list first."""
