"""What models cost."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidRequest
from holdfast.model.pricing import MODEL_PRICES, ModelPrice, Usage, price_of


def a_token(input: int, output: int, cached_input: int | None = None, **more: Any) -> ModelPrice:
    """Return a price from nanodollars for a token."""
    return ModelPrice(
        input_usd=Decimal(input) / 1000,
        output_usd=Decimal(output) / 1000,
        cached_input_usd=None if cached_input is None else Decimal(cached_input) / 1000,
        **more,
    )


def test_a_cost_is_whole_nanodollars() -> None:
    price = ModelPrice(input_usd=3, output_usd=15, cached_input_usd=Decimal("0.3"))
    assert price.cost_nanodollars(Usage(1_000_000, 0)) == 3_000_000_000
    assert price.cost_nanodollars(Usage(100, 10, 40)) == 60 * 3_000 + 40 * 300 + 10 * 15_000
    assert a_token(10, 0).cost_nanodollars(Usage(5, 0, 5)) == 50


def test_more_from_the_cache_than_was_read_is_not_paid_back() -> None:
    assert a_token(10, 0, 1).cost_nanodollars(Usage(5, 0, 9)) == 5


@pytest.mark.parametrize(
    ("dollars", "nanodollars"),
    [
        (0.035, 35),
        (0.1, 100),
        (0.00875, 9),
        (Decimal("0.00801"), 9),
        (Decimal("1.1"), 1_100),
        (0, 0),
        (150, 150_000),
    ],
)
def test_dollars_a_million_are_rounded_up(dollars: Any, nanodollars: int) -> None:
    price = ModelPrice(input_usd=dollars, output_usd=0)
    assert price.cost_nanodollars(Usage(1)) == nanodollars


@pytest.mark.parametrize(
    "dollars", [-1, "1", True, None, float("nan"), float("inf"), Decimal("NaN"), 10**7]
)
def test_what_is_no_sum_of_money(dollars: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ModelPrice(input_usd=1, output_usd=dollars)
    assert caught.value.field == "output_usd"


@pytest.mark.parametrize(
    ("unfit", "field"),
    [
        ({"input_usd": -1}, "input_usd"),
        ({"output_usd": None}, "output_usd"),
        ({"cached_input_usd": -1}, "cached_input_usd"),
        ({"long_above": 5}, "long"),
        ({"long_above": 5, "long": 3}, "long"),
        ({"long_above": 5.5, "long": ModelPrice(input_usd=1, output_usd=1)}, "long_above"),
    ],
)
def test_a_price_that_makes_no_sense(unfit: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ModelPrice(**{"input_usd": 1, "output_usd": 1, **unfit})
    assert caught.value.field == field


def test_a_long_prompt_has_another_price_as_a_whole() -> None:
    price = a_token(1, 10, long_above=100, long=a_token(2, 15))
    assert price.cost_nanodollars(Usage(100, 1)) == 100 + 10
    assert price.cost_nanodollars(Usage(101, 1)) == 202 + 15
    assert price.max_cost_nanodollars((101, 1)) == 202 + 15


tokens = st.integers(0, 10**7)
sums = st.integers(0, 10**6)
prices = st.tuples(sums, sums, st.none() | sums)


@given(prices, st.integers(0, 2000), tokens, tokens, st.floats(0, 1), st.floats(0, 1))
def test_nothing_costs_more_than_its_reservation(
    price: tuple[int, int, int | None], more: int, read: int, made: int, share: float, cached: float
) -> None:
    read_price, made_price, cached_price = price
    dear = a_token(read_price + more, made_price + more, cached_price)
    both = a_token(read_price, made_price, cached_price, long_above=10**6, long=dear)
    taken = Usage(int(read * share), int(made * share), int(read * share * cached))
    assert both.cost_nanodollars(taken) <= both.max_cost_nanodollars((read, made))


@pytest.mark.parametrize(
    ("model_id", "dollars"),
    [
        ("anthropic.claude-haiku-4-5-20251001-v1:0", (1.1, 5.5)),
        ("us.anthropic.claude-haiku-4-5-20251001-v1:0", (1.1, 5.5)),
        ("global.anthropic.claude-haiku-4-5-20251001-v1:0", (1, 5)),
        ("eu.anthropic.claude-sonnet-4-20250514-v1:0", (3, 15)),
        ("apac.anthropic.claude-opus-4-6-v1", (5.5, 27.5)),
        ("anthropic.claude-sonnet-4-6", (3.3, 16.5)),
        ("amazon.nova-lite-v1:0:300k", (0.06, 0.24)),
        ("us.amazon.nova-2-lite-v1:0", (0.3, 2.5)),
        ("gpt-4o", (2.5, 10)),
        ("gpt-4o-2024-08-06", (2.5, 10)),
        ("gpt-4o-2024-05-13", (5, 15)),
        ("gpt-4o-mini-2024-07-18", (0.15, 0.6)),
        ("gpt-5.4-2026-03-05", (2.5, 15)),
        (
            "arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-3-haiku-20240307-v1:0",
            (0.25, 1.25),
        ),
    ],
)
def test_a_model_goes_by_what_its_id_begins_with(
    model_id: str, dollars: tuple[float, float]
) -> None:
    price = price_of(model_id)
    assert price is not None
    assert (price.input_usd, price.output_usd) == dollars


@pytest.mark.parametrize(
    "model_id",
    [
        "gpt-5-pro",
        "gpt-5.4-pro-2026-03-05",
        "gpt-4o-audio-preview",
        "gpt-50",
        "anthropic.claude-opus-4-9",
        "anthropic.claude-haiku-4-5-turbo",
        "mars.anthropic.claude-haiku-4-5",
        "arn:aws:bedrock:us-east-1:1:application-inference-profile/abc",
        "",
    ],
)
def test_a_relative_of_a_model_has_no_price(model_id: str) -> None:
    assert price_of(model_id) is None


def test_a_price_holds_from_its_day_on() -> None:
    older, newer = MODEL_PRICES
    day = timedelta(days=1)
    assert price_of("gpt-5.5", newer.valid_from - day) is None
    assert price_of("gpt-5.5", newer.valid_from) == price_of("gpt-5.5")
    assert price_of("gpt-5", older.valid_from) == price_of("gpt-5")
    assert price_of("gpt-5", date(2020, 1, 1)) is None


def test_the_lists_are_in_order_and_say_where_they_are_from() -> None:
    days = [listed.valid_from for listed in MODEL_PRICES]
    assert days == sorted(set(days))
    assert all(listed.source for listed in MODEL_PRICES)
    for listed in MODEL_PRICES:
        for name, price in listed.prices.items():
            assert 0 < price.input_usd <= price.output_usd, name
            cached = price.cached_input_usd
            assert cached is None or cached <= price.input_usd, name
