"""Wakes those who follow a run in the process that writes it, so that they need not ask."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from holdfast.records.keys import RunKey

__all__ = ["ChangeNotifier"]


class ChangeNotifier:
    """Tells that there is something new to read of a run, and never what.

    So nothing piles up, and nothing is lost where nobody listens: whoever is woken reads the store.
    """

    def __init__(self) -> None:
        self._listeners: dict[RunKey, set[asyncio.Event]] = {}

    def notify(self, run: RunKey) -> None:
        """Wake whoever listens: the run has new records, or its row has changed."""
        for event in self._listeners.get(run, ()):
            event.set()

    @contextmanager
    def subscribe(
        self, run: RunKey, event: asyncio.Event | None = None
    ) -> Generator[asyncio.Event]:
        """Yield what is set whenever there is news; whoever waits for it clears it before reading.

        Cleared after reading, news that came meanwhile would be lost. Who listens to several brings
        one event for all of them.
        """
        event = asyncio.Event() if event is None else event
        listeners = self._listeners.setdefault(run, set())
        listeners.add(event)
        try:
            yield event
        finally:
            listeners.discard(event)
            if not listeners and self._listeners.get(run) is listeners:
                del self._listeners[run]
