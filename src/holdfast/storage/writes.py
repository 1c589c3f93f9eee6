"""Writes and conditions as values, and what they mean.

The meaning is given here once, as pure functions over items. The SQLite engine runs these
functions; the DynamoDB engine says the same in expressions; the contract tests hold the two
together.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Context, Decimal
from typing import Any, TypeAlias, TypeGuard

import msgspec

from holdfast.errors import InvalidWrite
from holdfast.storage.item import Item, Value, canonical_value, comparable_type, same_value
from holdfast.storage.layout import PK, SK, Key

__all__ = [
    "Absent",
    "AllOf",
    "AnyOf",
    "Check",
    "Condition",
    "Delete",
    "Equals",
    "Greater",
    "Less",
    "Present",
    "Put",
    "TransactionWrite",
    "Update",
    "Write",
    "holds",
    "item_after",
]


class Absent(msgspec.Struct, frozen=True, tag=True):
    """The item has no such attribute; with ``PK``: there is no item."""

    name: str


class Present(msgspec.Struct, frozen=True, tag=True):
    """The item has such an attribute; with ``PK``: there is an item."""

    name: str


class Equals(msgspec.Struct, frozen=True, tag=True):
    """The attribute is there and is exactly this value."""

    name: str
    value: Any


class Less(msgspec.Struct, frozen=True, tag=True):
    """The attribute is there, of the value's type, and less than it."""

    name: str
    value: str | int | Decimal | bytes


class Greater(msgspec.Struct, frozen=True, tag=True):
    """The attribute is there, of the value's type, and greater than it."""

    name: str
    value: str | int | Decimal | bytes


class AllOf(msgspec.Struct, frozen=True, tag=True):
    """Each of the conditions holds."""

    conditions: tuple[Condition, ...]


class AnyOf(msgspec.Struct, frozen=True, tag=True):
    """At least one of the conditions holds."""

    conditions: tuple[Condition, ...]


Condition: TypeAlias = Absent | Present | Equals | Less | Greater | AllOf | AnyOf


class Put(msgspec.Struct, frozen=True, tag=True):
    """Write the whole item, whatever stood under its key."""

    item: Mapping[str, Any]
    condition: Condition | None = None
    token: str | None = None
    """Names this very write; kept in the item, so that a lost answer can be told by reading."""
    size: int = 0
    """What the item weighs; the table weighs it, whatever is said here."""

    @property
    def key(self) -> Key:
        return Key(self.item[PK], self.item[SK])


class Update(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Change some attributes of the item, or make it of them where there is none."""

    key: Key
    set: Mapping[str, Any] = {}
    set_if_absent: Mapping[str, Any] = {}
    add: Mapping[str, Any] = {}
    """Numbers to add (to 0 where there is none), or sets whose elements to add."""
    remove: tuple[str, ...] = ()
    condition: Condition | None = None
    token: str | None = None


class Delete(msgspec.Struct, frozen=True, tag=True):
    """Delete the item; there may be none."""

    key: Key
    condition: Condition | None = None


class Check(msgspec.Struct, frozen=True, tag=True):
    """Write nothing, but let the transaction fail unless the condition holds."""

    key: Key
    condition: Condition


# Wide enough for the sum of the largest and the smallest number that an item can hold.
_EXACT_SUM = Context(prec=300)

Write: TypeAlias = Put | Update | Delete
TransactionWrite: TypeAlias = Put | Update | Delete | Check


def holds(condition: Condition | None, item: Item | None) -> bool:
    """Return whether the condition holds for what stands under the key."""
    match condition:
        case None:
            return True
        case Absent(name):
            return item is None or name not in item
        case Present(name):
            return item is not None and name in item
        case Equals(name, value):
            return item is not None and name in item and same_value(item[name], value)
        case Less(name, value):
            return item is not None and _less(item.get(name), value)
        case Greater(name, value):
            return item is not None and _less(value, item.get(name))
        case AllOf(conditions):
            return all(holds(part, item) for part in conditions)
        case AnyOf(conditions):
            return any(holds(part, item) for part in conditions)


def item_after(write: TransactionWrite, existing: Item | None) -> Item | None:
    """Return what stands under the key once the write is carried out.

    Raises:
        InvalidWrite: something is added to an attribute of another type.
        InvalidItem: a sum has more digits than a number may have.
    """
    match write:
        case Put(item):
            return dict(item)
        case Delete():
            return None
        case Check():
            return existing
        case Update():
            return _updated(existing, write)


def _updated(item: Item | None, update: Update) -> Item:
    result: Item = dict(item) if item is not None else {PK: update.key.pk, SK: update.key.sk}
    for name, value in update.set_if_absent.items():
        result.setdefault(name, value)
    result.update(update.set)
    for name, value in update.add.items():
        result[name] = _added(result[name], value, name) if name in result else value
    for name in update.remove:
        result.pop(name, None)
    return result


def _less(left: Any, right: Any) -> bool:
    order = comparable_type(left)
    return order is not None and order == comparable_type(right) and left < right


def _added(existing: Value, value: Value, name: str) -> Value:
    if isinstance(value, frozenset) and isinstance(existing, frozenset):
        union = existing | value
        if len({comparable_type(element) for element in union}) == 1:
            return union
    elif _is_number(value) and _is_number(existing):
        return canonical_value(_EXACT_SUM.add(Decimal(existing), Decimal(value)), name)
    raise InvalidWrite(
        f"cannot add to {name!r}: it is {_kind(existing)}, and what is to be added is "
        f"{_kind(value)}",
        field=name,
    )


def _is_number(value: Value) -> TypeGuard[int | Decimal]:
    return comparable_type(value) == "N"


def _kind(value: object) -> str:
    return type(value).__name__
