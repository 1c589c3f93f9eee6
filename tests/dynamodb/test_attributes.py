"""Items in DynamoDB's JSON: what goes out comes back."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.storage.dynamodb.attributes import attributes_of, item_of, typed, untyped
from holdfast.storage.item import canonical_item, canonical_value, same_value

numbers = st.one_of(
    st.integers(-(10**38) + 1, 10**38 - 1),
    st.builds(
        lambda digits, exponent: Decimal(f"{digits}E{exponent}"),
        st.integers(-(10**38) + 1, 10**38 - 1),
        st.integers(-130, 88),
    ).filter(lambda number: number == 0 or -130 <= number.adjusted() <= 125),
)
texts = st.text(st.characters(exclude_categories=["Cs"]))
scalars = st.one_of(texts, numbers, st.binary(), st.booleans(), st.none())
sets = st.one_of(
    st.frozensets(texts.filter(bool), min_size=1),
    st.frozensets(numbers, min_size=1),
    st.frozensets(st.binary(min_size=1), min_size=1),
)
values = st.recursive(
    st.one_of(scalars, sets),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(texts.filter(bool), inner, max_size=4),
    ),
    max_leaves=12,
)


@given(st.dictionaries(texts.filter(bool), values, max_size=6))
def test_an_item_comes_back_as_it_was(item: dict[str, Any]) -> None:
    item = canonical_item(item)
    sent = msgspec.json.encode(attributes_of(item))
    assert same_value(item_of(msgspec.json.decode(sent)), item)


@pytest.mark.parametrize(
    ("value", "attribute"),
    [
        ("x", {"S": "x"}),
        ("", {"S": ""}),
        (True, {"BOOL": True}),
        (None, {"NULL": True}),
        (0, {"N": "0"}),
        (-(10**36), {"N": "-1" + "0" * 36}),
        (10**125, {"N": "1E125"}),
        (-12 * 10**120, {"N": "-12E120"}),
        (Decimal("1E-130"), {"N": "1E-130"}),
        (Decimal("-0.5"), {"N": "-0.5"}),
        (b"\x00\xff", {"B": "AP8="}),
        (frozenset({"b", "a"}), {"SS": ["a", "b"]}),
        (frozenset({2, Decimal("1.5"), 10}), {"NS": ["1.5", "2", "10"]}),
        (frozenset({b"b", b"a"}), {"BS": ["YQ==", "Yg=="]}),
        ([1, ["x"]], {"L": [{"N": "1"}, {"L": [{"S": "x"}]}]}),
        ({"a": {"b": None}}, {"M": {"a": {"M": {"b": {"NULL": True}}}}}),
    ],
)
def test_a_value_stands_under_the_letter_of_its_type(value: Any, attribute: Any) -> None:
    assert typed(value) == attribute
    assert same_value(untyped(attribute), value)


@pytest.mark.parametrize("text", ["1.0", "1E0", "+1", "100E-2", "01"])
def test_however_a_service_writes_a_number_it_is_the_same_number(text: str) -> None:
    number = untyped({"N": text})
    assert number == 1
    assert type(number) is int


def test_a_number_as_the_service_writes_it_out_is_read_exactly() -> None:
    smallest = untyped({"N": "0." + "0" * 129 + "1"})
    assert smallest == canonical_value(Decimal("1E-130"), "n")
    assert untyped({"N": "1" + "0" * 125}) == 10**125


def test_an_unknown_type_is_not_taken_for_a_value() -> None:
    with pytest.raises(ValueError, match="no type 'X'"):
        untyped({"X": "1"})
