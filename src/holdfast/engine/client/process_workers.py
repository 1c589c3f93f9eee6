"""The workers of one process: what is started or woken here goes on here, at once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from holdfast.engine.worker.worker import Room, Worker
from holdfast.records.head import Head
from holdfast.records.keys import Place, RunKey

__all__ = ["Crew"]

_REMEMBERED_MAX = 10_000


class Crew:
    """All workers of a process, as those see them who start, wake or cancel runs in it."""

    def __init__(self) -> None:
        self._workers: list[Worker] = []
        self._waiting: OrderedDict[RunKey, Head] = OrderedDict()

    def join(self, worker: Worker) -> None:
        """Take a worker in."""
        self._workers.append(worker)

    def reserve(self, run: RunKey, graph: str, pool: str | None) -> Room | None:
        """Keep room for a run with one of them, if any has room for it."""
        rooms = (worker.reserve(run, graph, pool) for worker in self._workers)
        return next((room for room in rooms if room is not None), None)

    def remember(self, head: Head) -> None:
        """Remember the row of a run that was paused here: who signals it need not read it."""
        self._waiting[head.key] = head
        self._waiting.move_to_end(head.key)
        if len(self._waiting) > _REMEMBERED_MAX:
            self._waiting.popitem(last=False)

    def recall(self, run: RunKey) -> Head | None:
        """Return a row as it once was, if we know it; whoever uses it compares it with what is."""
        return self._waiting.pop(run, None)

    def offer(self, place: Place) -> None:
        """Tell everybody that a run is due."""
        for worker in self._workers:
            worker.offer(place)

    def interrupt(self, run: RunKey) -> None:
        """Tell whoever holds the run that somebody wrote into its journal."""
        for worker in self._workers:
            worker.interrupt(run)

    def hear(self, run: RunKey) -> None:
        """Tell whoever holds the run that a signal came."""
        for worker in self._workers:
            worker.hear(run)

    def holds(self, run: RunKey) -> bool:
        """Return whether one of them drives the run."""
        return any(worker.holds(run) for worker in self._workers)

    async def settled(self, run: RunKey) -> None:
        """Return when the row of a run that has ended here says so."""
        for worker in self._workers:
            await worker.settled(run)

    async def stop(self) -> None:
        """Let all of them leave."""
        await asyncio.gather(*(worker.stop() for worker in self._workers))
