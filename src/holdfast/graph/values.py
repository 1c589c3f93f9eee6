"""The durable form of a value: what it is once MessagePack has kept it.

That is None, bool, int, float, str, bytes, list and dict, and nothing else. A date becomes its ISO
text, a decimal or a UUID its text, a tuple or a set a list, an object with fields a dict: whoever
declares the type of a field gets that type back, and under ``Any`` it stays what it became.
"""

from __future__ import annotations

import datetime
import decimal
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, NamedTuple, cast

import msgspec

__all__ = [
    "Glimpse",
    "Misfit",
    "Oversize",
    "check_extent",
    "check_size",
    "complaint",
    "converted",
    "durable",
    "glimpse",
    "plainly_durable",
    "same",
    "separate",
]

_NESTED_MAX = 100
"""How deep a value may be nested: far less than what the decoder can take on a deep stack."""

# For each so many bytes that a value may have, it may hold one list or map: an empty one has one
# byte, and takes 64 in memory.
_CONTAINER_BYTES = 16

# How many containers are looked at to guess whether a value is large.
_GLIMPSED_MAX = 4_096

# Kept as they are on the way to MessagePack, which has a form of its own for them.
_KEPT = (bytes,)

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

_REASON_MAX = 500


class Misfit(Exception):
    """A value does not fit its place in the state."""

    def __init__(self, field: str, reason: str) -> None:
        self.field = field.removeprefix(".")
        """The path to it; empty where it is the whole."""
        self.reason = reason[:_REASON_MAX]
        super().__init__(f"{self.field}: {self.reason}" if field else self.reason)

    def within(self, field: str) -> Misfit:
        """Return the same, seen from outside of that field."""
        joint = "" if not self.field or self.field.startswith("[") else "."
        return Misfit(f"{field}{joint}{self.field}", self.reason)


class Oversize(Misfit):
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


class Glimpse(NamedTuple):
    """What a quick look at a value tells of its size."""

    bytes: int
    """How many bytes it has at least once it is encoded."""
    whole: bool
    """Whether all of it was looked at."""


def glimpse(value: Any, enough: int) -> Glimpse:
    """Return how many bytes a value has at least; stop past ``enough``, or after many containers.

    It encodes nothing, and costs little however large the value is. What is neither text nor bytes
    nor a list or dict counts as one byte.
    """
    if type(value) is str or type(value) is bytes:
        return Glimpse(1 + len(value), whole=True)
    total, containers = 0, 0
    left: list[Any] = [value]
    while left and total <= enough and containers < _GLIMPSED_MAX:
        each = left.pop()
        total += 1
        if type(each) is str or type(each) is bytes:
            total += len(each)
            continue
        if type(each) is dict:
            members = cast(dict[Any, Any], each)
            size = 2 * len(members)
            elements: list[Any] = [*members, *members.values()] if size <= enough else []
        elif type(each) is list or type(each) is tuple:
            elements = cast(list[Any], each)
            size = len(elements)
        else:
            continue
        containers += 1
        if total + size > enough:
            return Glimpse(total + size, whole=False)
        kinds = set(map(type, elements))
        if _CONTAINERS.isdisjoint(kinds):
            # Long lists of scalars are common: no step of Python for each element.
            total += size
            if kinds == {str}:
                total += sum(map(len, elements))
            elif not kinds.isdisjoint(_TEXTS):
                total += sum(len(text) for text in elements if type(text) in _TEXTS)
        else:
            left += elements
    return Glimpse(total, whole=not left)


def check_extent(value: Any, bytes_max: int) -> None:
    """Check that a value which a glimpse did not take in whole is not too large written out.

    A list that holds another one ten times is small, and ten of them within one another are not:
    nothing must be encoded before this is known. What one list or dict holds more than once is
    looked at once.

    Raises:
        Oversize: it is.
    """
    total, containers, limit = 0, 0, bytes_max // _CONTAINER_BYTES
    left: list[tuple[Any, int]] = [(value, 1)]
    while left:
        each, times = left.pop()
        if type(each) is dict:
            members = cast(dict[Any, Any], each)
            elements: Iterable[Any] = chain(members, members.values())
        else:
            elements = cast(Iterable[Any], each if type(each) in _CONTAINERS else (each,))
        containers += times
        held: dict[int, list[Any]] = {}
        for element in elements:
            total += times
            if type(element) in _TEXTS:
                total += times * len(element)
            elif type(element) in _CONTAINERS:
                held.setdefault(id(element), []).append(element)
        left += [(alike[0], times * len(alike)) for alike in held.values()]
        if total > bytes_max:
            raise Oversize(total, bytes_max)
        if containers > limit:
            raise _too_many(containers, limit)


def durable(value: Any, *, ordered: bool = False, bytes_max: int | None = None) -> Any:
    """Return the durable form of a value, which shares nothing with it.

    With ``ordered``, or where a set can be seen, what has no order of its own is sorted, so that
    equal values are kept as the same bytes.

    Raises:
        Oversize: it has more than ``bytes_max`` bytes.
        Misfit: it has no durable form.
    """
    try:
        packed = msgspec.msgpack.encode(_builtins(value, ordered=ordered or _holds_set(value)))
        if bytes_max is not None and len(packed) > bytes_max:
            raise Oversize(len(packed), bytes_max)
        kept = msgspec.msgpack.decode(packed)
    except RecursionError:
        raise Misfit("", "it is nested too deeply, or holds itself") from None
    except OverflowError:
        raise Misfit("", "an int beyond 64 bits cannot be kept; keep it as text") from None
    except UnicodeEncodeError:
        raise Misfit("", "text with a lone surrogate cannot be kept") from None
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise Misfit("", f"it cannot be kept: {error}") from None
    _check_depth(kept, bytes_max)
    return kept


def check_size(kept: Any, size: int, bytes_max: int) -> None:
    """Check that a durable value of so many bytes is not too large.

    Raises:
        Oversize: it is.
    """
    if size > bytes_max:
        raise Oversize(size, bytes_max)
    if size * _CONTAINER_BYTES > bytes_max:  # or it cannot hold too many
        _check_depth(kept, bytes_max)


def plainly_durable(value: Any) -> bool:
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
            value, kind, builtin_types=_OBJECTS if objects else None, dec_hook=_richer
        )
    except msgspec.ValidationError as error:
        raise _misfit(str(error)) from None
    except RecursionError:
        raise Misfit("", "it is nested too deeply, or holds itself") from None


def separate(value: Any) -> Any:
    """Return a copy of a durable value, so that who changes it does not change the state."""
    return msgspec.to_builtins(value, builtin_types=_KEPT)


def same(one: Any, other: Any) -> bool:
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


def complaint(error: ValueError) -> Misfit:
    """Return what pydantic has to say, in one line and with the field in front."""
    errors = cast(Any, getattr(error, "errors", None))
    if not callable(errors):
        return Misfit("", str(error))
    (field, reason), *others = [
        (".".join(map(str, each["loc"])), str(each["msg"])) for each in cast(list[Any], errors())
    ]
    return Misfit(field, "; ".join([reason, *(f"{name}: {why}" for name, why in others)]))


def _builtins(value: Any, *, ordered: bool) -> Any:
    if ordered:
        try:
            return msgspec.to_builtins(
                value, builtin_types=_KEPT, enc_hook=_simpler, order="deterministic"
            )
        except TypeError:
            # What cannot be compared is kept as it comes.
            pass
    return msgspec.to_builtins(value, builtin_types=_KEPT, enc_hook=_simpler)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _simpler(value: Any) -> Any:
    """Return something that can be encoded in the place of what cannot."""
    if hasattr(value, "model_validate") and callable(dump := getattr(value, "model_dump", None)):
        return dump(round_trip=True, by_alias=False, warnings=False)
    for kind, scalar in _SCALARS.items():
        if isinstance(value, kind):
            return scalar(value)
    if isinstance(value, Mapping):
        return dict(cast(Mapping[Any, Any], value))
    raise TypeError(f"there is no durable form for a {type(value).__name__}")


def _richer(kind: Any, value: Any) -> Any:
    """Return a value as a type that msgspec does not know."""
    if isinstance(value, kind):
        return value
    if callable(validate := getattr(kind, "model_validate", None)):
        try:
            return validate(value, by_name=True)
        except ValueError as error:
            raise ValueError(str(complaint(error))) from None
    raise ValueError(f"expected {kind.__name__}, got {type(value).__name__}")


def _check_depth(kept: Any, bytes_max: int | None) -> None:
    level, containers = [kept], 0
    for _ in range(_NESTED_MAX):
        level = _within(level)
        if not level:
            return
        containers += len(level)
        if bytes_max is not None and containers * _CONTAINER_BYTES > bytes_max:
            raise _too_many(containers, bytes_max // _CONTAINER_BYTES)
    raise Misfit("", f"it is nested deeper than {_NESTED_MAX} levels")


def _too_many(containers: int, limit: int) -> Oversize:
    return Oversize(
        containers, limit, f"it holds more than {limit:,} lists and maps, which is the limit"
    )


def _holds_set(value: Any) -> bool:
    level = [value]
    for _ in range(_NESTED_MAX):
        if not _SETS.isdisjoint(map(type, level)):
            return True
        level = _within(level)
        # A list that holds itself twice would grow without end, and is refused anyway.
        if not level or len(level) > _LEVEL_MAX:
            break
    return False


_TEXTS = frozenset({str, bytes})
_SETS = frozenset({frozenset, set})
_CONTAINERS = frozenset({dict, list, tuple}) | _SETS
_LEVEL_MAX = 100_000


def _within(level: list[Any]) -> list[Any]:
    """Return the containers that these containers hold."""
    found: list[Any] = []
    for parent in level:
        if type(parent) is dict:
            children = cast(dict[Any, Any], parent).values()
        elif type(parent) is list or type(parent) is tuple:
            children = cast(list[Any], parent)
        else:
            continue
        # Long lists of numbers are common, and this looks at them without a step of Python each.
        if not _CONTAINERS.isdisjoint(map(type, children)):
            found.extend(child for child in children if type(child) in _CONTAINERS)
    return found


def _misfit(message: str) -> Misfit:
    """Return msgspec's complaint with the path in front."""
    path = ""
    if found := _PATH.search(message):
        path, message = found[1], message[: found.start()]
    if missing := _MISSING.fullmatch(message):
        path, message = f"{path}.{missing[1]}", "it is missing"
    return Misfit(path, message)
