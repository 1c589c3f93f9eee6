"""How large and how deeply nested a value is, found out before anything is copied or encoded."""

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
"""How deep a value may be nested: far less than what the decoder can take on a deep stack."""


# For each so many bytes that a value may have, it may hold one list or map: an empty one has one
# byte, and takes 64 in memory.
_CONTAINER_BYTES = 16


# For each so many, it may hold one element of a list, key or value of a map: a short text has three
# bytes, and takes 60 in memory.
_ELEMENT_BYTES = 8


# How many containers are looked at to guess whether a value is large.
_ESTIMATED_CONTAINERS_MAX = 4_096


# Of what a node returns, none of these is read from text: a node has the objects themselves.
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
    """What a quick look at a value tells of its size."""

    bytes: int
    """How many bytes it has at least once it is encoded."""
    is_complete: bool
    """Whether all of it was looked at."""


def estimated_size(value: Any, enough: int) -> SizeEstimate:
    """Return how many bytes a value has at least; stop past ``enough``, or after many containers.

    It also stops where there are more elements than so many bytes may hold. It encodes nothing, and
    costs little however large the value is. What is neither text nor bytes, and holds nothing,
    counts as one byte.
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
            # Long lists of scalars are common: no step of Python for each element.
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
    """Check that a value which a glimpse did not take in whole is not too large written out.

    A list that holds another one ten times is small, and ten of them within one another are not:
    nothing must be encoded before this is known.

    Raises:
        Oversize: it is.
    """
    try:
        scan_value(value, bytes_max, texts=True)
    except TooLarge:
        raise
    except Mismatch:
        pass  # `durable` tells that, before anything is copied


def check_size(kept: Any, size: int, bytes_max: int) -> None:
    """Check that a durable value of so many bytes is not too large.

    Raises:
        Oversize: it is.
    """
    if size > bytes_max:
        raise TooLarge(size, bytes_max)
    if size * _CONTAINER_BYTES > bytes_max:  # or it cannot hold too many
        scan_value(kept, bytes_max)


def scan_value(
    value: Any, bytes_max: int | None, *, level_max: int = sys.maxsize, texts: bool = False
) -> tuple[bool, bool]:
    """Walk through all that a value holds; nothing is copied.

    Return whether all of it was seen and is kept in the shape that it has, and whether there is a
    set in it.

    A level of more than ``level_max`` containers is not walked through: a list that holds itself
    twice has levels without end. With ``texts`` the length of what is text counts, too.

    Raises:
        Oversize: it holds more than ``bytes_max`` bytes may hold.
        Misfit: it is nested too deeply, or a map in it has a key that cannot be kept.
    """
    containers_max = elements_max = sys.maxsize
    if bytes_max is not None:
        containers_max, elements_max = bytes_max // _CONTAINER_BYTES, bytes_max // _ELEMENT_BYTES
    # The value itself is not one that it holds.
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
                if bytes_max is None:  # it is looked at once it is kept
                    continue
            held = _elements_of(parent)
            if not held:  # a scalar of a type of its own, or what cannot be seen
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
    raise Mismatch("", f"it is nested deeper than {_NESTED_MAX} levels, or holds itself")


def _too_many(containers: int, elements: int, bytes_max: int) -> TooLarge:
    count, limit, what = containers, bytes_max // _CONTAINER_BYTES, "lists and maps"
    if count <= limit:
        count, limit, what = elements, bytes_max // _ELEMENT_BYTES, "elements, keys and values"
    return TooLarge(count, limit, f"it holds more than {limit:,} {what}, which is the limit")


def _check_keys(members: Mapping[Any, Any]) -> None:
    for kind in set(map(type, members)):
        # The hashes of tuples can be foreseen, so that a map of them can be made very slow.
        if issubclass(kind, tuple | frozenset):
            raise Mismatch(
                "", f"a key of a map is text, a number, bytes or None, and not a {kind.__name__}"
            )


def _elements_of(value: Any) -> tuple[Collection[Any], ...] | None:
    """Return what a value holds, a map's keys too; None where that cannot be seen."""
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
    """Return those values that are of the wanted types, where these are the types of all."""
    return (
        values if kinds <= wanted else compress(values, map(wanted.__contains__, map(type, values)))
    )


# As it is, but without a word on what may be inside.
_kind_of = cast(Callable[[Any], Any], type)


_ONLY_TEXT = frozenset({str})


_TEXTS = frozenset({str, bytes})


_SETS = frozenset({frozenset, set})


# What a key of a map is kept as.
_KEYS = frozenset({bool, bytes, float, int, str, type(None)})


# What holds nothing else, and is kept as one scalar.
_PLAIN = _KEYS | frozenset(OBJECT_TYPES) - {bytearray}


# Of these there are types without end, none of which holds anything.
_NUMBERS = (int, float, enum.Enum)


_COLLECTIONS = (list, tuple, Set)


# One list of a map's keys and values costs less than two walks, as long as it is short.
_COPIED_MAX = 100


LEVEL_MAX = 100_000
