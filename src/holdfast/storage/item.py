"""Values that an item can hold, their canonical form, and their size.

Values are plain Python: ``str``, ``int``, ``Decimal``, ``bytes``, ``bool``, ``None``, ``list``,
``dict`` with string keys, and non-empty sets of strings, numbers or bytes. `canonical_item` turns a
caller's values into the form in which every engine returns them: a number is an ``int`` if it is
whole and a ``Decimal`` otherwise, a set is a ``frozenset``. A ``float`` must be exact, because 0.1
would come back as another number.

Sizes follow the rule by which DynamoDB bills and limits items.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeAlias

from holdfast.errors import InvalidItem, ItemTooLarge

__all__ = [
    "DEPTH_MAX",
    "ITEM_BYTES_MAX",
    "NUMBER_DIGITS_MAX",
    "Item",
    "Value",
    "canonical_item",
    "canonical_name",
    "canonical_value",
    "comparable_type",
    "item_bytes",
    "item_too_large",
    "same_value",
]

Value: TypeAlias = (
    str | int | Decimal | bytes | bool | list[Any] | dict[str, Any] | frozenset[Any] | None
)
Item: TypeAlias = dict[str, Any]
"""The attributes of an item by name."""

ITEM_BYTES_MAX = 400 * 1024
NUMBER_DIGITS_MAX = 38
NUMBER_EXPONENT_MAX = 125
NUMBER_EXPONENT_MIN = -130
DEPTH_MAX = 32
NAME_BYTES_MAX = 65_535

_NUMBER_BYTES_MAX = 21
_SAFE_INT = 10**NUMBER_DIGITS_MAX


def canonical_item(item: Mapping[str, Any]) -> Item:
    """Return the item as it will be read back.

    Raises:
        InvalidItem: no table can hold a value; the error names the attribute and the reason.
    """
    _check_is_mapping(item)
    result: Item = {}
    for name, value in item.items():
        # The common cases first: this runs for every write.
        if not (type(name) is str and name and len(name) < 256 and name.isascii()):
            name = canonical_name(name)
        if (
            (type(value) is str and value.isascii())
            or (type(value) is int and -_SAFE_INT < value < _SAFE_INT)
            or type(value) is bytes
            or type(value) is bool
        ):
            result[name] = value
        else:
            result[name] = _canonical(value, name, 1)
    return result


def canonical_value(value: Any, name: str) -> Value:
    """Return one attribute's value as it will be read back.

    Raises:
        InvalidItem: no table can hold the value.
    """
    return _canonical(value, name, 1)


def canonical_name(name: Any, path: str = "") -> str:
    """Return the name of an attribute, or of an entry of the map at that path.

    Raises:
        InvalidItem: the name is empty, too long, or not a string that UTF-8 can express.
    """
    where = f" in {path}" if path else ""
    if not isinstance(name, str):
        raise InvalidItem(
            f"an attribute name{where} must be a string, got {_kind(name)}", field=path or None
        )
    if not name:
        raise InvalidItem(f"an attribute name{where} must not be empty", field=path or None)
    text = _text(name, path or "an attribute name", 1)
    size = len(text.encode())
    if size > NAME_BYTES_MAX:
        raise InvalidItem(
            f"an attribute name{where} must have at most {NAME_BYTES_MAX:,} bytes, got {size:,}",
            field=path or name[:80],
            size=size,
            limit=NAME_BYTES_MAX,
        )
    return text


def item_too_large(item: Item, size: int) -> ItemTooLarge:
    """Return the error for an item over the limit, which names its largest attribute."""
    name = max(item, key=lambda name: _value_bytes(item[name]))
    return ItemTooLarge(
        f"an item must have at most {ITEM_BYTES_MAX:,} bytes (400 KB, attribute names included), "
        f"got {size:,}; its largest attribute is {name!r:.80} with "
        f"{_value_bytes(item[name]):,} bytes",
        field=name[:80],
        size=size,
        limit=ITEM_BYTES_MAX,
    )


def item_bytes(item: Item) -> int:
    """Return the size of a canonical item: that of its names and of its values."""
    total = 0
    texts = [*item]
    for value in item.values():
        if type(value) is str:
            texts.append(value)
        else:
            total += _BYTE_COUNTERS[type(value)](value)
    return total + _text_bytes("".join(texts))  # one encoding, since this runs for every write


def same_value(left: Value, right: Value) -> bool:
    """Return whether two canonical values are the same value of the same type.

    Python's ``==`` says that True equals 1.
    """
    if type(left) is bool or type(right) is bool:
        return left is right
    if type(left) is list and type(right) is list:
        return len(left) == len(right) and all(map(same_value, left, right))
    if type(left) is dict and type(right) is dict:
        return left.keys() == right.keys() and all(
            same_value(left[name], right[name]) for name in left
        )
    return left == right


def comparable_type(value: Value) -> str | None:
    """Return the DynamoDB type of a canonical value that has an order; None if it has none.

    Values of the same type can be compared, and can be elements of one set.
    """
    return _COMPARABLE_TYPES.get(type(value))


_COMPARABLE_TYPES: dict[type, str] = {str: "S", int: "N", Decimal: "N", bytes: "B"}


# --- the canonical form ---------------------------------------------------------------------------


def _canonical(value: object, path: str, depth: int) -> Value:
    kind = type(value)
    make = _CANONICAL_FORMS.get(kind)
    if make is None:
        # Enumerations, ordered dicts and the like are stored as their base type.
        make = next(
            (_CANONICAL_FORMS[base] for base in kind.__mro__ if base in _CANONICAL_FORMS),
            _reject_type,
        )
    return make(value, path, depth)


def _unchanged(value: Any, path: str, depth: int) -> Value:
    return value


def _text(value: str, path: str, depth: int) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidItem(
                f"{path} must not contain a lone surrogate, which UTF-8 cannot express; there is "
                f"one at position {error.start}",
                field=path,
            ) from None
    return str.__str__(value)


def _bytes(value: bytes, path: str, depth: int) -> bytes:
    return bytes(value)


def _list(value: list[Any], path: str, depth: int) -> list[Value]:
    _check_depth(path, depth)
    return [
        _canonical(element, f"{path}[{position}]", depth + 1)
        for position, element in enumerate(value)
    ]


def _dict(value: dict[Any, Any], path: str, depth: int) -> dict[str, Value]:
    _check_depth(path, depth)
    return {
        canonical_name(name, path): _canonical(element, f"{path}.{name}", depth + 1)
        for name, element in value.items()
    }


def _set(value: set[Any] | frozenset[Any], path: str, depth: int) -> frozenset[Value]:
    if not value:
        raise InvalidItem(f"{path} must not be an empty set", field=path)
    elements = [_canonical(element, path, DEPTH_MAX) for element in value]
    if "" in elements or b"" in elements:
        raise InvalidItem(
            f"{path} must not be a set with an empty string or empty bytes", field=path
        )
    orders = {comparable_type(element) for element in elements}
    if len(orders) != 1 or None in orders:
        raise InvalidItem(
            f"{path} must be a set of only strings, only numbers or only bytes",
            field=path,
        )
    return frozenset(elements)


def _integer(value: int, path: str, depth: int) -> int | Decimal:
    if -_SAFE_INT < value < _SAFE_INT:
        return int(value)
    # Python does not print integers of over 4,300 digits. All of them are out of range.
    if value.bit_length() > 500:
        raise _out_of_range(f"an integer of {value.bit_length()} bits", path)
    return _decimal(Decimal(value), path, depth)


def _float(value: float, path: str, depth: int) -> int | Decimal:
    if not math.isfinite(value):
        raise InvalidItem(f"{path} must be a finite number, got {value}", field=path)
    exact = Decimal.from_float(value)
    if len(exact.as_tuple().digits) > NUMBER_DIGITS_MAX:
        raise InvalidItem(
            f"{path} must be an exact number, and the float {value!r} is not; "
            f"pass Decimal('{value!r}') instead",
            field=path,
        )
    return _decimal(exact, path, depth)


def _decimal(value: Decimal, path: str, depth: int) -> int | Decimal:
    if not value.is_finite():
        raise InvalidItem(f"{path} must be a finite number, got {value}", field=path)
    digits, exponent = _trimmed(value)
    if not digits:
        return 0
    if len(digits) > NUMBER_DIGITS_MAX:
        raise InvalidItem(
            f"{path} must have at most {NUMBER_DIGITS_MAX} significant digits, got {len(digits)}",
            field=path,
            size=len(digits),
            limit=NUMBER_DIGITS_MAX,
        )
    if not NUMBER_EXPONENT_MIN <= len(digits) + exponent - 1 <= NUMBER_EXPONENT_MAX:
        raise _out_of_range(f"{value:.3E}", path)
    if exponent >= 0:
        return (-1 if value < 0 else 1) * int(digits) * 10**exponent
    return Decimal(f"{'-' if value < 0 else ''}{digits}E{exponent}")


def _trimmed(value: Decimal) -> tuple[str, int]:
    """Return the digits without zeros at either end, and their exponent."""
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).lstrip("0")
    trimmed = text.rstrip("0")
    return trimmed, exponent + len(text) - len(trimmed)


def _reject_type(value: Any, path: str, depth: int) -> Value:
    raise InvalidItem(
        f"{path} must be a str, int, Decimal, bytes, bool, None, list, dict or set, "
        f"got {_kind(value)}",
        field=path,
    )


_CANONICAL_FORMS: dict[type, Callable[[Any, str, int], Value]] = {
    str: _text,
    bool: _unchanged,
    type(None): _unchanged,
    int: _integer,
    Decimal: _decimal,
    float: _float,
    bytes: _bytes,
    list: _list,
    dict: _dict,
    set: _set,
    frozenset: _set,
}


def _check_is_mapping(item: object) -> None:
    if type(item) is not dict and not isinstance(item, Mapping):
        raise InvalidItem(f"an item must be a dict of attributes, got {_kind(item)}")


def _check_depth(path: str, depth: int) -> None:
    if depth >= DEPTH_MAX:
        raise InvalidItem(
            f"{path[:80]}… must be nested at most {DEPTH_MAX} levels deep",
            field=path,
            size=depth + 1,
            limit=DEPTH_MAX,
        )


def _out_of_range(shown: str, path: str) -> InvalidItem:
    return InvalidItem(
        f"{path} must be from 1E{NUMBER_EXPONENT_MIN} to 9.99E+{NUMBER_EXPONENT_MAX}, positive or "
        f"negative, got {shown}",
        field=path,
    )


def _kind(value: object) -> str:
    kind = type(value).__name__
    return f"an {kind}" if kind[0] in "aeiouAEIOU" else f"a {kind}"


# --- sizes ----------------------------------------------------------------------------------------


def _value_bytes(value: Value) -> int:
    return _BYTE_COUNTERS[type(value)](value)


def _text_bytes(value: str) -> int:
    return len(value) if value.isascii() else len(value.encode())


def _flag_bytes(value: bool | None) -> int:
    return 1


def _list_bytes(value: list[Value]) -> int:
    total = 3 + len(value)
    for element in value:
        total += _BYTE_COUNTERS[type(element)](element)
    return total


def _dict_bytes(value: dict[str, Value]) -> int:
    return 3 + len(value) + item_bytes(value)


def _set_bytes(value: frozenset[Value]) -> int:
    return sum(_value_bytes(element) for element in value)


@lru_cache(maxsize=4096)  # many items contain the same times and counters
def _number_bytes(value: int | Decimal) -> int:
    """Return the size of a number: one byte, one for each pair of digits, one for a minus sign.

    Zeros at either end do not count. The pairs begin at the decimal point: 120 has two (1 20), 1.2
    has two (1. 20), 12 and 0.12 have one.
    """
    if not value:
        return 1
    if type(value) is int:  # almost every item contains a counter or a time
        whole = str(abs(value))
        digits = whole.rstrip("0")
        exponent = len(whole) - len(digits)
    else:
        digits, exponent = _trimmed(Decimal(value))
    pairs = (len(digits) + exponent % 2 + 1) // 2
    return min(1 + pairs + (value < 0), _NUMBER_BYTES_MAX)


_BYTE_COUNTERS: dict[type, Callable[[Any], int]] = {
    str: _text_bytes,
    bool: _flag_bytes,
    type(None): _flag_bytes,
    int: _number_bytes,
    Decimal: _number_bytes,
    bytes: len,
    list: _list_bytes,
    dict: _dict_bytes,
    frozenset: _set_bytes,
}
