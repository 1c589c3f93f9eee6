"""The workers of one process: what is started or woken here goes on here, at once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from holdfast.engine.worker.worker import SlotReservation, Worker
from holdfast.records.head import Head
from holdfast.records.index_keys import IndexKey
from holdfast.records.keys import RunKey

__all__ = ["ProcessWorkers"]

_CACHED_HEADS_MAX = 10_000


class ProcessWorkers:
    """All workers of a process, as those see them who start, wake or cancel runs in it."""

    def __init__(self) -> None:
        self._workers: list[Worker] = []
        self._cached_heads: OrderedDict[RunKey, Head] = OrderedDict()

    def add(self, worker: Worker) -> None:
        """Take a worker in."""
        self._workers.append(worker)

    def reserve(self, run: RunKey, graph: str, pool: str | None) -> SlotReservation | None:
        """Keep room for a run with one of them, if any has room for it."""
        slots = (worker.reserve(run, graph, pool) for worker in self._workers)
        return next((slot for slot in slots if slot is not None), None)

    def cache_head(self, head: Head) -> None:
        """Remember the row of a run that was paused here: who signals it need not read it."""
        self._cached_heads[head.key] = head
        self._cached_heads.move_to_end(head.key)
        if len(self._cached_heads) > _CACHED_HEADS_MAX:
            self._cached_heads.popitem(last=False)

    def take_cached_head(self, run: RunKey) -> Head | None:
        """Return a row as it once was, if we know it; whoever uses it compares it with what is."""
        return self._cached_heads.pop(run, None)

    def offer(self, place: IndexKey) -> None:
        """Tell everybody that a run is due."""
        for worker in self._workers:
            worker.offer(place)

    def interrupt(self, run: RunKey) -> None:
        """Tell whoever holds the run that somebody wrote into its journal."""
        for worker in self._workers:
            worker.interrupt(run)

    def on_signal(self, run: RunKey) -> None:
        """Tell whoever holds the run that a signal came."""
        for worker in self._workers:
            worker.on_signal(run)

    def has_claimed(self, run: RunKey) -> bool:
        """Return whether one of them drives the run."""
        return any(worker.has_claimed(run) for worker in self._workers)

    async def wait_for_exit(self, run: RunKey) -> None:
        """Return when the row of a run that has ended here says so."""
        for worker in self._workers:
            await worker.wait_for_exit(run)

    async def stop(self) -> None:
        """Let all of them leave."""
        await asyncio.gather(*(worker.stop() for worker in self._workers))
