"""A run that exists only in the memory of its worker so far: see ``durability="on_pause"``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.engine.journal.endings import RunOutcome
from holdfast.errors import StoreUnavailable
from holdfast.records.settings import UserHash

__all__ = ["InMemoryRun", "RunExists"]


class RunExists(Exception):
    """There is another run with this id."""

    def __init__(self, item: Mapping[str, Any]) -> None:
        super().__init__()
        self.item = item


class InMemoryRun:
    """The outcome of such a run: its starter is told when it is written, or has ended.

    Until then the start is not acknowledged, so nothing is lost if the worker dies.
    """

    def __init__(self, packed_input: bytes, input_hash: bytes, user: UserHash | None) -> None:
        self.packed_input = packed_input
        """The input, which is written with the run."""
        self.input_hash = input_hash
        self.user = user
        self._outcome: asyncio.Future[RunOutcome | None] = (
            asyncio.get_running_loop().create_future()
        )
        # Retrieved, since the starter may be gone.
        self._outcome.add_done_callback(lambda known: known.cancelled() or known.exception())

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Call a function when the outcome is known."""
        self._outcome.add_done_callback(lambda known: callback())

    async def wait(self) -> RunOutcome | None:
        """Return how the run ended, or None when it was written.

        Raises:
            RunExists: there is another run with its id.
            InvalidResult: its records are too large to be written.
            StoreUnavailable: its worker was lost before that; start it again.
        """
        return await asyncio.shield(self._outcome)

    def mark_written(self) -> None:
        """Tell the starter that the run is durable now."""
        self._resolve(None)

    def mark_ended(self, outcome: RunOutcome) -> None:
        """Tell the starter that the run ended without a pause, and nothing was written."""
        self._resolve(outcome)

    def mark_refused(self, error: Exception) -> None:
        """Tell the starter why the run cannot be written: its id is taken, or it is too large."""
        if not self._outcome.done():
            self._outcome.set_exception(error)

    def mark_lost(self) -> None:
        """Tell the starter that the worker was lost, unless the outcome is known."""
        if not self._outcome.done():
            self._outcome.set_exception(
                StoreUnavailable("the worker was lost before the run was written; start it again")
            )

    def _resolve(self, outcome: RunOutcome | None) -> None:
        if not self._outcome.done():
            self._outcome.set_result(outcome)
