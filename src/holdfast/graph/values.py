"""The durable form of a value: what it is once MessagePack has kept it.

That is None, bool, int, float, str, bytes, list and dict, and nothing else. A date becomes its ISO
text, a decimal or a UUID its text, a tuple or a set a list, an object with fields a dict: whoever
declares the type of a field gets that type back, and under ``Any`` it stays what it became.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import re
import sys
import typing
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from itertools import compress
from typing import Any, NamedTuple, cast

import msgspec

__all__ = [
    "Mismatch",
    "SizeEstimate",
    "TooLarge",
    "check_expanded_size",
    "check_size",
    "converted",
    "deep_copied",
    "durable",
    "estimated_size",
    "is_durable_scalar",
    "pydantic_mismatch",
    "same_bytes",
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

# Kept as they are on the way to MessagePack, which has a form of its own for them.
_NATIVE_TYPES = (bytes,)

# How a subclass of a scalar, such as NumPy's float, is seen as that scalar.
_SCALARS: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: bytes.__bytes__,
}

_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1

# Of what a node returns, none of these is read from text: a node has the objects themselves.
_OBJECTS = (
    bytes,
    bytearray,
    datetime.date,
    datetime.datetime,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    uuid.UUID,
)

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
        _scan(value, bytes_max, texts=True)
    except TooLarge:
        raise
    except Mismatch:
        pass  # `durable` tells that, before anything is copied


def durable(value: Any, *, ordered: bool = False, bytes_max: int | None = None) -> Any:
    """Return the durable form of a value, which shares nothing with it.

    With ``ordered``, or where a set can be seen, what has no order of its own is sorted, so that
    equal values are kept as the same bytes.

    Raises:
        Oversize: it has more than ``bytes_max`` bytes, or holds more than so many bytes may hold.
        Misfit: it has no durable form.
    """
    # First, since every copy takes as much memory again.
    whole, sets = _scan(value, bytes_max, level_max=_LEVEL_MAX)
    try:
        packed = msgspec.msgpack.encode(_builtins(value, ordered=ordered or sets))
        if bytes_max is not None and len(packed) > bytes_max:
            raise TooLarge(len(packed), bytes_max)
        kept = msgspec.msgpack.decode(packed)
    except RecursionError:
        raise Mismatch("", "it is nested too deeply, or holds itself") from None
    except OverflowError:
        raise Mismatch("", "an int beyond 64 bits cannot be kept; keep it as text") from None
    except UnicodeEncodeError:
        raise Mismatch("", "text with a lone surrogate cannot be kept") from None
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise Mismatch("", f"it cannot be kept: {error}") from None
    if not whole:
        _scan(kept, bytes_max)
    return kept


def check_size(kept: Any, size: int, bytes_max: int) -> None:
    """Check that a durable value of so many bytes is not too large.

    Raises:
        Oversize: it is.
    """
    if size > bytes_max:
        raise TooLarge(size, bytes_max)
    if size * _CONTAINER_BYTES > bytes_max:  # or it cannot hold too many
        _scan(kept, bytes_max)


def is_durable_scalar(value: Any) -> bool:
    """Return whether a scalar is its own durable form."""
    if type(value) is str:
        return value.isascii() or _is_unicode(value)
    if type(value) is int:
        return _INT_MIN <= value <= _INT_MAX
    return value is None or type(value) in (bool, float, bytes)


def converted(value: Any, kind: Any, *, objects: bool) -> Any:
    """Return the value as that type has it.

    With ``objects``, dates and the like must be such objects; without, they are read from text
    too, as storage and JSON have them. Nothing else is read from text.

    Raises:
        Misfit: it does not fit the type.
    """
    try:
        return msgspec.convert(
            value, kind, builtin_types=_OBJECTS if objects else None, dec_hook=_decode_hook
        )
    except msgspec.ValidationError as error:
        raise _msgspec_mismatch(str(error)) from None
    except RecursionError:
        raise Mismatch("", "it is nested too deeply, or holds itself") from None
    except (TypeError, ValueError, OverflowError) as error:
        # Not all that does not fit is found by msgspec itself: a set cannot hold a list, say.
        raise Mismatch("", f"it cannot be read as its type: {error}") from None


def deep_copied(value: Any) -> Any:
    """Return a copy of a durable value, so that who changes it does not change the state."""
    return msgspec.to_builtins(value, builtin_types=_NATIVE_TYPES)


def same_bytes(one: Any, other: Any) -> bool:
    """Return whether two durable values are kept as the same bytes."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if type(one) is str or type(one) is bytes:
        return one == other
    # 1, 1.0 and True are equal, also inside of a list, and so are 0.0 and -0.0; NaN is not even
    # equal to itself.
    return msgspec.msgpack.encode(one) == msgspec.msgpack.encode(other)


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


def _builtins(value: Any, *, ordered: bool) -> Any:
    if ordered:
        try:
            return msgspec.to_builtins(
                value, builtin_types=_NATIVE_TYPES, enc_hook=_encode_hook, order="deterministic"
            )
        except TypeError:
            # What cannot be compared is kept as it comes.
            pass
    return msgspec.to_builtins(value, builtin_types=_NATIVE_TYPES, enc_hook=_encode_hook)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _encode_hook(value: Any) -> Any:
    """Return something that can be encoded in the place of what cannot."""
    if hasattr(value, "model_validate") and callable(dump := getattr(value, "model_dump", None)):
        return dump(round_trip=True, by_alias=False, warnings=False)
    for kind, scalar in _SCALARS.items():
        if isinstance(value, kind):
            return scalar(value)
    if isinstance(value, Mapping):
        return dict(cast(Mapping[Any, Any], value))
    raise TypeError(f"there is no durable form for a {type(value).__name__}")


def _decode_hook(kind: Any, value: Any) -> Any:
    """Return a value as a type that msgspec does not know."""
    if isinstance(value, kind):
        return value
    if callable(validate := getattr(kind, "model_validate", None)):
        try:
            return validate(value, by_name=True)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(str(pydantic_mismatch(error, kind))) from None
    raise ValueError(f"expected {kind.__name__}, got {type(value).__name__}")


def _scan(
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
_PLAIN = _KEYS | frozenset(_OBJECTS) - {bytearray}
# Of these there are types without end, none of which holds anything.
_NUMBERS = (int, float, enum.Enum)
_COLLECTIONS = (list, tuple, Set)
# One list of a map's keys and values costs less than two walks, as long as it is short.
_COPIED_MAX = 100
_LEVEL_MAX = 100_000


def _msgspec_mismatch(message: str) -> Mismatch:
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
