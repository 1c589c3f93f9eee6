"""Waits for tasks and events of a worker, each for a limited time."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.clock import Clock

__all__ = ["CANCEL_GRACE_SECONDS", "cancel_tasks", "sleep_or_wake", "wait_for_tasks"]

CANCEL_GRACE_SECONDS = 1.0
"""How long a cancelled task may take to end: a node may ignore that it is cancelled."""


async def sleep_or_wake(clock: Clock, seconds: float, event: asyncio.Event) -> None:
    """Return when the event is set, at the latest after so many seconds."""
    sleep = asyncio.ensure_future(clock.sleep(seconds))
    wake = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((sleep, wake), return_when=asyncio.FIRST_COMPLETED)
    finally:
        sleep.cancel()
        wake.cancel()


async def wait_for_tasks(*tasks: asyncio.Task[Any], seconds_max: float) -> None:
    """Return when all tasks have ended, at the latest after so many seconds."""
    if tasks:
        await asyncio.wait(tasks, timeout=seconds_max)


async def cancel_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks; return when all of them have ended, or the grace period is over."""
    for task in tasks:
        task.cancel()
    await wait_for_tasks(*tasks, seconds_max=CANCEL_GRACE_SECONDS)
