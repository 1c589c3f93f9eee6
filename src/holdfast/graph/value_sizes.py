"""Measures and limits the size and the depth of values before they are copied or encoded."""

from __future__ import annotations

import datetime
import decimal
import enum
import sys
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from itertools import compress
from typing import Any, NamedTuple, cast

from holdfast.graph.mismatch import Mismatch, TooLarge

__all__ = [
    "LEVEL_MAX",
    "OBJECT_TYPES",
    "SizeEstimate",
    "check_expanded_size",
    "check_size",
    "estimated_size",
    "scan_value",
]

_NESTED_MAX = 100
"""How deep a value may be nested. The decoder could take far more."""

# A value may contain one list or map for each 16 bytes of its limit: an empty one has 1 byte
# encoded, and 64 bytes in memory.
_CONTAINER_BYTES = 16

# It may contain one element, key or value for each 8 bytes of its limit: a short string has 3 bytes
# encoded, and 60 bytes in memory.
_ELEMENT_BYTES = 8

# An estimate stops after this many containers.
_ESTIMATED_CONTAINERS_MAX = 4_096

# A node returns these as objects: its strings are not parsed as one of them.
OBJECT_TYPES = (
    bytes,
    bytearray,
    datetime.date,
    datetime.datetime,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    uuid.UUID,
)


class SizeEstimate(NamedTuple):
    """A lower bound for the size of a value."""

    bytes: int
    """The encoded value has at least this many bytes."""
    is_complete: bool
    """Whether the estimate covers the whole value."""


def estimated_size(value: Any, enough: int) -> SizeEstimate:
    """Return a lower bound for the encoded size of a value.

    The count stops above ``enough`` bytes, at too many elements for that size, or after many
    containers. So it costs little, however large the value is, and encodes nothing. A scalar other
    than a string or bytes counts as one byte.
    """
    if type(value) is str or type(value) is bytes:
        return SizeEstimate(1 + len(value), is_complete=True)
    total, containers, elements, whole = 1, 0, 0, True
    left: list[Any] = [] if type(value) in _PLAIN else [value]
    while left and total <= enough and containers < _ESTIMATED_CONTAINERS_MAX:
        containers += 1
        held = _elements_of(left.pop())
        if held is None:
            whole = False
            continue
        for each in held:
            size = len(each)
            total, elements = total + size, elements + size
            if total > enough or elements * _ELEMENT_BYTES > enough:
                return SizeEstimate(total, is_complete=False)
            # Long lists of scalars are common: avoid a Python loop over the elements.
            kinds = set(map(type, each))
            if kinds == _ONLY_TEXT:
                total += sum(map(len, each))
                continue
            if not kinds.isdisjoint(_TEXTS):
                total += sum(map(len, _of_kinds(each, _TEXTS, kinds)))
            if not kinds <= _PLAIN:
                left += _of_kinds(each, kinds - _PLAIN, kinds)
    return SizeEstimate(total, is_complete=whole and not left)


def check_expanded_size(value: Any, bytes_max: int) -> None:
    """Check that a value is not too large when it is encoded. Use it if an estimate is incomplete.

    A list that contains the same list ten times is small in memory, but ten levels of that are not
    when encoded. So the size must be checked before anything is encoded.

    Raises:
        TooLarge: the value is too large.
    """
    try:
        scan_value(value, bytes_max, texts=True)
    except TooLarge:
        raise
    except Mismatch:
        pass  # `durable` reports other faults, before it copies anything


def check_size(kept: Any, size: int, bytes_max: int) -> None:
    """Check that a durable value of ``size`` bytes is not too large.

    Raises:
        TooLarge: the value is too large, or has too many elements for ``bytes_max``.
    """
    if size > bytes_max:
        raise TooLarge(size, bytes_max)
    if size * _CONTAINER_BYTES > bytes_max:  # a smaller value cannot have too many elements
        scan_value(kept, bytes_max)


def scan_value(
    value: Any, bytes_max: int | None, *, level_max: int = sys.maxsize, texts: bool = False
) -> tuple[bool, bool]:
    """Check the size and the depth of a value without copying it.

    Return whether the scan covered the whole value and the value keeps its shape when stored, and
    whether it contains a set.

    Without ``bytes_max`` the scan stops at a level of more than ``level_max`` containers: a list
    that contains itself twice doubles at each level. With ``texts`` strings count by their length.

    Raises:
        TooLarge: the value has too many elements for ``bytes_max``.
        Mismatch: the value is nested too deeply, or a key of a map cannot be stored.
    """
    containers_max = elements_max = sys.maxsize
    if bytes_max is not None:
        containers_max, elements_max = bytes_max // _CONTAINER_BYTES, bytes_max // _ELEMENT_BYTES
    # Starts at -1: the value itself does not count.
    whole, sets, containers, elements, letters = True, False, -1, 0, 0
    level: list[Any] = [] if type(value) in _PLAIN else [value]
    for _ in range(_NESTED_MAX + 1):
        if not level:
            return whole, sets
        if len(level) > level_max and bytes_max is None:
            return False, sets
        found: list[Any] = []
        for parent in level:
            kind = _kind_of(parent)
            if kind is dict:
                if not _KEYS.issuperset(map(type, parent)):
                    _check_keys(parent)
                    whole = False
            elif kind in _SETS:
                sets = True
            elif kind is not list and kind is not tuple:
                whole = False
                if bytes_max is None:  # checked after it was converted
                    continue
            held = _elements_of(parent)
            if not held:  # a scalar of another type, or an opaque object
                continue
            containers += 1
            for each in held:
                elements += len(each)
                if elements > elements_max or containers > containers_max:
                    raise _too_many(containers, elements, cast(int, bytes_max))
                if texts:
                    letters += sum(map(len, _of_kinds(each, _TEXTS, set(map(type, each)))))
                    if bytes_max is not None and letters > bytes_max:
                        raise TooLarge(letters, bytes_max)
                if not _PLAIN.issuperset(map(type, each)):
                    kinds = set(map(type, each))
                    found += _of_kinds(each, kinds - _PLAIN, kinds)
        level = found
    raise Mismatch("", f"it is nested deeper than {_NESTED_MAX} levels, or contains itself")


def _too_many(containers: int, elements: int, bytes_max: int) -> TooLarge:
    count, limit, what = containers, bytes_max // _CONTAINER_BYTES, "lists and maps"
    if count <= limit:
        count, limit, what = elements, bytes_max // _ELEMENT_BYTES, "elements, keys and values"
    return TooLarge(count, limit, f"it has more than {limit:,} {what}, which is the limit")


def _check_keys(members: Mapping[Any, Any]) -> None:
    for kind in set(map(type, members)):
        # Hashes of tuples are predictable, so crafted keys could make a map very slow.
        if issubclass(kind, tuple | frozenset):
            raise Mismatch(
                "", f"keys of maps must be strings, numbers, bytes or None, got a {kind.__name__}"
            )


def _elements_of(value: Any) -> tuple[Collection[Any], ...] | None:
    """Return the elements, keys and values in a value; None if they cannot be seen."""
    kind = _kind_of(value)
    if kind is dict:
        if len(value) > _COPIED_MAX:
            return value.keys(), value.values()
        return ([*value, *value.values()],)
    if kind is list or kind is tuple or kind in _SETS:
        return (value,)
    if isinstance(value, _NUMBERS):
        return ()
    if (names := getattr(kind, "__struct_fields__", None)) is None:
        names = getattr(kind, "__dataclass_fields__", None)
    if names is not None:
        return ([getattr(value, name, None) for name in names],)
    if isinstance(value, Mapping):
        mapping = cast(Mapping[Any, Any], value)
        return mapping.keys(), mapping.values()
    if isinstance(value, _COLLECTIONS):
        return (cast(Collection[Any], value),)
    if hasattr(kind, "model_fields"):
        extra = cast(dict[str, Any] | None, value.__pydantic_extra__)
        return cast(dict[str, Any], vars(value)).values(), (extra or {}).values()
    return None


def _of_kinds(values: Collection[Any], wanted: Set[type], kinds: set[type]) -> Iterable[Any]:
    """Return the values of the wanted types. ``kinds`` are the types of all values."""
    return (
        values if kinds <= wanted else compress(values, map(wanted.__contains__, map(type, values)))
    )


# type(), typed so that it tells nothing about elements.
_kind_of = cast(Callable[[Any], Any], type)
_ONLY_TEXT = frozenset({str})
_TEXTS = frozenset({str, bytes})
_SETS = frozenset({frozenset, set})

# The types of stored keys of maps.
_KEYS = frozenset({bool, bytes, float, int, str, type(None)})

# Types that contain nothing, and are stored as one scalar.
_PLAIN = _KEYS | frozenset(OBJECT_TYPES) - {bytearray}

# These have any number of subclasses, and contain nothing.
_NUMBERS = (int, float, enum.Enum)
_COLLECTIONS = (list, tuple, Set)

# Up to this size one list of a map's keys and values is faster than two loops.
_COPIED_MAX = 100
LEVEL_MAX = 100_000
