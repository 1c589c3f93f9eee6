"""Errors about values that do not fit their type, in one line that quotes no user data."""

from __future__ import annotations

import re
import typing
from collections.abc import Sequence, Set
from typing import Any, cast

__all__ = [
    "Mismatch",
    "TooLarge",
    "msgspec_mismatch",
    "no_fields",
    "pydantic_mismatch",
    "type_for_people",
]

# The end of the messages of msgspec.
_PATH = re.compile(r" - at `(?:key` in `)?\$([^`]*)`$")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")

# The start of messages of msgspec that quote the value, and what replaces them.
_QUOTING_MESSAGES = {
    "Invalid enum value ": "it must be one of the values that its type allows",
    "Invalid value ": "it must be one of the values that its type allows",
    "Object contains unknown field ": "it must not have a field that its type does not have",
}

_REASON_MAX = 500
_FIELD_MAX = 200

# With more errors than this only their number is reported: pydantic builds all messages at once.
_MISMATCHES_MAX = 100

# Errors of pydantic whose messages quote the value, and what replaces them.
_QUOTING_ERRORS = {"union_tag_invalid": "its tag must be one of those that its type allows"}

# A larger number is not the index of a list but the key of a map.
_INDEX_MAX = 10_000_000


class Mismatch(Exception):
    """A value does not fit its type."""

    def __init__(self, field: str, reason: str) -> None:
        self.field = field.removeprefix(".")[:_FIELD_MAX]
        """The path to the value; empty if it is the whole value."""
        self.reason = reason[:_REASON_MAX]
        super().__init__(f"{self.field}: {self.reason}" if field else self.reason)

    def within(self, field: str) -> Mismatch:
        """Return the same mismatch with the path extended by an outer field."""
        joint = "" if not self.field or self.field.startswith("[") else "."
        return Mismatch(f"{field}{joint}{self.field}", self.reason)


class TooLarge(Mismatch):
    """A value is larger than its limit."""

    def __init__(self, size: int, limit: int, reason: str = "") -> None:
        super().__init__(
            "",
            reason or f"it has at least {size:,} bytes before compression; the limit is {limit:,}",
        )
        self.size = size
        """The size in bytes. Counting stops at the limit, so the value may be larger."""
        self.limit = limit


def type_for_people(kind: Any) -> str:
    """Return the name of a type with its article, such as ``an Order``."""
    if not isinstance(kind, type) or typing.get_origin(kind) is not None:
        return f"{kind!r:.{_FIELD_MAX}}".replace("typing.", "")
    return f"{'an' if kind.__name__[0] in 'aeiouAEIOU' else 'a'} {kind.__name__}"


def no_fields(given: Any, kind: type | None = None) -> Mismatch:
    """Return the mismatch for a value that is neither of a class nor a dict of fields."""
    expected = "" if kind is None else f"{type_for_people(kind)}, or "
    fields = "fields" if kind is None else "its fields"
    return Mismatch("", f"expected {expected}a dict of {fields}, got {type(given).__name__}")


def pydantic_mismatch(error: Exception, kind: Any) -> Mismatch:
    """Return the errors of pydantic about a value as one mismatch.

    The message names fields and rules, and quotes nothing of the value.
    """
    if isinstance(error, RecursionError):
        return Mismatch("", "it is nested too deeply, or contains itself")
    found = cast(Any, error)
    if not callable(getattr(error, "errors", None)):
        return Mismatch("", str(error))
    count = int(found.error_count())
    if count > _MISMATCHES_MAX:
        return Mismatch("", f"{count:,} parts of it do not fit")
    names = _names_within(kind)
    (field, reason), *others = [
        (_path(each["loc"], names), _QUOTING_ERRORS.get(each["type"]) or str(each["msg"]))
        for each in found.errors(include_url=False, include_input=False, include_context=False)
    ]
    return Mismatch(field, "; ".join([reason, *(f"{name}: {why}" for name, why in others)]))


def _path(parts: Sequence[str | int], names: Set[str]) -> str:
    """Return the path to a part of a value. Keys of maps are user data and are not quoted."""
    return ".".join(
        str(part) if part in names or (type(part) is int and part < _INDEX_MAX) else "…"
        for part in parts
    )


def _names_within(kind: Any) -> set[str]:
    """Return the names of all fields of a model and of the models nested in it."""
    names: set[str] = set()
    seen: set[int] = set()
    left: list[Any] = [kind]
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        left += typing.get_args(each)
        for name, field in cast(dict[str, Any], getattr(each, "model_fields", None) or {}).items():
            names |= {name, *(a for a in (field.alias, field.validation_alias) if type(a) is str)}
            left.append(field.annotation)
        if isinstance(each, type):
            for name, hint in cast(dict[str, Any], getattr(each, "__annotations__", {})).items():
                names.add(name)
                left.append(hint)
    return names


def msgspec_mismatch(message: str) -> Mismatch:
    """Return the mismatch for a message of msgspec."""
    path = ""
    if found := _PATH.search(message):
        path, message = found[1], message[: found.start()]
    if missing := _MISSING.fullmatch(message):
        path, message = f"{path}.{missing[1]}", "it is missing"
    for beginning, rule in _QUOTING_MESSAGES.items():
        if message.startswith(beginning):
            message = rule
    return Mismatch(path, message)
