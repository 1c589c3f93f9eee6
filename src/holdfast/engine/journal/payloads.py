"""Where packed bytes lie: in an item, or in a blob beside the table where they are large."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.kernel.offload import LARGE_BYTES
from holdfast.errors import InvalidResult, RecordTooLarge, ResultTooLarge
from holdfast.graph.values import durable
from holdfast.records.codec import compress, encode, plain_bytes
from holdfast.records.head import Head
from holdfast.records.journal import Content
from holdfast.records.keys import blob_prefix

__all__ = [
    "INLINE_BYTES_MAX",
    "Packed",
    "check_fits",
    "compressed",
    "contents_of",
    "packed",
    "spilled",
    "unpacked",
]

T = TypeVar("T")

INLINE_BYTES_MAX = 380 * 1024
"""What an item holds where there is no room for blobs; the rest is for keys and attributes."""
_BLOBS_AT_ONCE = 16


async def spilled(kernel: Kernel, head: Head, data: bytes, name: str) -> Content:
    """Return packed bytes as an item can hold them: beside the table where they are large.

    Raises:
        InvalidResult: they are too large, and the store has no room beside the table.
    """
    if len(data) <= kernel.spill_bytes:
        return Content(data)
    blobs = kernel.blobs
    if blobs is not None:
        key = blob_prefix(head.kept, head.key, head.generation) + name
        return Content(None, await blobs.put(data, key=key))
    check_fits(kernel, data)
    return Content(data)


def check_fits(kernel: Kernel, data: bytes) -> None:
    """Check that there is room for packed bytes, in an item or beside the table.

    Raises:
        InvalidResult: there is none.
    """
    if kernel.blobs is None and len(data) > INLINE_BYTES_MAX:
        raise InvalidResult(
            f"this has {len(data):,} bytes once it is compressed, and an item holds at most "
            f"{INLINE_BYTES_MAX:,}; larger values need a bucket: add &bucket=NAME to the address"
        )


async def contents_of(kernel: Kernel, contents: Sequence[Content]) -> list[bytes]:
    """Return the packed bytes of items, those in blobs read side by side.

    Raises:
        RecordTooLarge: a blob has more than can be unpacked.
    """
    for content in contents:
        _check_readable(kernel, content.size - 1)  # less the byte that tells its form
    if all(content.data is not None for content in contents):
        return [content.data or b"" for content in contents]
    room = asyncio.Semaphore(_BLOBS_AT_ONCE)
    blobs = kernel.store.blobs.purpose("journal")

    async def bytes_of(content: Content) -> bytes:
        if content.blob is None:
            return content.data or b""
        async with room:
            return await blobs.get(content.blob)

    return list(await asyncio.gather(*map(bytes_of, contents)))


class Packed(msgspec.Struct, frozen=True):
    """A value as it is kept."""

    value: Any
    """Its durable form."""
    data: bytes
    plain_bytes: int
    """How many bytes it has before compression."""


async def packed(kernel: Kernel, value: Any, *, bytes_max: int) -> Packed:
    """Return a value as it is kept; a large one does not hold up the event loop.

    Raises:
        Oversize: it has more than ``bytes_max`` bytes before compression.
        Misfit, InvalidResult: it cannot be kept.
    """
    size = await kernel.heavy.admitted(value, bytes_max)
    return await kernel.heavy.run(size, _packed, value, bytes_max)


def _packed(value: Any, bytes_max: int) -> Packed:
    kept = durable(value, bytes_max=bytes_max)
    plain = encode(kept)
    return Packed(kept, compress(plain), len(plain))


async def compressed(kernel: Kernel, plain: bytes) -> bytes:
    """Return encoded bytes as they are kept; large ones do not hold up the event loop.

    Raises:
        ResultTooLarge: no process could read them again.
    """
    limit = kernel.limits.record_bytes_max
    if len(plain) > limit:
        raise ResultTooLarge(
            f"this has {len(plain):,} bytes before compression, and record_bytes_max is {limit:,}",
            size=len(plain),
            limit=limit,
        )
    if len(plain) <= LARGE_BYTES:
        return compress(plain)  # nearly every record: it is spared the way through `Heavy`
    return await kernel.heavy.run(len(plain), compress, plain)


async def unpacked(kernel: Kernel, data: bytes, unpack: Callable[[bytes, int], T]) -> T:
    """Return what was packed; a large one does not hold up the event loop.

    Raises:
        RecordTooLarge: it has more bytes than this process may unpack.
        JournalDamaged: these bytes cannot be read.
    """
    size = plain_bytes(data)
    _check_readable(kernel, size)
    return await kernel.heavy.run(size, unpack, data, kernel.limits.record_bytes_max)


def _check_readable(kernel: Kernel, size: int) -> None:
    limit = kernel.limits.record_bytes_max
    if size > limit:
        raise RecordTooLarge(
            f"a record has {size:,} bytes, and record_bytes_max is {limit:,}; if the record is to "
            "be trusted, raise that limit",
            size=size,
            limit=limit,
        )
