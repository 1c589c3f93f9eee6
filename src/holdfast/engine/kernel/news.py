"""Wakes the readers of a run in the process that writes it, so that they do not have to poll."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from holdfast.records.keys import RunKey

__all__ = ["ChangeNotifier"]


class ChangeNotifier:
    """Tells listeners that a run has changed, but not how: a woken listener reads the store.

    So nothing piles up, and nothing is lost if there are no listeners.
    """

    def __init__(self) -> None:
        self._listeners: dict[RunKey, set[asyncio.Event]] = {}

    def notify(self, run: RunKey) -> None:
        """Wake the listeners: the run has new records, or its row has changed."""
        for event in self._listeners.get(run, ()):
            event.set()

    @contextmanager
    def subscribe(
        self, run: RunKey, event: asyncio.Event | None = None
    ) -> Generator[asyncio.Event]:
        """Yield an event that is set whenever the run changes; clear it before reading the run.

        Clearing it after reading would lose changes that came in between. A listener of several
        runs passes one event for all of them.
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
