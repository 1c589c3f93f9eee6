"""The encoding of an item's attributes: MessagePack, with extension types for numbers and sets.

Equal items have equal bytes, whatever the order of their attributes.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import msgspec

from holdfast.storage.item import DEPTH_MAX, Item, Value
from holdfast.storage.layout import PK, SK

__all__ = ["Unreadable", "decode_attributes", "decode_item", "encode_attributes"]

# Extension codes. They are in existing files: never renumber them.
_NUMBER = 1
_STRINGS = 2
_NUMBERS = 3
_BYTES = 4

_INT64_MIN = -(2**63)
_INT64_MAX = 2**63 - 1
_NATIVE_TYPES = frozenset({str, bytes, bool, type(None)})
_UNCHECKED_TYPES = _NATIVE_TYPES | {int}
_LEAF_TYPES = _UNCHECKED_TYPES | {Decimal, frozenset}
# A number has at most 38 digits, with up to 125 zeros after or 130 before them.
_NUMBER_TEXT = re.compile(r"-?[0-9]{1,200}(\.[0-9]{1,200})?([eE][+-]?[0-9]{1,3})?")


def encode_attributes(item: Item) -> bytes:
    """Return the bytes of a canonical item."""
    for value in item.values():
        if type(value) not in _NATIVE_TYPES and not _is_native(value):
            return _encoder.encode({name: _packable(value) for name, value in item.items()})
    return _encoder.encode(item)


class Unreadable(ValueError):
    """The bytes are not the encoding of an item."""


def decode_attributes(body: bytes | None) -> Item:
    """Return the attributes from their bytes.

    A file may be damaged or hostile: the result is always one that `encode_attributes` accepts.

    Raises:
        Unreadable: the bytes are not the encoding of an item.
    """
    if body is None:
        raise Unreadable("its body is too long, or not bytes")
    try:
        item = _decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError, TypeError, ValueError) as error:
        raise Unreadable(str(error)) from None
    for value in item.values():
        if type(value) not in _UNCHECKED_TYPES:
            _check_nested(value, 1)
    return item


def decode_item(pk: str, sk: str, body: bytes | None) -> Item:
    """Return an item from its row.

    Raises:
        Unreadable: the row is not that of an item.
    """
    attributes = decode_attributes(body)
    if PK in attributes or SK in attributes:
        raise Unreadable("its body must not contain a key")
    return {PK: pk, SK: sk, **attributes}


def _check_nested(value: Any, depth: int) -> None:
    kind: type[Any] = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind in _LEAF_TYPES:
        return
    if depth > DEPTH_MAX:
        raise Unreadable(f"it is nested deeper than {DEPTH_MAX} levels")
    if kind is list:
        elements = value
    elif kind is dict:
        elements = value.values()
        if not all(type(name) is str for name in value):
            raise Unreadable("a name in it is not text")
    else:
        raise Unreadable(f"it contains a {kind.__name__}")
    for element in elements:
        _check_nested(element, depth + 1)


def _is_native(value: Value) -> bool:
    """Return whether MessagePack can encode the value without an extension."""
    return type(value) in _NATIVE_TYPES or (
        type(value) is int and _INT64_MIN <= value <= _INT64_MAX
    )


def _packable(value: Value) -> Any:
    if _is_native(value):
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
        elements: list[Any] = [_number(text) for text in _texts_decoder.decode(data)]
    elif code == _STRINGS:
        elements = _texts_decoder.decode(data)
    elif code == _BYTES:
        elements = _bytes_decoder.decode(data)
    else:
        raise Unreadable(f"it has the unknown extension {code}")
    if not elements:
        raise Unreadable("it contains an empty set")
    return frozenset(elements)


def _number(text: str) -> int | Decimal:
    found = _NUMBER_TEXT.fullmatch(text)
    if found is None:
        raise Unreadable(f"it contains {text!r:.40}, which is not a number")
    return int(text) if found.groups() == (None, None) else Decimal(text)


_texts_decoder = msgspec.msgpack.Decoder(list[str])
_bytes_decoder = msgspec.msgpack.Decoder(list[bytes])
_encoder = msgspec.msgpack.Encoder(order="sorted")
_decoder = msgspec.msgpack.Decoder(dict[str, Any], ext_hook=_unpacked)
