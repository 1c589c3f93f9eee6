"""Limits how many signals one process delivers to one run at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from holdfast.records.keys import RunKey

__all__ = ["CONCURRENT_DELIVERIES_MAX", "DeliveryLimiter"]

CONCURRENT_DELIVERIES_MAX = 16
"""Senders check the inbox limit before they write, so this many may exceed it at once."""

_CONCURRENT_READS_MAX = 2


class DeliveryLimiter:
    """Makes the signals to one run wait for one another if there are many."""

    def __init__(self) -> None:
        self.journal_reads = asyncio.Semaphore(_CONCURRENT_READS_MAX)
        """Held while a journal is read to find out whether a signal was taken before, because that
        needs as much memory as the run."""
        self._semaphores: dict[RunKey, asyncio.Semaphore] = {}
        self._senders: dict[RunKey, int] = {}

    @asynccontextmanager
    async def acquire(self, run: RunKey) -> AsyncGenerator[None, None]:
        """Wait until few enough other senders deliver to the run."""
        semaphore = self._semaphores.setdefault(run, asyncio.Semaphore(CONCURRENT_DELIVERIES_MAX))
        self._senders[run] = self._senders.get(run, 0) + 1
        try:
            async with semaphore:
                yield
        finally:
            self._senders[run] -= 1
            if not self._senders[run]:
                del self._senders[run], self._semaphores[run]
