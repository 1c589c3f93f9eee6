"""Why a value does not fit its type, in one line that quotes nothing of the value."""

from __future__ import annotations

import re
import typing
from collections.abc import Sequence, Set
from typing import Any, cast

__all__ = ["Mismatch", "TooLarge", "msgspec_mismatch", "pydantic_mismatch"]

# What msgspec puts at the end of its messages.
_PATH = re.compile(r" - at `(?:key` in `)?\$([^`]*)`$")


_MISSING = re.compile(r"Object missing required field `([^`]*)`")


# How messages of msgspec begin that go on with the value, and what is said instead.
_QUOTING_MESSAGES = {
    "Invalid enum value ": "it is none of the values that its type allows",
    "Invalid value ": "it is none of the values that its type allows",
    "Object contains unknown field ": "it holds a field that its type does not have",
}


_REASON_MAX = 500


_FIELD_MAX = 200


# Where pydantic has more complaints than these, they are counted, and none is told: it builds all
# of them at once.
_MISMATCHES_MAX = 100


# What pydantic would say with the value in it.
_QUOTING_ERRORS = {"union_tag_invalid": "its tag is none of those that its type allows"}


# No list has more elements; a larger number is the key of a map.
_INDEX_MAX = 10_000_000


class Mismatch(Exception):
    """A value does not fit its place in the state."""

    def __init__(self, field: str, reason: str) -> None:
        self.field = field.removeprefix(".")[:_FIELD_MAX]
        """The path to it; empty where it is the whole."""
        self.reason = reason[:_REASON_MAX]
        super().__init__(f"{self.field}: {self.reason}" if field else self.reason)

    def within(self, field: str) -> Mismatch:
        """Return the same, seen from outside of that field."""
        joint = "" if not self.field or self.field.startswith("[") else "."
        return Mismatch(f"{field}{joint}{self.field}", self.reason)


class TooLarge(Mismatch):
    """A value has more bytes than it may have."""

    def __init__(self, size: int, limit: int, reason: str = "") -> None:
        super().__init__(
            "",
            reason
            or f"it has {size:,} bytes or more before compression, and the limit is {limit:,}",
        )
        self.size = size
        """How many bytes it has; where counting stopped at the limit, what was counted by then."""
        self.limit = limit


def pydantic_mismatch(error: Exception, kind: Any) -> Mismatch:
    """Return what pydantic has to say of a value for that model, in one line.

    It names fields and rules, and quotes nothing of the value.
    """
    if isinstance(error, RecursionError):
        return Mismatch("", "it is nested too deeply, or holds itself")
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
    """Return where in a value something is; the keys of its maps are part of the value."""
    return ".".join(
        str(part) if part in names or (type(part) is int and part < _INDEX_MAX) else "…"
        for part in parts
    )


def _names_within(kind: Any) -> set[str]:
    """Return the names of all fields of a model, and of the models in it."""
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
    """Return msgspec's complaint with the path in front."""
    path = ""
    if found := _PATH.search(message):
        path, message = found[1], message[: found.start()]
    if missing := _MISSING.fullmatch(message):
        path, message = f"{path}.{missing[1]}", "it is missing"
    for beginning, rule in _QUOTING_MESSAGES.items():
        if message.startswith(beginning):
            message = rule
    return Mismatch(path, message)
