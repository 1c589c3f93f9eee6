"""The durable form of a value: what is left of it after a round trip through MessagePack.

It consists only of None, bool, int, float, str, bytes, list and dict. A date becomes its ISO text,
a decimal or a UUID its text, a tuple or a set a list, an object with fields a dict. A field with a
declared type gets the type back when it is read. A field of type ``Any`` does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from holdfast.graph.mismatch import (
    Mismatch,
    TooLarge,
    msgspec_mismatch,
    pydantic_mismatch,
    type_for_people,
)
from holdfast.graph.value_sizes import LEVEL_MAX, OBJECT_TYPES, scan_value

__all__ = [
    "converted",
    "deep_copied",
    "durable",
    "is_durable_scalar",
    "same_bytes",
]


# Passed to MessagePack unchanged: it has its own form for them.
_NATIVE_TYPES = (bytes,)

# Converts a subclass of a scalar, such as a float of NumPy, to that scalar.
_SCALARS: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: bytes.__bytes__,
}

_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1


def durable(value: Any, *, ordered: bool = False, bytes_max: int | None = None) -> Any:
    """Return the durable form of a value. The two share nothing.

    Sets and maps are sorted if ``ordered`` or if the value contains a set, so that equal values
    have the same bytes.

    Raises:
        TooLarge: the value has more than ``bytes_max`` bytes, or too many elements for that size.
        Mismatch: the value has no durable form.
    """
    # Checked first, because each copy takes as much memory again.
    whole, sets = scan_value(value, bytes_max, level_max=LEVEL_MAX)
    try:
        packed = msgspec.msgpack.encode(_builtins(value, ordered=ordered or sets))
        if bytes_max is not None and len(packed) > bytes_max:
            raise TooLarge(len(packed), bytes_max)
        kept = msgspec.msgpack.decode(packed)
    except RecursionError:
        raise Mismatch("", "it is nested too deeply, or contains itself") from None
    except OverflowError:
        raise Mismatch(
            "", "an int beyond 64 bits cannot be stored; convert it to a string"
        ) from None
    except UnicodeEncodeError:
        raise Mismatch("", "a string with a lone surrogate cannot be stored") from None
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise Mismatch("", f"it cannot be stored: {error}") from None
    if not whole:
        scan_value(kept, bytes_max)
    return kept


def is_durable_scalar(value: Any) -> bool:
    """Return whether a scalar is its own durable form."""
    if type(value) is str:
        return value.isascii() or _is_unicode(value)
    if type(value) is int:
        return _INT_MIN <= value <= _INT_MAX
    return value is None or type(value) in (bool, float, bytes)


def converted(value: Any, kind: Any, *, objects: bool) -> Any:
    """Return the value converted to a type.

    With ``objects`` a date, UUID or the like must be such an object. Without it can also be a
    string, as in storage and JSON. No other type is read from a string.

    Raises:
        Mismatch: the value does not fit the type.
    """
    try:
        return msgspec.convert(
            value, kind, builtin_types=OBJECT_TYPES if objects else None, dec_hook=_decode_hook
        )
    except msgspec.ValidationError as error:
        raise msgspec_mismatch(str(error)) from None
    except RecursionError:
        raise Mismatch("", "it is nested too deeply, or contains itself") from None
    except (TypeError, ValueError, OverflowError) as error:
        # msgspec does not find everything itself, for example a list in a set.
        raise Mismatch("", f"it cannot be converted to its type: {error}") from None


def deep_copied(value: Any) -> Any:
    """Return a deep copy of a durable value."""
    return msgspec.to_builtins(value, builtin_types=_NATIVE_TYPES)


def same_bytes(one: Any, other: Any) -> bool:
    """Return whether two durable values have the same bytes."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if type(one) is str or type(one) is bytes:
        return one == other
    # Equality is not enough: 1 == 1.0 == True and 0.0 == -0.0, but NaN != NaN.
    return msgspec.msgpack.encode(one) == msgspec.msgpack.encode(other)


def _builtins(value: Any, *, ordered: bool) -> Any:
    if ordered:
        try:
            return msgspec.to_builtins(
                value, builtin_types=_NATIVE_TYPES, enc_hook=_encode_hook, order="deterministic"
            )
        except TypeError:
            # Values that cannot be compared keep their order.
            pass
    return msgspec.to_builtins(value, builtin_types=_NATIVE_TYPES, enc_hook=_encode_hook)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _encode_hook(value: Any) -> Any:
    """Return an encodable value for one that msgspec cannot encode."""
    if hasattr(value, "model_validate") and callable(dump := getattr(value, "model_dump", None)):
        return dump(round_trip=True, by_alias=False, warnings=False)
    for kind, scalar in _SCALARS.items():
        if isinstance(value, kind):
            return scalar(value)
    if isinstance(value, Mapping):
        return dict(cast(Mapping[Any, Any], value))
    raise TypeError(f"{type_for_people(type(value))} has no durable form")


def _decode_hook(kind: Any, value: Any) -> Any:
    """Return a value converted to a type that msgspec does not know."""
    if isinstance(value, kind):
        return value
    if callable(validate := getattr(kind, "model_validate", None)):
        try:
            return validate(value, by_name=True)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(str(pydantic_mismatch(error, kind))) from None
    raise ValueError(f"expected {kind.__name__}, got {type(value).__name__}")
