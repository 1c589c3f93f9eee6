"""The life of a process that works until a signal: it waits for its store, and ends in order."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from holdfast.app import Holdfast
from holdfast.cli.logs import announce, last_words
from holdfast.errors import StoreError

__all__ = ["exit_soon", "handle_signals", "open_when_usable"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# How long the process may take to end after the drain; then it is killed.
_EXIT_GRACE_SECONDS = 3.0
# The backoff between attempts to open a store that may recover.
_BACKOFF_SECONDS = 1.0
_BACKOFF_SECONDS_MAX = 30.0


async def open_when_usable(
    url: str,
    settings: Mapping[str, Any],
    *,
    stop_requested: asyncio.Event,
    who: str,
    on_wait: Callable[[], None] | None = None,
) -> Holdfast | None:
    """Open the store, with retries while it may recover; return None if asked to stop.

    ``on_wait`` is called before each retry.
    """
    backoff_seconds, told = _BACKOFF_SECONDS, ""
    while not stop_requested.is_set():
        try:
            return Holdfast(url, **settings)
        except StoreError as error:
            if not error.is_transient:
                raise
            if error.code != told:
                announce(who, f"{who} waits until it can use {url}: {error}")
            told = error.code
            if on_wait is not None:
                on_wait()
        ending = asyncio.ensure_future(stop_requested.wait())
        await asyncio.wait({ending}, timeout=backoff_seconds)
        ending.cancel()
        backoff_seconds = min(2 * backoff_seconds, _BACKOFF_SECONDS_MAX)
    return None


@contextmanager
def handle_signals(ask: Callable[[], None], *, who: str) -> Generator[None]:
    """Call ``ask`` at the first signal to stop, and end the process at the second.

    The loop's own signal handlers do not suffice: a node that blocks the loop blocks them, too.
    """
    loop = asyncio.get_running_loop()
    stop_requested = False
    farewell = f"{who} ends at once: its runs continue after its lease has expired"

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal stop_requested
        if stop_requested:
            os.write(2, last_words(who, farewell))
            os._exit(128 + number)
        stop_requested = True
        loop.call_soon_threadsafe(ask)

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_soon(code: int) -> None:
    """End the process soon, even if it waits for a thread.

    The threads of nodes are daemons. But Python and the loop wait for threads that a node started
    itself, and for those of ``asyncio.to_thread``.
    """
    timer = threading.Timer(_EXIT_GRACE_SECONDS, os._exit, (code,))
    timer.daemon = True
    timer.start()
