"""Items in DynamoDB's JSON, where each value is under the letters of its type.

These functions take and return canonical values only (see `storage/item.py`).
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from holdfast.storage.item import NUMBER_DIGITS_MAX, Item, Value, canonical_value
from holdfast.storage.layout import PK, SK, Key

__all__ = ["Attributes", "attributes_of", "item_of", "key_attributes", "typed", "untyped"]

Attributes = dict[str, dict[str, Any]]
"""An item, or a part of one, in DynamoDB's JSON."""


def attributes_of(item: Mapping[str, Any]) -> Attributes:
    """Return a canonical item in DynamoDB's JSON."""
    return {
        name: {"S": value} if type(value) is str else typed(value) for name, value in item.items()
    }


def item_of(attributes: Mapping[str, Any]) -> Item:
    """Return the canonical item for DynamoDB's JSON."""
    return {name: untyped(value) for name, value in attributes.items()}


def key_attributes(key: Key) -> Attributes:
    """Return the key of an item in DynamoDB's JSON."""
    return {PK: {"S": key.pk}, SK: {"S": key.sk}}


def typed(value: Value) -> dict[str, Any]:
    """Return one canonical value under the letters of its type."""
    match value:
        case str():
            return {"S": value}
        case bool():
            return {"BOOL": value}
        case None:
            return {"NULL": True}
        case int() | Decimal():
            return {"N": _number_text(value)}
        case bytes():
            return {"B": b64encode(value).decode()}
        case frozenset():
            return _typed_set(value)
        case list():
            return {"L": [typed(element) for element in value]}
        case _:
            return {"M": {name: typed(element) for name, element in value.items()}}


def untyped(attribute: Mapping[str, Any]) -> Value:
    """Return the canonical value of one of DynamoDB's attributes."""
    ((letter, value),) = attribute.items()
    match letter:
        case "S" | "BOOL":
            return value
        case "N":
            return _number(value)
        case "M":
            return {name: untyped(element) for name, element in value.items()}
        case "L":
            return [untyped(element) for element in value]
        case "NULL":
            return None
        case "B":
            return b64decode(value)
        case "SS":
            return frozenset(value)
        case "NS":
            return frozenset(map(_number, value))
        case "BS":
            return frozenset(map(b64decode, value))
        case _:
            raise ValueError(f"DynamoDB has no type {letter!r}")


def _typed_set(value: frozenset[Any]) -> dict[str, Any]:
    # Sorted, so that the same write has the same bytes in every process.
    elements = sorted(value)
    match elements[0]:
        case str():
            return {"SS": elements}
        case bytes():
            return {"BS": [b64encode(element).decode() for element in elements]}
        case _:
            return {"NS": [_number_text(element) for element in elements]}


def _number_text(value: int | Decimal) -> str:
    text = str(value)
    if len(text) <= NUMBER_DIGITS_MAX or isinstance(value, Decimal):
        return text
    # An integer may have up to 126 digits, but at most 38 before the zeros at its end.
    digits = text.rstrip("0")
    return f"{digits}E{len(text) - len(digits)}"


def _number(text: str) -> int | Decimal:
    try:
        return int(text)
    except ValueError:
        number = canonical_value(Decimal(text), "a number")
        assert isinstance(number, int | Decimal)
        return number
