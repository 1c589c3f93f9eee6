"""DynamoDB's expressions for conditions, updates and ranges.

Every attribute name and every value gets a placeholder, so that no expression contains one of
DynamoDB's many reserved words (``status``, ``ttl``, ``data`` …).
"""

from __future__ import annotations

from typing import Any

from holdfast.storage.dynamodb.attributes import typed
from holdfast.storage.item import Value
from holdfast.storage.ranges import All, At, Between, From, Prefix, Range, UpTo
from holdfast.storage.writes import (
    Absent,
    AllOf,
    AnyOf,
    Condition,
    Equals,
    Greater,
    Less,
    Present,
    Update,
)

__all__ = ["Placeholders", "condition_text", "range_text", "update_text"]


class Placeholders:
    """The placeholders of one request, with their names and values."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._values: dict[str, dict[str, Any]] = {}

    def name(self, name: str) -> str:
        """Return the placeholder of an attribute name, always the same for the same name."""
        placeholder = self._names.get(name)
        if placeholder is None:
            placeholder = self._names[name] = f"#{len(self._names)}"
        return placeholder

    def value(self, value: Value) -> str:
        """Return a placeholder for a value."""
        placeholder = f":{len(self._values)}"
        self._values[placeholder] = typed(value)
        return placeholder

    def fields(self) -> dict[str, Any]:
        """Return the fields of the request that define the placeholders.

        DynamoDB refuses empty ones, so they are left out.
        """
        fields: dict[str, Any] = {}
        if self._names:
            fields["ExpressionAttributeNames"] = {
                placeholder: name for name, placeholder in self._names.items()
            }
        if self._values:
            fields["ExpressionAttributeValues"] = self._values
        return fields


def condition_text(condition: Condition, placeholders: Placeholders) -> str:
    """Return the ``ConditionExpression`` for a condition."""
    match condition:
        case Absent(name):
            return f"attribute_not_exists({placeholders.name(name)})"
        case Present(name):
            return f"attribute_exists({placeholders.name(name)})"
        case Equals(name, value):
            return f"{placeholders.name(name)} = {placeholders.value(value)}"
        case Less(name, value):
            return f"{placeholders.name(name)} < {placeholders.value(value)}"
        case Greater(name, value):
            return f"{placeholders.name(name)} > {placeholders.value(value)}"
        case AllOf(conditions):
            return _joined(conditions, " AND ", placeholders)
        case AnyOf(conditions):
            return _joined(conditions, " OR ", placeholders)


def update_text(update: Update, placeholders: Placeholders) -> str:
    """Return the ``UpdateExpression`` for an update."""
    name, value = placeholders.name, placeholders.value
    sets = [f"{name(each)} = {value(new)}" for each, new in update.set.items()]
    for each, new in update.set_if_absent.items():
        sets.append(f"{name(each)} = if_not_exists({name(each)}, {value(new)})")
    clauses = (
        ("SET", sets),
        ("ADD", [f"{name(each)} {value(addend)}" for each, addend in update.add.items()]),
        ("REMOVE", [name(each) for each in update.remove]),
    )
    return " ".join(f"{verb} {', '.join(actions)}" for verb, actions in clauses if actions)


def range_text(pk: str, where: Range, placeholders: Placeholders, *, names: tuple[str, str]) -> str:
    """Return a ``KeyConditionExpression`` for a part of a partition.

    ``names`` are those of the partition key and of the sort key.
    """
    partition = f"{placeholders.name(names[0])} = {placeholders.value(pk)}"
    if isinstance(where, All):
        return partition
    sk, value = placeholders.name(names[1]), placeholders.value
    match where:
        case At(at):
            part = f"{sk} = {value(at)}"
        case Prefix(prefix):
            part = f"begins_with({sk}, {value(prefix)})"
        case From(first):
            part = f"{sk} >= {value(first)}"
        case UpTo(last):
            part = f"{sk} <= {value(last)}"
        case Between(first, last):
            part = f"{sk} BETWEEN {value(first)} AND {value(last)}"
    return f"{partition} AND {part}"


def _joined(conditions: tuple[Condition, ...], operator: str, placeholders: Placeholders) -> str:
    # DynamoDB refuses redundant parentheses: only a group of several inside another one gets them.
    if len(conditions) == 1:
        return condition_text(conditions[0], placeholders)
    parts: list[str] = []
    for part in conditions:
        text = condition_text(part, placeholders)
        parts.append(f"({text})" if _is_group(part) else text)
    return operator.join(parts)


def _is_group(condition: Condition) -> bool:
    match condition:
        case AllOf(conditions) | AnyOf(conditions):
            return len(conditions) > 1 or any(map(_is_group, conditions))
        case _:
            return False
