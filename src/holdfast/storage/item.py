"""What an item can hold, in the one form in which it is stored, and what it weighs.

Values are plain Python: ``str``, ``int``, ``Decimal``, ``bytes``, ``bool``, ``None``, ``list``,
``dict`` with string keys, and non-empty sets of strings, numbers or bytes. `canonical` turns what a
caller hands in into the form in which every engine gives it back: numbers are ``int`` where they
are whole and ``Decimal`` otherwise, sets are ``frozenset``. A ``float`` is taken only if it is
exact, since 0.1 would come back as something else.

Sizes follow the rule by which DynamoDB bills and limits items.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from holdfast.errors import InvalidItem, ItemTooLarge

__all__ = [
    "DEPTH_MAX",
    "ITEM_BYTES_MAX",
    "NUMBER_DIGITS_MAX",
    "Item",
    "Value",
    "canonical_item",
    "canonical_value",
    "item_bytes",
    "same",
    "value_bytes",
]

Value = Any
"""str | int | Decimal | bytes | bool | None | list | dict | frozenset, nested."""
Item = dict[str, Any]

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
        InvalidItem: a value that no table can hold; it names the attribute and the reason.
        ItemTooLarge: the item weighs more than 400 KB.
    """
    if not isinstance(item, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidItem(f"an item is a dict of attributes, not {_kind(item)}")
    result: Item = {}
    for name, value in item.items():
        # The ordinary cases first: this runs for every write.
        if not (type(name) is str and name and len(name) < 256 and name.isascii()):
            name = _name(name, "")
        if type(value) is bytes or (type(value) is str and value.isascii()):
            result[name] = value
        else:
            result[name] = _canonical(value, name, 1)
    size = item_bytes(result)
    if size > ITEM_BYTES_MAX:
        raise ItemTooLarge(
            f"the item has {size:,} bytes; the limit is {ITEM_BYTES_MAX:,} (400 KB, attribute "
            f"names included); its largest attribute is {_largest(result)}",
            size=size,
            limit=ITEM_BYTES_MAX,
        )
    return result


def canonical_value(value: Any, name: str) -> Value:
    """Return one attribute's value as it will be read back.

    Raises:
        InvalidItem: a value that no table can hold.
    """
    return _canonical(value, name, 1)


def item_bytes(item: Item) -> int:
    """Return what a canonical item weighs: its names and its values."""
    total = 0
    for name, value in item.items():
        total += len(name) if name.isascii() else len(name.encode())
        if type(value) is str:
            total += len(value) if value.isascii() else len(value.encode())
        else:
            total += value_bytes(value)
    return total


def value_bytes(value: Value) -> int:
    """Return what one canonical value weighs."""
    match value:
        case str():
            return len(value) if value.isascii() else len(value.encode())
        case bool() | None:
            return 1
        case int() | Decimal():
            return _number_bytes(value)
        case bytes():
            return len(value)
        case frozenset():
            return sum(value_bytes(element) for element in value)  # pyright: ignore[reportUnknownVariableType]
        case list():
            return 3 + sum(1 + value_bytes(element) for element in value)  # pyright: ignore[reportUnknownVariableType]
        case _:
            return 3 + sum(1 + len(name.encode()) + value_bytes(v) for name, v in value.items())


def same(left: Value, right: Value) -> bool:
    """Return whether two canonical values are the same value of the same type.

    Python's own ``==`` takes True for 1.
    """
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return left == right


def _canonical(value: Any, path: str, depth: int) -> Value:
    match value:
        case bool() | None:
            return value
        case str():
            return _text(value, path)
        case int() | Decimal() | float():
            return _number(value, path)
        case bytes():
            return bytes(value)
        case list() | dict() | set() | frozenset():
            if depth >= DEPTH_MAX:
                raise InvalidItem(
                    f"{path[:80]}… is nested deeper than {DEPTH_MAX} levels",
                    field=path,
                    size=depth,
                    limit=DEPTH_MAX,
                )
            return _container(value, path, depth)  # pyright: ignore[reportUnknownArgumentType]
        case _:
            raise InvalidItem(
                f"{path} is {_kind(value)}, which an item cannot hold; use str, int, Decimal, "
                "bytes, bool, None, list, dict or a set",
                field=path,
            )


def _container(value: Any, path: str, depth: int) -> Value:
    match value:
        case list():
            return [
                _canonical(element, f"{path}[{position}]", depth + 1)
                for position, element in enumerate(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            ]
        case dict():
            return {
                _name(name, path): _canonical(element, f"{path}.{name}", depth + 1)
                for name, element in value.items()  # pyright: ignore[reportUnknownVariableType]
            }
        case _:
            return _set(value, path)


def _set(value: Any, path: str) -> frozenset[Any]:
    if not value:
        raise InvalidItem(f"{path} is an empty set, which an item cannot hold", field=path)
    elements = [_canonical(element, path, DEPTH_MAX) for element in value]
    if "" in elements or b"" in elements:
        raise InvalidItem(f"{path} is a set with an empty string or empty bytes", field=path)
    kinds = {_set_kind(element) for element in elements}
    if len(kinds) != 1 or None in kinds:
        raise InvalidItem(
            f"{path} is a set of mixed or unfit types; a set holds only strings, only numbers or "
            "only bytes",
            field=path,
        )
    return frozenset(elements)


def _set_kind(element: Value) -> str | None:
    match element:
        case bool() | None:
            return None
        case str():
            return "S"
        case int() | Decimal():
            return "N"
        case bytes():
            return "B"
        case _:
            return None


def _name(name: Any, path: str) -> str:
    where = f" in {path}" if path else ""
    if type(name) is not str:
        if not isinstance(name, str):
            raise InvalidItem(
                f"an attribute name{where} is {_kind(name)}, not a string", field=path or None
            )
        name = str.__str__(name)
    if not name:
        raise InvalidItem(f"an attribute name{where} is empty", field=path or None)
    size = len(_text(name, path or "an attribute name").encode())
    if size > NAME_BYTES_MAX:
        raise InvalidItem(
            f"an attribute name{where} has {size:,} bytes; the limit is {NAME_BYTES_MAX:,}",
            field=path or name[:80],
            size=size,
            limit=NAME_BYTES_MAX,
        )
    return name


def _text(value: str, path: str) -> str:
    if value.isascii():
        return str.__str__(value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidItem(
            f"{path} holds a lone surrogate at position {error.start}, which UTF-8 cannot express",
            field=path,
        ) from None
    return str.__str__(value)


def _number(value: int | Decimal | float, path: str) -> int | Decimal:
    if isinstance(value, int) and -_SAFE_INT < value < _SAFE_INT:
        return int(value)
    if isinstance(value, float):
        return _float(value, path)
    # Python refuses to print integers of over 4,300 digits; none of them is in range anyway.
    if isinstance(value, int) and value.bit_length() > 500:
        raise _out_of_range(f"an integer of {value.bit_length()} bits", path)
    number = Decimal(value)
    if not number.is_finite():
        raise InvalidItem(f"{path} is {number}, which is not a number", field=path)
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    significant = "".join(map(str, digits)).lstrip("0")
    stripped = significant.rstrip("0")
    if not stripped:
        return 0
    exponent += len(significant) - len(stripped)
    if len(stripped) > NUMBER_DIGITS_MAX:
        raise InvalidItem(
            f"{path} has {len(stripped)} significant digits; the limit is {NUMBER_DIGITS_MAX}",
            field=path,
            size=len(stripped),
            limit=NUMBER_DIGITS_MAX,
        )
    if not NUMBER_EXPONENT_MIN <= len(stripped) + exponent - 1 <= NUMBER_EXPONENT_MAX:
        raise _out_of_range(f"{number:.3E}", path)
    if exponent >= 0:
        return (-1 if sign else 1) * int(stripped) * 10**exponent
    return Decimal(f"{'-' if sign else ''}{stripped}E{exponent}")


def _float(value: float, path: str) -> int | Decimal:
    if not math.isfinite(value):
        raise InvalidItem(f"{path} is {value}, which is not a number", field=path)
    exact = Decimal(value)
    if len(exact.as_tuple().digits) > NUMBER_DIGITS_MAX:
        raise InvalidItem(
            f"{path} is the float {value!r}, which is not exactly that number; "
            f"write Decimal('{value!r}') to keep what you see",
            field=path,
        )
    return _number(exact, path)


def _out_of_range(shown: str, path: str) -> InvalidItem:
    return InvalidItem(
        f"{path} is {shown}; numbers reach from 1E{NUMBER_EXPONENT_MIN} to "
        f"9.99E+{NUMBER_EXPONENT_MAX}, positive or negative",
        field=path,
    )


def _number_bytes(value: int | Decimal) -> int:
    """Return what a number weighs: a byte, one more for each two digits, one for a minus.

    The digits are counted without zeros at either end, in pairs that begin at the decimal point:
    120 has two pairs (1 20), 1.2 too (1. 20), 12 and 0.12 have one.
    """
    if not value:
        return 1
    _, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    stripped = text.rstrip("0")
    odd_end = (exponent + len(text) - len(stripped)) % 2
    pairs = (len(stripped) + odd_end + 1) // 2
    return min(1 + pairs + (value < 0), _NUMBER_BYTES_MAX)


def _largest(item: Item) -> str:
    name = max(item, key=lambda name: value_bytes(item[name]))
    return f"{name!r} with {value_bytes(item[name]):,} bytes"


def _kind(value: object) -> str:
    kind = type(value).__name__
    return f"an {kind}" if kind[0] in "aeiouAEIOU" else f"a {kind}"
