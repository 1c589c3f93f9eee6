"""Where packed bytes lie: in an item, or in a blob beside the table where they are large."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast.engine.kernel import Kernel
from holdfast.errors import InvalidResult
from holdfast.records.codec import compress
from holdfast.records.head import Head
from holdfast.records.journal import Content
from holdfast.records.keys import blob_prefix

__all__ = ["INLINE_BYTES_MAX", "check_fits", "compressed", "contents_of", "spilled"]

INLINE_BYTES_MAX = 380 * 1024
"""What an item holds where there is no room for blobs; the rest is for keys and attributes."""
# Up to here it takes less time to compress than to hand it to a thread.
_COMPRESSED_INLINE_BYTES_MAX = 256 * 1024
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
    """Return the packed bytes of items, those in blobs read side by side."""
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


async def compressed(plain: bytes) -> bytes:
    """Return encoded bytes as they are kept; large ones do not hold up the event loop."""
    if len(plain) <= _COMPRESSED_INLINE_BYTES_MAX:
        return compress(plain)
    return await asyncio.to_thread(compress, plain)
