"""Limits on the conditions of writes, checked before anything is sent to the store."""

from __future__ import annotations

from typing import Any

from holdfast.display import short_repr
from holdfast.errors import InvalidWrite
from holdfast.storage.item import canonical_name, canonical_value, comparable_type
from holdfast.storage.writes import (
    Absent,
    AllOf,
    AnyOf,
    Condition,
    Equals,
    Greater,
    Less,
    Present,
)

__all__ = ["validate_attribute_name", "validate_condition"]

# DynamoDB limits the text of an expression to 4 KB. A condition of this many parts always fits.
_CONDITION_PARTS_MAX = 60


def validate_condition(condition: Condition | None) -> Condition | None:
    """Return a condition in canonical form.

    Raises:
        InvalidWrite: the condition has too many parts, or a part that is not a condition.
        InvalidItem: a value that no item can hold.
    """
    if condition is None:
        return None
    parts = _condition_parts(condition) if isinstance(condition, AllOf | AnyOf) else 1
    if parts > _CONDITION_PARTS_MAX:
        raise InvalidWrite(
            f"condition must have at most {_CONDITION_PARTS_MAX} parts, got more",
            field="condition",
            size=parts,
            limit=_CONDITION_PARTS_MAX,
        )
    return _canonical_condition(condition)


def _condition_parts(condition: Condition) -> int:
    # No recursion: a condition nested a thousand levels deep must not exhaust the stack.
    parts, left = 0, [condition]
    while left and parts <= _CONDITION_PARTS_MAX:
        part = left.pop()
        parts += 1
        if isinstance(part, AllOf | AnyOf):
            # Counting would exhaust a generator, and leave a condition that is always true.
            if not isinstance(part.conditions, tuple | list):
                raise InvalidWrite(
                    "AllOf and AnyOf must contain a tuple of conditions", field="condition"
                )
            left.extend(part.conditions)
    return parts


def _canonical_condition(condition: Condition) -> Condition:
    match condition:
        case Absent(name) | Present(name):
            validate_attribute_name(name)
            return condition
        case Equals(name, value):
            if validate_attribute_name(name) is name and _is_plain(value):  # the common case
                return condition
            return Equals(validate_attribute_name(name), canonical_value(value, name))
        case Less(name, value):
            return Less(validate_attribute_name(name), _validate_comparable(value, name))
        case Greater(name, value):
            return Greater(validate_attribute_name(name), _validate_comparable(value, name))
        case AllOf(conditions) | AnyOf(conditions):
            if not conditions:
                raise InvalidWrite(
                    "AllOf and AnyOf must contain at least one condition", field="condition"
                )
            return type(condition)(tuple(map(_canonical_condition, conditions)))
        case _:
            raise InvalidWrite(
                f"condition must be one of holdfast.storage, got {short_repr(condition)}",
                field="condition",
            )


def _is_plain(value: Any) -> bool:
    """Return whether a value certainly is in canonical form."""
    return (type(value) is str and value.isascii()) or (type(value) is int and abs(value) < 2**53)


def _validate_comparable(value: Any, name: str) -> Any:
    if _is_plain(value):
        return value
    value = canonical_value(value, name)
    if comparable_type(value) is None:
        raise InvalidWrite(
            f"{name} must be compared with a string, a number or bytes, got {type(value).__name__}",
            field=name,
        )
    return value


def validate_attribute_name(name: Any) -> str:
    """Return the name of an attribute in canonical form.

    Raises:
        InvalidItem: no attribute can have that name.
    """
    if type(name) is str and 0 < len(name) < 256 and name.isascii():
        return name
    return canonical_name(name)
