"""`ThreadPool`: a few threads for blocking calls, which keep the event loop free."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from holdfast.errors import StoreClosed, StoreUnavailable

__all__ = ["ThreadPool"]

P = ParamSpec("P")
T = TypeVar("T")


class ThreadPool:
    """Runs at most ``count`` calls at a time; further calls wait."""

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._closed = False
        self._process = os.getpid()
        self._executor = ThreadPoolExecutor(count, thread_name_prefix=f"holdfast-{name}")

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call in a thread. If the caller is cancelled, a call that has begun continues.

        Raises:
            StoreClosed: the pool was closed, or this process was forked after it was opened.
            StoreUnavailable: the machine has no threads left.
        """
        if self._closed:
            raise StoreClosed(f"the {self._name} was used after its Holdfast was closed")
        if os.getpid() != self._process:
            # A fork copies this object but not its threads: the call would never run.
            raise StoreClosed(
                f"the {self._name} was opened before a fork; open it again in this process"
            )
        try:
            future = self._executor.submit(call, *args, **kwargs)
        except RuntimeError as error:  # for example, no thread can be started
            raise StoreUnavailable(f"the {self._name} cannot be used now: {error}") from error
        return await asyncio.wrap_future(future)

    async def close(self) -> None:
        """Refuse further calls, and return when those under way have ended."""
        self._closed = True
        await asyncio.to_thread(self._executor.shutdown)
