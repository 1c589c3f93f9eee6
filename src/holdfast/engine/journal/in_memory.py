"""A run that stands nowhere yet but in the memory of its worker: see ``durability="on_pause"``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.engine.journal.endings import RunOutcome
from holdfast.errors import StoreUnavailable
from holdfast.records.settings import UserHash

__all__ = ["InMemoryRun", "RunExists"]


class RunExists(Exception):
    """Another run of the id was there before."""

    def __init__(self, item: Mapping[str, Any]) -> None:
        super().__init__()
        self.item = item


class InMemoryRun:
    """What becomes of such a run: whoever started it hears once it is written down, or has ended.

    Until then the start is not acknowledged, and so nothing is lost if the worker is.
    """

    def __init__(self, packed_input: bytes, input_hash: bytes, user: UserHash | None) -> None:
        self.packed_input = packed_input
        """The input, which is written down with the run."""
        self.input_hash = input_hash
        self.user = user
        self._outcome: asyncio.Future[RunOutcome | None] = (
            asyncio.get_running_loop().create_future()
        )
        # Perhaps nobody is left to hear of it.
        self._outcome.add_done_callback(lambda known: known.cancelled() or known.exception())

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Call something once it is known what became of it."""
        self._outcome.add_done_callback(lambda known: callback())

    async def wait(self) -> RunOutcome | None:
        """Return how it ended, or None once it is written down.

        Raises:
            Stood: another run of its id was there before.
            InvalidResult: what it came to is too large to be written down.
            StoreUnavailable: its worker was lost before; start it again.
        """
        return await asyncio.shield(self._outcome)

    def mark_written(self) -> None:
        """Tell that it is durable from now on."""
        self._resolve(None)

    def mark_ended(self, outcome: RunOutcome) -> None:
        """Tell that it ended without a pause, and that nothing was written."""
        self._resolve(outcome)

    def mark_refused(self, error: Exception) -> None:
        """Tell why it cannot be written down: another run has its id, or it is too large."""
        if not self._outcome.done():
            self._outcome.set_exception(error)

    def mark_lost(self) -> None:
        """Tell that its worker was lost, if nothing else is known."""
        if not self._outcome.done():
            self._outcome.set_exception(
                StoreUnavailable("its worker was lost before the run was written down")
            )

    def _resolve(self, outcome: RunOutcome | None) -> None:
        if not self._outcome.done():
            self._outcome.set_result(outcome)
