"""Waits that end in time."""

from __future__ import annotations

import asyncio
from contextlib import suppress

__all__ = ["wait_at_most"]


async def wait_at_most(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, or the time is up."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(seconds, 0)):
            await event.wait()
