"""The signals that waits of one visit are about to take: no other wait may take them meanwhile.

A wait reads the payload of its signal before it takes the signal, and the node may end during the
read. The reservation ends with the node: the next visit takes the signal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from holdfast.engine.execution.waits import Waits
from holdfast.model.signals import Signal

__all__ = ["ReservedSignals"]


class ReservedSignals:
    """The reservations of one visit of a node."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        # By name and id.
        self._reserved: set[tuple[str, str]] = set()
        self._none_left = asyncio.Event()

    @contextmanager
    def reserve(self, signal: Signal) -> Generator[None]:
        """Reserve a signal while its wait prepares to take it; an error frees the signal.

        Without an error the caller must record the taken signal before it awaits anything else.
        """
        key = (signal.name, signal.id)
        self._waits.mark_taking(*key)
        self._reserved.add(key)
        self._none_left.clear()
        try:
            yield
        except BaseException:
            if key in self._reserved:  # otherwise another visit may have reserved it since
                self._waits.unmark_taking(*key)
            raise
        finally:
            self._drop(key)

    async def wait_until_none(self) -> bool:
        """Return when no signal is reserved; return whether any was."""
        waited = bool(self._reserved)
        while self._reserved:
            await self._none_left.wait()
        return waited

    def free_all(self) -> None:
        """Let other visits take the signals, because this one has ended."""
        for key in list(self._reserved):
            self._waits.unmark_taking(*key)
            self._drop(key)

    def _drop(self, key: tuple[str, str]) -> None:
        self._reserved.discard(key)
        if not self._reserved:
            self._none_left.set()
