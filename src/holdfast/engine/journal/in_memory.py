"""A run that stands nowhere yet but in the memory of its worker: see ``durability="on_pause"``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.engine.journal.endings import Outcome
from holdfast.errors import StoreUnavailable
from holdfast.records.settings import UserHash

__all__ = ["Stood", "Unwritten"]


class Stood(Exception):
    """Another run of the id was there before."""

    def __init__(self, item: Mapping[str, Any]) -> None:
        super().__init__()
        self.item = item


class Unwritten:
    """What becomes of such a run: whoever started it hears once it is written down, or has ended.

    Until then the start is not acknowledged, and so nothing is lost if the worker is.
    """

    def __init__(self, packed: bytes, hash: bytes, user: UserHash | None) -> None:
        self.packed = packed
        """The input, which is written down with the run."""
        self.hash = hash
        self.user = user
        self._known: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()
        # Perhaps nobody is left to hear of it.
        self._known.add_done_callback(lambda known: known.cancelled() or known.exception())

    def when_known(self, then: Callable[[], object]) -> None:
        """Call something once it is known what became of it."""
        self._known.add_done_callback(lambda known: then())

    async def known(self) -> Outcome | None:
        """Return how it ended, or None once it is written down.

        Raises:
            Stood: another run of its id was there before.
            InvalidResult: what it came to is too large to be written down.
            StoreUnavailable: its worker was lost before; start it again.
        """
        return await asyncio.shield(self._known)

    def is_written(self) -> None:
        """Tell that it is durable from now on."""
        self._settle(None)

    def has_ended(self, outcome: Outcome) -> None:
        """Tell that it ended without a pause, and that nothing was written."""
        self._settle(outcome)

    def is_refused(self, error: Exception) -> None:
        """Tell why it cannot be written down: another run has its id, or it is too large."""
        if not self._known.done():
            self._known.set_exception(error)

    def is_lost(self) -> None:
        """Tell that its worker was lost, if nothing else is known."""
        if not self._known.done():
            self._known.set_exception(
                StoreUnavailable("its worker was lost before the run was written down")
            )

    def _settle(self, outcome: Outcome | None) -> None:
        if not self._known.done():
            self._known.set_result(outcome)
