"""Whoever looks after the money of a fleet: retries runs that share a budget, and alters slices."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.errors import (
    BudgetShared,
    NotRetryable,
    RunEnded,
    RunNotFound,
    StoreError,
)
from holdfast.records.head import ENDED
from tests.simulation.effects import SLICE_TOKENS, Outside
from tests.simulation.oracle import MOST_TOKENS, budget_of

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from tests.simulation.process import Process

__all__ = ["Treasurer"]

SECONDS = 5.0
"""How often it looks."""


class Treasurer:
    """Acts on runs that nobody's script names, since another run started them."""

    def __init__(self, outside: Outside, seen: Counter[str], leaving: asyncio.Event) -> None:
        self._outside = outside
        self._seen = seen
        self._leaving = leaving

    async def work(self, hf: Holdfast, process: Process) -> None:
        """Look after everything now and then."""
        while not self._leaving.is_set():
            await process.clock.sleep(SECONDS * (0.5 + process.ids.random()))
            for id in _open(self._outside.torn):
                with suppress(StoreError):
                    await self._mend(hf, id)
            for id in _open(self._outside.slices):
                with suppress(StoreError):
                    await self._alter(hf, id)

    async def _mend(self, hf: Holdfast, id: str) -> None:
        """Retry a run that has failed; from then on it does not fail any more.

        One that is retried when its parent has ended would wait for money for ever.
        """
        try:
            row = await hf.run(id).get()
            over = (await hf.run(row.parent or id).get()).status in ENDED
            if row.status == "failed" and not over:
                self._outside.mended.add(id)
                await hf.run(id).retry()
                self._seen["failed child retried"] += 1
            elif row.status in ENDED:
                self._outside.torn[id] = False
            elif over:
                await hf.run(id).cancel()
        except (RunNotFound, RunEnded, NotRetryable):
            return

    async def _alter(self, hf: Holdfast, id: str) -> None:
        """Try to give a run more than was set aside for it, and let it have less."""
        try:
            await hf.run(id).set_budget(budget_of(5 * SLICE_TOKENS))
        except BudgetShared:
            self._seen["slice not raised"] += 1
        except (RunEnded, RunNotFound):
            self._outside.slices[id] = False
            return
        with suppress(RunEnded, RunNotFound):
            await hf.run(id).set_budget(budget_of(SLICE_TOKENS - MOST_TOKENS))
            self._seen["slice lowered"] += 1
        self._outside.slices[id] = False


def _open(runs: dict[str, bool]) -> list[str]:
    return [id for id, is_open in runs.items() if is_open]
