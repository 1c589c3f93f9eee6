"""A few threads for calls that block, so that the event loop does not."""

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
    """At most that many calls at once; further ones wait for their turn."""

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._closed = False
        self._process = os.getpid()
        self._executor = ThreadPoolExecutor(count, thread_name_prefix=f"holdfast-{name}")

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Make the call in a thread. If the caller is cancelled, a call that has begun goes on.

        Raises:
            StoreClosed: after `close`, or in a process that was forked since.
            StoreUnavailable: the machine has no threads left.
        """
        if self._closed:
            raise StoreClosed(f"the {self._name} was used after it was closed")
        if os.getpid() != self._process:
            # A fork copies this object but not its threads: nobody would ever answer.
            raise StoreClosed(f"the {self._name} was opened before a fork; open it anew here")
        try:
            future = self._executor.submit(call, *args, **kwargs)
        except RuntimeError as error:  # no thread can be started, say
            raise StoreUnavailable(f"the {self._name} cannot be used now: {error}") from error
        return await asyncio.wrap_future(future)

    async def close(self) -> None:
        """Take no further calls, and return when those under way have ended."""
        self._closed = True
        await asyncio.to_thread(self._executor.shutdown)
