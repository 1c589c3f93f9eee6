"""Work on large values: in a thread, and few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.graph.values import Glimpse, Oversize, check_extent, glimpse

__all__ = ["LARGE_BYTES", "Heavy", "is_light"]

T = TypeVar("T")

LARGE_BYTES = 256 * 1024
"""Up to here it takes less time to encode, compress or unpack than to hand it to a thread."""
# So much is held in memory twice, packed and unpacked, at the most.
_AT_ONCE = 2


def is_light(size: int | Glimpse) -> bool:
    """Return whether work on so many bytes may be done on the event loop."""
    if isinstance(size, Glimpse):
        return size.whole and size.bytes <= LARGE_BYTES
    return size <= LARGE_BYTES


class Heavy:
    """Encodes, compresses and unpacks large values of one process.

    A thread keeps the event loop free while zstd works, and between two steps of Python. One call
    of msgspec holds the interpreter until it is done: only the limits on values bound that.
    """

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def admitted(self, value: Any, bytes_max: int) -> Glimpse:
        """Return the size of a value that may be encoded, as far as a glimpse tells it.

        Raises:
            Oversize: it has more than ``bytes_max`` bytes, or holds too many lists and maps.
        """
        size = glimpse(value, bytes_max)
        if size.bytes > bytes_max:
            raise Oversize(size.bytes, bytes_max)
        if not size.whole:
            await self.run(size, check_extent, value, bytes_max)
        return size

    async def run(self, size: int | Glimpse, work: Callable[..., T], *args: Any) -> T:
        """Return what ``work`` returns, which handles so many bytes."""
        if is_light(size):
            return work(*args)
        return await self.apart(work, *args)

    async def apart(self, work: Callable[..., T], *args: Any) -> T:
        """Return what ``work`` returns, which is done in a thread."""
        await self._room.acquire()
        working = asyncio.ensure_future(asyncio.to_thread(work, *args))
        # A thread cannot be stopped: it keeps its room until it is done, also where its caller was
        # cancelled.
        working.add_done_callback(self._done)
        return await asyncio.shield(working)

    def _done(self, working: asyncio.Future[Any]) -> None:
        self._room.release()
        if not working.cancelled():
            working.exception()  # no caller may be left to hear of it
