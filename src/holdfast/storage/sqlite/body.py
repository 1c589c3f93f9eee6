"""An item's attributes as bytes: MessagePack, with extension types for what it lacks.

The bytes are the same for equal items, whatever order their attributes came in.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec

from holdfast.storage.item import Item, Value

__all__ = ["decoded", "encoded"]

# Extension codes. They are in files on people's disks: never renumber them.
_NUMBER = 1
_STRINGS = 2
_NUMBERS = 3
_BYTES = 4

_INT64_MIN = -(2**63)
_INT64_MAX = 2**63 - 1
_PLAIN = frozenset({str, bytes, bool, type(None)})


def encoded(item: Item) -> bytes:
    """Return the bytes of a canonical item."""
    for value in item.values():
        if type(value) not in _PLAIN and not _is_plain(value):
            return _encoder.encode({name: _packable(value) for name, value in item.items()})
    return _encoder.encode(item)


def decoded(body: bytes) -> Item:
    """Return the item of which these are the bytes."""
    return _decoder.decode(body)


def _is_plain(value: Value) -> bool:
    """Return whether MessagePack holds the value as it is."""
    return type(value) in _PLAIN or (type(value) is int and _INT64_MIN <= value <= _INT64_MAX)


def _packable(value: Value) -> Any:
    if _is_plain(value):
        return value
    if type(value) is list:
        return [_packable(element) for element in value]
    if type(value) is dict:
        return {name: _packable(element) for name, element in value.items()}
    if type(value) is frozenset:
        return _packed_set(sorted(value))
    return msgspec.msgpack.Ext(_NUMBER, str(value).encode())


def _packed_set(elements: list[Any]) -> msgspec.msgpack.Ext:
    match elements[0]:
        case str():
            return msgspec.msgpack.Ext(_STRINGS, _encoder.encode(elements))
        case bytes():
            return msgspec.msgpack.Ext(_BYTES, _encoder.encode(elements))
        case _:
            return msgspec.msgpack.Ext(_NUMBERS, _encoder.encode([str(e) for e in elements]))


def _unpacked(code: int, data: memoryview) -> Value:
    if code == _NUMBER:
        return _number(bytes(data).decode())
    if code == _NUMBERS:
        return frozenset(_number(text) for text in msgspec.msgpack.decode(data))
    return frozenset(msgspec.msgpack.decode(data))


def _number(text: str) -> int | Decimal:
    return int(text) if text.lstrip("-").isdigit() else Decimal(text)


_encoder = msgspec.msgpack.Encoder(order="sorted")
_decoder = msgspec.msgpack.Decoder(dict[str, Any], ext_hook=_unpacked)
