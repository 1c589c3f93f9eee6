"""Copies the arguments of calls into plain values for their records, without secrets.

The arguments are any objects of any size. The work is bounded by the size of the copy, and nothing
that an argument does fails the call.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import itertools
import pathlib
import re
import uuid
from collections.abc import Iterable
from typing import Any, cast

from holdfast.redaction import REDACTED, excerpt, is_secret_name, without_credentials

__all__ = ["CopyTooLarge", "plain_arguments"]

_DEPTH_MAX = 16
# Counts for each element, so that many small ones take no more time than one large text.
_ELEMENT_BYTES = 8
_SHOWN_BYTES_MAX = 64
# Such a name is taken as it is.
_PLAIN_NAME_MAX = 32
_REPR_CHARS_MAX = 120
_REPR_READ_MAX = 2_000
_KIND_CHARS_MAX = 80
_ADDRESS = re.compile(r"(?: at)? 0x[0-9A-Fa-f]+")
_WORDS = re.compile(r"[\w-]+")
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1
_TEXT_FORMS = (
    datetime.date,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    pathlib.PurePath,
    uuid.UUID,
)
_SCALARS = frozenset({bool, float, type(None)})


class CopyTooLarge(Exception):
    """The copy would exceed its limit."""


def plain_arguments(arguments: Any, bytes_max: int, *, cut: bool) -> Any:
    """Return a copy of about ``bytes_max`` bytes at most that consists only of plain values.

    Values under names such as ``password``, and the credentials of addresses, are replaced. Objects
    without fields become a short text. With ``cut`` long texts and lists are cut at the limit.

    Raises:
        CopyTooLarge: the copy would exceed the limit, and ``cut`` is False.
    """
    return _Copier(bytes_max, cut).copy(arguments, 0)


class _Copier:
    """Makes one copy, and counts its bytes."""

    def __init__(self, bytes_max: int, cut: bool) -> None:
        self._left = bytes_max
        self._cut = cut

    def copy(self, value: Any, depth: int) -> Any:
        self._left -= _ELEMENT_BYTES
        if self._left < 0 and not self._cut:
            raise CopyTooLarge
        kind: Any = cast(Any, type)(value)
        if kind is str:
            return self._text(value)
        if kind in _SCALARS or (kind is int and _INT_MIN <= value <= _INT_MAX):
            return value
        if depth > _DEPTH_MAX or self._left <= 0:
            return "…"
        try:
            return self._copy_object(value, depth)
        except CopyTooLarge:
            raise
        except Exception:  # its class may raise anything from anywhere
            return _kind_text(value)

    def _copy_object(self, value: Any, depth: int) -> Any:
        if isinstance(value, dict):
            members = cast("dict[Any, Any]", value)
            return self._map(members.items(), len(members), depth)
        if _is_named_tuple(value):
            fields: tuple[str, ...] = value._fields
            return self._map(zip(fields, value, strict=True), len(fields), depth)
        if isinstance(value, list | tuple):
            return self._sequence(cast("list[Any]", value), depth)
        if isinstance(value, set | frozenset):
            return sorted(self._sequence(cast("set[Any]", value), depth), key=repr)
        if isinstance(value, enum.Enum):
            return self.copy(value.value, depth + 1)
        if isinstance(value, str):
            return self._text(str.__str__(value))
        if isinstance(value, int):
            number = int.__int__(value)
            fits = _INT_MIN <= number <= _INT_MAX
            return number if fits else f"<int of {number.bit_length():,} bits>"
        if isinstance(value, float):
            return float.__float__(value)
        if isinstance(value, bytes | bytearray):
            size = memoryview(value).nbytes
            return bytes(value) if size <= _SHOWN_BYTES_MAX else f"<{size:,} bytes>"
        if isinstance(value, _TEXT_FORMS):
            return self._text(str(value))
        names = _field_names(value)
        if names is not None:
            pairs = ((name, getattr(value, name, None)) for name in names)
            return self._map(pairs, len(names), depth)
        return self._text(_opaque_text(value))

    def _map(self, pairs: Iterable[tuple[Any, Any]], count: int, depth: int) -> dict[Any, Any]:
        copied: dict[Any, Any] = {}
        for name, value in pairs:
            if self._left <= 0 and self._cut:
                copied["…"] = f"{count - len(copied):,} more"
                break
            key: Any = name
            if type(name) is not str or len(name) > _PLAIN_NAME_MAX or not name.isascii():
                key = self.copy(name, _DEPTH_MAX)
            # JSON has no keys that are booleans.
            copied[key if type(key) in (str, int) else str(key)] = (
                REDACTED if _is_secret(name, value) else self.copy(value, depth + 1)
            )
        return copied

    def _sequence(self, values: Iterable[Any], depth: int) -> list[Any]:
        values = cast("list[Any]", values)
        count = len(values)
        if count == 2 and isinstance(values, list | tuple) and _is_secret(*values):
            return [self.copy(values[0], depth + 1), REDACTED]  # a header, for example
        copied: list[Any] = []
        for value in itertools.islice(values, count):
            if self._left <= 0 and self._cut:
                copied.append(f"… {count - len(copied):,} more")
                break
            copied.append(self.copy(value, depth + 1))
        return copied

    def _text(self, text: str) -> str:
        size = len(text)
        if size > self._left:
            if not self._cut:
                raise CopyTooLarge
            text = f"{excerpt(text, max(self._left, 0))}… ({size:,} characters)"
        elif size > 2:
            text = without_credentials(text)
        self._left -= size
        if not text.isascii():  # it may contain surrogates, which cannot be stored
            text = text.encode(errors="replace").decode()
        return text


def _is_secret(name: Any, value: Any) -> bool:
    if type(name) is not str or value is None or value is True or value is False:
        return False
    if not is_secret_name(name):
        return False
    # A number of tokens is no secret, such as max_tokens.
    return not (isinstance(value, int | float) and "tokens" in name.lower())


def _is_named_tuple(value: Any) -> bool:
    kind: Any = cast(Any, type)(value)
    fields: object = getattr(kind, "_fields", None)
    return isinstance(fields, tuple) and issubclass(kind, tuple)


def _field_names(value: Any) -> tuple[str, ...] | None:
    """Return the names of the fields of an object; None if it has none that are declared."""
    kind: Any = cast(Any, type(value))
    if isinstance(value, type):
        return None
    for attribute in ("__struct_fields__", "__dataclass_fields__", "model_fields"):
        names = getattr(kind, attribute, None)
        if isinstance(names, tuple | dict):
            return tuple(cast("tuple[str, ...]", names))
    return None


def _opaque_text(value: Any) -> str:
    """Return an object as a short text, without its address in memory."""
    text = repr(value)[:_REPR_READ_MAX]
    if any(map(is_secret_name, _WORDS.findall(text))):
        return _kind_text(value)
    shown = excerpt(_ADDRESS.sub("", text), _REPR_CHARS_MAX)
    return shown if shown.startswith("<") else f"{_kind_text(value)} {shown}"


def _kind_text(value: Any) -> str:
    return f"<{type(value).__qualname__[:_KIND_CHARS_MAX]}>"
