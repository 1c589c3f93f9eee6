"""What runs beside a worker, from its start to its stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TypeAlias

__all__ = ["Companion", "Companions"]

Companion: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]
"""Makes something that runs until its block ends."""


class Companions:
    """Starts and stops what runs beside a worker."""

    def __init__(self, companions: Sequence[Companion]) -> None:
        self._companions = companions
        self._running = AsyncExitStack()

    async def start(self) -> None:
        """Start all, in order."""
        for make in self._companions:
            await self._running.enter_async_context(make())

    async def stop(self) -> None:
        """Stop all that were started, the last one first."""
        await self._running.aclose()
