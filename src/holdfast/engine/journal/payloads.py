"""Stores packed values: small ones in an item, large ones in a blob."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.kernel.offload import LARGE_BYTES
from holdfast.errors import InvalidResult, RecordTooLarge, ResultTooLarge, StoreError
from holdfast.graph.values import durable
from holdfast.records.blob_keys import blob_prefix
from holdfast.records.codec import compress, encode, plain_bytes
from holdfast.records.head import Head
from holdfast.records.journal import Content
from holdfast.storage import Blobs

__all__ = [
    "INLINE_BYTES_MAX",
    "PackedValue",
    "check_fits",
    "compress_payload",
    "delete_orphaned_blob",
    "load_payloads",
    "pack_payload",
    "spill_if_large",
    "unpack_payload",
]

T = TypeVar("T")

INLINE_BYTES_MAX = 380 * 1024
"""The limit of a value in an item without a bucket; the rest is for keys and attributes."""
_CONCURRENT_READS_MAX = 16


async def spill_if_large(kernel: Kernel, head: Head, data: bytes, name: str) -> Content:
    """Return packed bytes as the content of an item; write large ones to a blob first.

    Raises:
        InvalidResult: they are too large for an item, and the store has no bucket.
    """
    if len(data) <= kernel.spill_bytes:
        return Content(data)
    blobs = kernel.blobs
    if blobs is not None:
        key = blob_prefix(head.kept, head.key, head.generation) + name
        return Content(None, await blobs.put(data, key=key))
    check_fits(kernel, data)
    return Content(data)


async def delete_orphaned_blob(blobs: Blobs | None, content: Content) -> None:
    """Delete a blob whose item was not written; if the store fails, a sweep deletes it later."""
    if content.blob is not None and blobs is not None:
        with suppress(StoreError):
            await blobs.delete(content.blob.key)


def check_fits(kernel: Kernel, data: bytes) -> None:
    """Check that packed bytes fit into an item, or that the store has a bucket.

    Raises:
        InvalidResult: they do not fit.
    """
    if kernel.blobs is None and len(data) > INLINE_BYTES_MAX:
        raise InvalidResult(
            f"this has {len(data):,} bytes after compression, and an item holds at most "
            f"{INLINE_BYTES_MAX:,}; larger values need a bucket: add &bucket=NAME to the address"
        )


async def load_payloads(kernel: Kernel, contents: Sequence[Content]) -> list[bytes]:
    """Return the packed bytes of items; read their blobs concurrently.

    Raises:
        RecordTooLarge: a blob has more bytes than this process may unpack.
    """
    for content in contents:
        _check_readable(kernel, content.size - 1)  # without the byte that tells its format
    if all(content.data is not None for content in contents):
        return [content.data or b"" for content in contents]
    semaphore = asyncio.Semaphore(_CONCURRENT_READS_MAX)
    blobs = kernel.store.blobs.with_purpose("journal")

    async def bytes_of(content: Content) -> bytes:
        if content.blob is None:
            return content.data or b""
        async with semaphore:
            return await blobs.get(content.blob)

    return list(await asyncio.gather(*map(bytes_of, contents)))


class PackedValue(msgspec.Struct, frozen=True):
    """A value as it is stored."""

    value: Any
    """Its durable form."""
    data: bytes
    plain_bytes: int
    """Its size before compression."""


async def pack_payload(kernel: Kernel, value: Any, *, bytes_max: int) -> PackedValue:
    """Encode and compress a value; a large one in a thread.

    Raises:
        TooLarge: it has more than ``bytes_max`` bytes before compression.
        Mismatch, InvalidResult: it cannot be stored.
    """
    size = await kernel.offload.measure(value, bytes_max)
    return await kernel.offload.run(size, _pack, value, bytes_max)


def _pack(value: Any, bytes_max: int) -> PackedValue:
    durable_value = durable(value, bytes_max=bytes_max)
    plain = encode(durable_value)
    return PackedValue(durable_value, compress(plain), len(plain))


async def compress_payload(kernel: Kernel, plain: bytes) -> bytes:
    """Compress encoded bytes; large ones in a thread.

    Raises:
        ResultTooLarge: they exceed the limit up to which records are read.
    """
    limit = kernel.limits.record_bytes_max
    if len(plain) > limit:
        raise ResultTooLarge(
            f"this has {len(plain):,} bytes before compression, and record_bytes_max is {limit:,}",
            size=len(plain),
            limit=limit,
        )
    if len(plain) <= LARGE_BYTES:
        return compress(plain)  # nearly every record: saves the detour through the offload
    return await kernel.offload.run(len(plain), compress, plain)


async def unpack_payload(kernel: Kernel, data: bytes, unpack: Callable[[bytes, int], T]) -> T:
    """Unpack a value; a large one in a thread.

    Raises:
        RecordTooLarge: it has more bytes than this process may unpack.
        JournalDamaged: the bytes cannot be decoded.
    """
    size = plain_bytes(data)
    _check_readable(kernel, size)
    return await kernel.offload.run(size, unpack, data, kernel.limits.record_bytes_max)


def _check_readable(kernel: Kernel, size: int) -> None:
    limit = kernel.limits.record_bytes_max
    if size > limit:
        raise RecordTooLarge(
            f"a record has {size:,} bytes, and record_bytes_max is {limit:,}; if you trust the "
            "record, raise that limit",
            size=size,
            limit=limit,
        )
