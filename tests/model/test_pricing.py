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


def test_a_cost_is_whole_nanodollars() -> None:
    price = ModelPrice.per_million(3, 15, cached_input="0.3")
    assert price == ModelPrice(3_000, 15_000, 300)
    assert price.cost(Usage(1_000_000, 0)) == 3_000_000_000
    assert price.cost(Usage(100, 10, 40)) == 60 * 3_000 + 40 * 300 + 10 * 15_000
    assert ModelPrice(10, 0).cost(Usage(5, 0, 5)) == 50


def test_more_from_the_cache_than_was_read_is_not_paid_back() -> None:
    assert ModelPrice(10, 0, 1).cost(Usage(5, 0, 9)) == 5


@pytest.mark.parametrize(
    ("dollars", "nanodollars"),
    [
        (0.035, 35),
        (0.1, 100),
        ("0.00875", 9),
        ("0.00801", 9),
        (Decimal("1.1"), 1_100),
        (0, 0),
        (150, 150_000),
    ],
)
def test_dollars_a_million_are_rounded_up(dollars: Any, nanodollars: int) -> None:
    assert ModelPrice.per_million(dollars, 0).input == nanodollars


@pytest.mark.parametrize("dollars", [-1, "much", float("nan"), float("inf")])
def test_what_is_no_sum_of_money(dollars: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ModelPrice.per_million(1, dollars)
    assert caught.value.field == "output"


@pytest.mark.parametrize(
    ("unfit", "field"),
    [
        ({"input": -1, "output": 1}, "input"),
        ({"input": 1, "output": 1.5}, "output"),
        ({"input": 1, "output": 1, "cached_input": -1}, "cached_input"),
        ({"input": 1, "output": 1, "long_above": 5}, "long"),
    ],
)
def test_a_price_that_makes_no_sense(unfit: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ModelPrice(**unfit)
    assert caught.value.field == field


def test_a_long_prompt_has_another_price_as_a_whole() -> None:
    price = ModelPrice(1, 10, long_above=100, long=ModelPrice(2, 15))
    assert price.cost(Usage(100, 1)) == 100 + 10
    assert price.cost(Usage(101, 1)) == 202 + 15
    assert price.max_cost((101, 1)) == 202 + 15


tokens = st.integers(0, 10**7)
sums = st.integers(0, 10**6)
cheap = st.builds(ModelPrice, sums, sums, st.none() | sums)


@given(cheap, st.integers(0, 2000), tokens, tokens, st.floats(0, 1), st.floats(0, 1))
def test_nothing_costs_more_than_its_reservation(
    price: ModelPrice, more: int, read: int, made: int, share: float, cached: float
) -> None:
    dear = ModelPrice(price.input + more, price.output + more, price.cached_input)
    both = ModelPrice(price.input, price.output, price.cached_input, 10**6, dear)
    taken = Usage(int(read * share), int(made * share), int(read * share * cached))
    assert both.cost(taken) <= both.max_cost((read, made))


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
    assert (price.input, price.output) == tuple(round(each * 1000) for each in dollars)


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
            assert 0 < price.input <= price.output, name
            assert price.cached_input is None or price.cached_input <= price.input, name
