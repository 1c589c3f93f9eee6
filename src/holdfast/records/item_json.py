"""JSON values in items: as they are where an item can hold them, as text otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, cast

import msgspec

from holdfast.errors import InvalidItem
from holdfast.storage.item import canonical_value

__all__ = ["item_value", "json_value"]


def item_value(value: Mapping[str, Any] | Sequence[Any]) -> Any:
    """Return a dict or list of JSON values as an item holds it.

    Not every item can hold empty text, numbers of more than 38 digits, or deep structures: then the
    whole value becomes text.
    """
    try:
        return canonical_value(_stored(value), "data")
    except InvalidItem:
        return msgspec.json.encode(value).decode()


def json_value(stored: Any) -> Any:
    """Return the JSON value of which `item_value` returned this.

    Raises:
        ValueError: it is text, and not that of JSON.
    """
    return msgspec.json.decode(stored) if isinstance(stored, str) else _plain(stored)


def _stored(value: Any) -> Any:
    """Return a value with decimal numbers in place of floats.

    Raises:
        InvalidItem: it contains empty text.
    """
    if value == "":
        raise InvalidItem("not every engine stores empty text")
    if isinstance(value, float):
        return Decimal(repr(value))
    if isinstance(value, Mapping):
        return {name: _stored(each) for name, each in cast(Mapping[str, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_stored(each) for each in cast(Sequence[Any], value)]
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in cast(dict[str, Any], value).items()}
    if isinstance(value, list):
        return [_plain(each) for each in cast(list[Any], value)]
    return value
