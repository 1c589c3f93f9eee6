"""Encodes values as bytes: MessagePack, compressed if that is smaller.

The first byte names the encoding of the rest, so that it can change while old records stay
readable.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Sequence
from typing import Any, Union, cast, get_args

import msgspec
import zstandard

from holdfast.errors import ArgumentsTooLarge, InvalidResult, JournalDamaged, RecordTooLarge
from holdfast.model.event import CallFinished, CallIntended, Event, RecordedCall, RecordedIntent
from holdfast.redaction import has_callback, without_callbacks
from holdfast.storage import PRICES, PriceList

__all__ = [
    "arguments_digest",
    "canonical_hash",
    "compress",
    "encode",
    "pack",
    "plain_bytes",
    "spill_threshold_bytes",
    "unpack_events",
    "unpack_recorded_events",
    "unpack_value",
]

_PLAIN = b"\x00"
_ZSTD = b"\x01"
# Below this size the overhead of a frame is more than compression saves.
_COMPRESSED_BYTES_MIN = 96
_LEVEL = 3
# The default limit on the uncompressed size of a record.
_PLAIN_BYTES_MAX = 32 * 1024 * 1024

# The depth limit for arguments that MessagePack cannot encode: they may contain themselves.
_DEPTH_MAX = 100
_BIG_INT, _NO_UNICODE = 1, 2

_encoder = msgspec.msgpack.Encoder()
_sorting_encoder = msgspec.msgpack.Encoder(order="sorted")
_value_decoder = msgspec.msgpack.Decoder()
# Skips the arguments of calls: only a history shows them.
_event_decoder = msgspec.msgpack.Decoder(list[Event])
_WITH_ARGUMENTS: dict[type, type] = {CallFinished: RecordedCall, CallIntended: RecordedIntent}
_recorded_event: Any = Union[  # noqa: UP007 - made of a tuple
    tuple(_WITH_ARGUMENTS.get(kind, kind) for kind in get_args(Event))
]
_recorded_event_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
    list[_recorded_event]
)


class _Zstd(threading.local):
    """One compressor for each thread: compressors are not thread-safe."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self.decompressor = zstandard.ZstdDecompressor()


_zstd = _Zstd()


def encode(value: Any) -> bytes:
    """Return events or a plain value as uncompressed bytes.

    Raises:
        InvalidResult: the value cannot be encoded.
    """
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidResult(f"the value cannot be stored: {error}") from None


def compress(plain: bytes) -> bytes:
    """Return encoded bytes in the form in which they are stored."""
    if len(plain) >= _COMPRESSED_BYTES_MIN:
        compressed = _zstd.compressor.compress(plain)
        if len(compressed) < len(plain):
            return _ZSTD + compressed
    return _PLAIN + plain


def pack(value: Any) -> bytes:
    """Return a value in the form in which it is stored.

    Raises:
        InvalidResult: the value cannot be encoded.
    """
    return compress(encode(value))


def unpack_events(data: bytes, bytes_max: int = _PLAIN_BYTES_MAX) -> list[Event]:
    """Return the events in packed bytes.

    Raises:
        RecordTooLarge: they have more than ``bytes_max`` bytes uncompressed.
        JournalDamaged: the bytes are not events.
    """
    return _decoded(data, _event_decoder, bytes_max)


def unpack_recorded_events(data: bytes, bytes_max: int = _PLAIN_BYTES_MAX) -> list[Event]:
    """Return the events in packed bytes, those of calls as `RecordedCall` and `RecordedIntent`.

    Raises:
        RecordTooLarge: they have more than ``bytes_max`` bytes uncompressed.
        JournalDamaged: the bytes are not events.
    """
    return _decoded(data, _recorded_event_decoder, bytes_max)


def unpack_value(data: bytes, bytes_max: int = _PLAIN_BYTES_MAX) -> Any:
    """Return the value in packed bytes.

    Raises:
        RecordTooLarge: it has more than ``bytes_max`` bytes uncompressed.
        JournalDamaged: the bytes are not a value.
    """
    return _decoded(data, _value_decoder, bytes_max)


def plain_bytes(data: bytes) -> int:
    """Return the uncompressed size of packed bytes, without decompressing them.

    Raises:
        JournalDamaged: the bytes do not have their size.
    """
    if data[:1] != _ZSTD:
        return max(len(data) - 1, 0)
    try:
        size = zstandard.frame_content_size(memoryview(data)[1:])
    except zstandard.ZstdError as error:
        raise JournalDamaged(f"a record cannot be read: {error}") from error
    if size < 0:
        # All written frames have their size. Without it the memory for a record has no limit.
        raise JournalDamaged("a record does not have its uncompressed size")
    return size


def canonical_hash(parts: Sequence[Any]) -> bytes:
    """Return a hash that is the same for equal values, in any order of their keys."""
    try:
        data = _sorting_encoder.encode(parts)
    except TypeError:  # keys that are not strings cannot be sorted
        data = _encoder.encode(_ordered(parts))
    return hashlib.sha256(data).digest()[:16]


def arguments_digest(arguments: Any, bytes_max: int | None = None, *, tool: str = "") -> bytes:
    """Return a hash of the arguments of a call. A value that cannot be encoded counts as its type.

    All addresses of callbacks of one server count as the same: a node that runs again makes another
    one for the same signal. The error names the ``tool``.

    Raises:
        ArgumentsTooLarge: the arguments have more than ``bytes_max`` bytes.
    """
    try:
        data = hashed = _arguments_encoder.encode(arguments)
        if has_callback(data):
            hashed = _fallback_encoding(_value_decoder.decode(data), sys.maxsize, tool)
    except (TypeError, ValueError, OverflowError, RecursionError):
        data = hashed = _fallback_encoding(
            arguments, _PLAIN_BYTES_MAX if bytes_max is None else bytes_max, tool
        )
    if bytes_max is not None and len(data) > bytes_max:
        raise _too_large(len(data), bytes_max, tool)
    return hashlib.blake2b(hashed, digest_size=8).digest()


def _kind_of(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _too_large(size: int, limit: int, tool: str) -> ArgumentsTooLarge:
    whose = f"a call of {tool!r}" if tool else "a call"
    return ArgumentsTooLarge(
        f"the arguments of {whose} have {size:,} bytes; PayloadLimits.arguments_bytes_max is "
        f"{limit:,}",
        size=size,
        limit=limit,
    )


def _fallback_encoding(arguments: Any, bytes_max: int, tool: str) -> bytes:
    """Return bytes, only for a hash, of arguments without the tokens of callbacks in them.

    They may have ints beyond 64 bits or strings that are not Unicode, or contain themselves.

    Raises:
        ArgumentsTooLarge: they have more than ``bytes_max`` bytes.
    """
    tokens: list[bytes] = []
    size = 0
    left: list[tuple[Any, int]] = [(arguments, 0)]
    while left:
        value, depth = left.pop()
        held = _parts(value)
        token = (
            _hashable_token(value)
            if held is None
            else _encoder.encode([_kind_of(value), len(held)])
        )
        tokens.append(token)
        size += len(token)
        if held is None or depth > _DEPTH_MAX:
            continue
        if size + len(held) > bytes_max:
            raise _too_large(size + len(held), bytes_max, tool)
        left += [(each, depth + 1) for each in held]
    return b"".join(tokens)


def _parts(value: Any) -> Sequence[Any] | None:
    """Return the elements of a value in a stable order; None for a scalar."""
    if isinstance(value, list | tuple):
        return cast(Sequence[Any], value)
    if isinstance(value, dict):
        members = cast(dict[Any, Any], value)
        keys = sorted(members, key=_hashable_token)
        return [*keys, *(members[key] for key in keys)]
    if isinstance(value, set | frozenset):
        return sorted(cast(set[Any], value), key=_hashable_token)
    names = getattr(value, "__struct_fields__", None) or getattr(value, "__dataclass_fields__", ())
    return [getattr(value, name, None) for name in names] or None


def _hashable_token(value: Any) -> bytes:
    if isinstance(value, str):
        value = without_callbacks(value)
    elif isinstance(value, bytes) and has_callback(value):
        value = without_callbacks(value.decode("latin-1"))
    try:
        return _arguments_encoder.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        if isinstance(value, int):
            data = value.to_bytes(value.bit_length() // 8 + 1, signed=True)
            return _encoder.encode(msgspec.msgpack.Ext(_BIG_INT, data))
        if isinstance(value, str):
            data = value.encode(errors="surrogatepass")
            return _encoder.encode(msgspec.msgpack.Ext(_NO_UNICODE, data))
        return _encoder.encode(_kind_of(value))


_arguments_encoder = msgspec.msgpack.Encoder(order="deterministic", enc_hook=_kind_of)


def _ordered(value: Any) -> Any:
    """Return a value with its maps as lists, sorted by the bytes of their keys."""
    if isinstance(value, dict):
        pairs = cast(dict[Any, Any], value).items()
        return sorted(
            ([_encoder.encode(name), _ordered(kept)] for name, kept in pairs), key=_first_of_pair
        )
    if isinstance(value, list | tuple):
        return [_ordered(element) for element in cast(list[Any], value)]
    return value


def _first_of_pair(pair: list[Any]) -> bytes:
    return pair[0]


def spill_threshold_bytes(prices: PriceList = PRICES) -> int:
    """Return the size from which a blob is cheaper than an item of the table."""
    put = prices.blob_puts_thousand_usd / 1_000
    write_unit = prices.write_units_million_usd / 1_000_000
    return round(put / write_unit) * 1024


def _decoded(data: bytes, decoder: msgspec.msgpack.Decoder[Any], bytes_max: int) -> Any:
    form, size = data[:1], plain_bytes(data)
    if size > bytes_max:
        raise RecordTooLarge(
            f"a record has {size:,} bytes uncompressed; record_bytes_max is {bytes_max:,}: raise "
            "that limit if you trust the record",
            size=size,
            limit=bytes_max,
        )
    try:
        if form == _ZSTD:
            # Raises if there is more data than the frame says.
            return decoder.decode(_zstd.decompressor.decompress(memoryview(data)[1:]))
        if form == _PLAIN:
            return decoder.decode(memoryview(data)[1:])
    except (
        msgspec.MsgspecError,
        zstandard.ZstdError,
        RecursionError,
        ValueError,
        TypeError,
    ) as error:
        raise JournalDamaged(f"a record cannot be read: {error}") from error
    raise JournalDamaged(f"a record has the unknown encoding {form!r}; a newer release may read it")
