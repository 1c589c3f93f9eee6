"""What an item can hold and what it weighs.

The sizes are those that DynamoDB Local measures (found by writing items around a border),
and for numbers also those that the 400 KB limit of the service shows.
"""

from __future__ import annotations

import enum
import itertools
from collections import OrderedDict
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidItem, ItemTooLarge
from holdfast.storage.item import (
    ITEM_BYTES_MAX,
    canonical_item,
    canonical_value,
    comparable_type,
    item_bytes,
    same_value,
)
from holdfast.storage.layout import LAYOUT
from holdfast.storage.sqlite.item_codec import decode_attributes, encode_attributes
from holdfast.storage.validation import validate_write
from holdfast.storage.writes import Put


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("", 0),
        ("abc", 3),
        ("é世🙂", 2 + 3 + 4),
        (b"abc", 3),
        (True, 1),
        (None, 1),
        ([], 3),
        (["abc", 1], 3 + (1 + 3) + (1 + 2)),
        ({}, 3),
        ({"né": "abc"}, 3 + 1 + 3 + 3),
        ({"a": {"b": [None]}}, 3 + (1 + 1) + 3 + (1 + 1) + 3 + (1 + 1)),
        ({"ab", "c"}, 3),
        ({1, 22, -3}, 2 + 2 + 3),
        (0, 1),
        (1, 2),
        (-1, 3),
        (9, 2),
        (10, 2),
        (12, 2),
        (100, 2),
        (120, 3),
        (1200, 2),
        (123, 3),
        (Decimal("1.2"), 3),
        (Decimal("0.12"), 2),
        (Decimal("0.012"), 3),
        (Decimal("123.4"), 4),
        (Decimal("12.34"), 3),
        (Decimal("100.1"), 4),
        (10**125, 2),
        (Decimal("-1E-130"), 3),
        (1_735_689_600, 5),
        (10**38 - 1, 20),
        (1 - 10**38, 21),
        (Decimal("1234567890123456789012345678901234567.8"), 21),
        (Decimal("-1234567890123456789012345678901234567.8"), 21),
    ],
    ids=itertools.count(),
)
def test_what_a_value_weighs(value: Any, size: int) -> None:
    assert item_bytes(canonical_item({"name": value})) == len("name") + size


def test_the_largest_item() -> None:
    item = {"PK": "a", "SK": "b", "text": ""}
    room = ITEM_BYTES_MAX - item_bytes(item)
    validate_write(Put({**item, "text": "x" * room}), LAYOUT)
    with pytest.raises(ItemTooLarge, match=r"'text' with 409,591 bytes") as error:
        validate_write(Put({**item, "text": "x" * (room + 1)}), LAYOUT)
    assert (error.value.size, error.value.limit) == (409_601, 409_600)


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (Colour.RED, "red"),
        (Level.LOW, 1),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        ([Colour.RED], ["red"]),
        ({Level.LOW}, frozenset({1})),
    ],
    ids=itertools.count(),
)
def test_what_derives_from_a_plain_type_is_kept_as_that(given: Any, kept: Any) -> None:
    value = canonical_value(given, "name")
    assert value == kept
    assert type(value) is type(kept)


values = st.recursive(
    st.one_of(
        st.text(max_size=5),
        st.integers(-(10**38) + 1, 10**38 - 1),
        st.decimals(-(10**6), 10**6, places=4),
        st.binary(max_size=5),
        st.booleans(),
        st.none(),
        st.sets(st.text(min_size=1, max_size=3), min_size=1, max_size=3),
        st.sets(st.integers(-(10**30), 10**30), min_size=1, max_size=3),
        st.sets(st.binary(min_size=1, max_size=3), min_size=1, max_size=3),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(min_size=1, max_size=3), inner, max_size=3),
    ),
    max_leaves=8,
)


@given(value=values)
def test_the_canonical_form_is_final_and_equal(value: Any) -> None:
    kept = canonical_value(value, "name")
    assert kept == value
    assert same_value(canonical_value(kept, "name"), kept)


@given(value=values)
def test_the_embedded_engines_bytes_give_back_the_same(value: Any) -> None:
    item = canonical_item({"value": value, "other": 1})
    body = encode_attributes(item)
    assert same_value(decode_attributes(body), item)
    assert encode_attributes(dict(reversed(item.items()))) == body


@given(left=values, right=values)
def test_same_means_equal_and_of_the_same_types(left: Any, right: Any) -> None:
    left, right = canonical_value(left, "l"), canonical_value(right, "r")
    assert same_value(left, right) == (
        encode_attributes({"v": left}) == encode_attributes({"v": right})
    )
    assert same_value(left, left)


def test_true_is_not_one() -> None:
    assert not same_value(True, 1)
    assert not same_value([True], [1])
    assert not same_value({"a": 0}, {"a": False})
    assert comparable_type(True) is None


@given(number=st.decimals(allow_nan=False, allow_infinity=False))
def test_a_number_is_kept_exactly_or_refused(number: Decimal) -> None:
    try:
        kept = canonical_value(number, "n")
    except InvalidItem:
        digits = len(str(number.as_tuple().digits).replace(", ", "").strip("(,)").strip("0"))
        assert digits > 38 or not Decimal("1E-130") <= abs(number) < Decimal("1E126")
    else:
        assert kept == number
        assert isinstance(kept, int) == (number == number.to_integral_value())
