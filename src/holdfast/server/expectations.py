"""Says what a request may have at a place where it has something else."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import msgspec

__all__ = ["expectation", "permitted_values"]

_WRONG_VALUE = "Invalid enum value"
_WRONG_FIELD = "Object contains unknown field"
_PLACE = re.compile(r" - at `\$((?:\.\w+|\[[.\d]*\])*)`$")
_FIELD = re.compile(r"\.(\w+)")


def expectation(kind: Any, message: str) -> str:
    """Return what a value of that type may have, after what msgspec says is wrong with it.

    It is empty if the message says enough, or the place is not known.
    """
    place = _PLACE.search(message)
    if place is None and " - at `" in message:
        return ""
    for name in _FIELD.findall(place[1]) if place else ():
        kind = next((fields[name] for fields in _fields(kind) if name in fields), None)
    if message.startswith(_WRONG_VALUE) and (values := permitted_values(kind)):
        return f"; expected one of {', '.join(values)}"
    if message.startswith(_WRONG_FIELD) and (known := [*_fields(kind)]):
        return f"; the fields are {', '.join(sorted({name for each in known for name in each}))}"
    return ""


def permitted_values(kind: Any) -> tuple[str, ...]:
    """Return the values of the enumerations in a type."""
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return tuple(str(each.value) for each in kind)
    parts = get_args(kind)
    if get_origin(kind) is Literal:
        return tuple(map(str, parts))
    return tuple(value for part in parts for value in permitted_values(part))


def _fields(kind: Any) -> Iterator[dict[str, Any]]:
    """Yield the types of the fields of each struct that a value of that type may be."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield {each.encode_name: each.type for each in msgspec.structs.fields(kind)}
    for part in get_args(kind):
        yield from _fields(part)
