"""Wakes those who follow a run in the process that writes it, so that they need not ask."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from holdfast.records.keys import RunKey

__all__ = ["News"]


class News:
    """Tells that there is something new to read of a run, and never what.

    So nothing piles up, and nothing is lost where nobody listens: whoever is woken reads the store.
    """

    def __init__(self) -> None:
        self._listeners: dict[RunKey, set[asyncio.Event]] = {}

    def tell(self, run: RunKey) -> None:
        """Wake whoever listens: the run has new records, or its row has changed."""
        for told in self._listeners.get(run, ()):
            told.set()

    @contextmanager
    def listening(self, run: RunKey, told: asyncio.Event | None = None) -> Generator[asyncio.Event]:
        """Yield what is set whenever there is news; whoever waits for it clears it before reading.

        Cleared after reading, news that came meanwhile would be lost. Who listens to several brings
        one event for all of them.
        """
        told = asyncio.Event() if told is None else told
        listeners = self._listeners.setdefault(run, set())
        listeners.add(told)
        try:
            yield told
        finally:
            listeners.discard(told)
            if not listeners and self._listeners.get(run) is listeners:
                del self._listeners[run]
