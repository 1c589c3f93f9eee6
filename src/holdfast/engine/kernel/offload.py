"""Encodes, compresses and unpacks large values in threads, few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.graph.mismatch import TooLarge
from holdfast.graph.value_sizes import SizeEstimate, check_expanded_size, estimated_size

__all__ = ["LARGE_BYTES", "ThreadOffload", "fits_event_loop"]

T = TypeVar("T")

LARGE_BYTES = 256 * 1024
"""Up to this size, handing a value to a thread takes longer than the work itself."""
# Each thread holds a value in memory twice, packed and unpacked.
_THREADS_MAX = 2


def fits_event_loop(size: int | SizeEstimate) -> bool:
    """Return whether work on a value of this size may run on the event loop."""
    if isinstance(size, SizeEstimate):
        return size.is_complete and size.bytes <= LARGE_BYTES
    return size <= LARGE_BYTES


class ThreadOffload:
    """Runs work on the large values of one process in threads.

    A thread keeps the event loop free while zstd works, and between two steps of Python. One call
    of msgspec holds the interpreter lock until it is done: only the size limits bound that.
    """

    def __init__(self) -> None:
        self._semaphore = asyncio.Semaphore(_THREADS_MAX)

    async def measure(self, value: Any, bytes_max: int) -> SizeEstimate:
        """Return an estimate of the size of a value, and check it against the limit.

        Raises:
            TooLarge: it has more than ``bytes_max`` bytes, or too many nested lists and maps.
        """
        size = estimated_size(value, bytes_max)
        if size.bytes > bytes_max:
            raise TooLarge(size.bytes, bytes_max)
        if not size.is_complete:
            await self.run(size, check_expanded_size, value, bytes_max)
        return size

    async def run(self, size: int | SizeEstimate, work: Callable[..., T], *args: Any) -> T:
        """Run work on a value of this size, in a thread if it is large; return its result."""
        if fits_event_loop(size):
            return work(*args)
        return await self.run_in_thread(work, *args)

    async def run_in_thread(self, work: Callable[..., T], *args: Any) -> T:
        """Run work in a thread; return its result."""
        await self._semaphore.acquire()
        future = asyncio.ensure_future(asyncio.to_thread(work, *args))
        # A thread cannot be stopped: it counts until it is done, even if its caller was cancelled.
        future.add_done_callback(self._on_done)
        return await asyncio.shield(future)

    def _on_done(self, future: asyncio.Future[Any]) -> None:
        self._semaphore.release()
        if not future.cancelled():
            future.exception()  # retrieved, since the caller may be gone
