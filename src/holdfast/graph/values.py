"""The durable form of a value: what it is once MessagePack has kept it.

That is None, bool, int, float, str, bytes, list and dict, and nothing else. A date becomes its ISO
text, a decimal or a UUID its text, a tuple or a set a list, an object with fields a dict: whoever
declares the type of a field gets that type back, and under ``Any`` it stays what it became.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from holdfast.graph.mismatch import Mismatch, TooLarge, msgspec_mismatch, pydantic_mismatch
from holdfast.graph.value_sizes import LEVEL_MAX, OBJECT_TYPES, scan_value

__all__ = [
    "converted",
    "deep_copied",
    "durable",
    "is_durable_scalar",
    "same_bytes",
]


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


def durable(value: Any, *, ordered: bool = False, bytes_max: int | None = None) -> Any:
    """Return the durable form of a value, which shares nothing with it.

    With ``ordered``, or where a set can be seen, what has no order of its own is sorted, so that
    equal values are kept as the same bytes.

    Raises:
        Oversize: it has more than ``bytes_max`` bytes, or holds more than so many bytes may hold.
        Misfit: it has no durable form.
    """
    # First, since every copy takes as much memory again.
    whole, sets = scan_value(value, bytes_max, level_max=LEVEL_MAX)
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
    """Return the value as that type has it.

    With ``objects``, dates and the like must be such objects; without, they are read from text
    too, as storage and JSON have them. Nothing else is read from text.

    Raises:
        Misfit: it does not fit the type.
    """
    try:
        return msgspec.convert(
            value, kind, builtin_types=OBJECT_TYPES if objects else None, dec_hook=_decode_hook
        )
    except msgspec.ValidationError as error:
        raise msgspec_mismatch(str(error)) from None
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
