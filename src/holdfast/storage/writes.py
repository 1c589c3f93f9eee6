"""Writes and conditions as values, and their meaning.

Pure functions over items define the meaning once. The SQLite engine runs these functions, and the
DynamoDB engine sends equivalent expressions. The contract tests check that the two agree.
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
    """The item does not have the attribute; with ``PK``: there is no item."""

    name: str


class Present(msgspec.Struct, frozen=True, tag=True):
    """The item has the attribute; with ``PK``: there is an item."""

    name: str


class Equals(msgspec.Struct, frozen=True, tag=True):
    """The item has the attribute, with exactly this value."""

    name: str
    value: Any


class Less(msgspec.Struct, frozen=True, tag=True):
    """The item has the attribute, of the same type as the value and less than it."""

    name: str
    value: str | int | Decimal | bytes


class Greater(msgspec.Struct, frozen=True, tag=True):
    """The item has the attribute, of the same type as the value and greater than it."""

    name: str
    value: str | int | Decimal | bytes


class AllOf(msgspec.Struct, frozen=True, tag=True):
    """Each of the conditions holds."""

    conditions: tuple[Condition, ...]


class AnyOf(msgspec.Struct, frozen=True, tag=True):
    """At least one of the conditions holds."""

    conditions: tuple[Condition, ...]


Condition: TypeAlias = Absent | Present | Equals | Less | Greater | AllOf | AnyOf
"""What must hold of an item before a write."""


class Put(msgspec.Struct, frozen=True, tag=True):
    """Write a whole item, in place of any that has its key."""

    item: Mapping[str, Any]
    condition: Condition | None = None
    token: str | None = None
    """Identifies this write. The item stores it, so that a read can tell who wrote the item."""
    size: int = 0
    """The size of the item in bytes. The table sets it; do not pass it."""

    @property
    def key(self) -> Key:
        return Key(self.item[PK], self.item[SK])


class Update(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Change some attributes of an item; create the item if there is none."""

    key: Key
    set: Mapping[str, Any] = {}
    set_if_absent: Mapping[str, Any] = {}
    add: Mapping[str, Any] = {}
    """Numbers to add (to 0 if there is none), or sets to merge with the one there."""
    remove: tuple[str, ...] = ()
    condition: Condition | None = None
    token: str | None = None


class Delete(msgspec.Struct, frozen=True, tag=True):
    """Delete an item, if there is one."""

    key: Key
    condition: Condition | None = None


class Check(msgspec.Struct, frozen=True, tag=True):
    """Fail the transaction unless a condition holds; write nothing."""

    key: Key
    condition: Condition


# Wide enough for the sum of the largest and the smallest number that an item can hold.
_EXACT_SUM = Context(prec=300)

Write: TypeAlias = Put | Update | Delete
"""A write of one item."""
TransactionWrite: TypeAlias = Put | Update | Delete | Check
"""A write or a check in a transaction."""


def holds(condition: Condition | None, item: Item | None) -> bool:
    """Return whether a condition holds for an item; None means that there is no item."""
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
    """Return the item as it is after a write; None means that there is no item.

    Raises:
        InvalidWrite: the write adds to an attribute of another type.
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
        f"cannot add a value of type {_kind(value)} to {name!r}, which has the type "
        f"{_kind(existing)}",
        field=name,
    )


def _is_number(value: Value) -> TypeGuard[int | Decimal]:
    return comparable_type(value) == "N"


def _kind(value: object) -> str:
    return type(value).__name__
