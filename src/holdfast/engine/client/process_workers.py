"""The workers of one process: they drive the runs that this process starts or wakes, at once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from holdfast.engine.worker.claims import SlotReservation
from holdfast.engine.worker.hook_calls import HookCalls
from holdfast.engine.worker.worker import Worker
from holdfast.records.head import Head
from holdfast.records.index_keys import IndexKey
from holdfast.records.keys import RunKey

__all__ = ["ProcessWorkers"]

_CACHED_HEADS_MAX = 10_000


class ProcessWorkers:
    """All workers of a process. Implements `LocalWorkers` for code that starts or wakes runs."""

    def __init__(self, hooks: HookCalls) -> None:
        self._hooks = hooks
        self._workers: list[Worker] = []
        self._cached_heads: OrderedDict[RunKey, Head] = OrderedDict()

    def add(self, worker: Worker) -> None:
        """Add a worker of this process, and forget those that have stopped."""
        self._workers = [each for each in self._workers if not each.stopped.is_set()]
        self._workers.append(worker)

    def reserve(self, run: RunKey, graph: str, pool: str | None) -> SlotReservation | None:
        """Reserve a slot for a run in one of the workers, if any has one free."""
        slots = (worker.claims.reserve(run, graph, pool) for worker in self._workers)
        return next((slot for slot in slots if slot is not None), None)

    def cache_head(self, head: Head) -> None:
        """Keep the row of a run that paused here: a signal from this process need not read it."""
        self._cached_heads[head.key] = head
        self._cached_heads.move_to_end(head.key)
        if len(self._cached_heads) > _CACHED_HEADS_MAX:
            self._cached_heads.popitem(last=False)

    def take_cached_head(self, run: RunKey) -> Head | None:
        """Return the cached row. It may be stale: use it only in conditional writes."""
        return self._cached_heads.pop(run, None)

    def offer(self, place: IndexKey) -> None:
        """Let every worker try to claim a run that is due."""
        for worker in self._workers:
            worker.claims.offer(place)

    def interrupt(self, run: RunKey) -> None:
        """Tell the driver of a run that another process wrote into the run's journal."""
        for worker in self._workers:
            worker.drivers.interrupt(run)

    def on_signal(self, run: RunKey) -> None:
        """Tell the driver of a run that a signal came."""
        for worker in self._workers:
            worker.drivers.on_signal(run)

    def on_cancelled(self, head: Head) -> None:
        """Report that this process cancelled a run that no worker had claimed."""
        self._hooks.on_closed(head)

    def has_claimed(self, run: RunKey) -> bool:
        """Return whether one of the workers drives the run."""
        return any(worker.drivers.has_driver(run) for worker in self._workers)

    def has_worker(self, id: str | None) -> bool:
        """Return whether one of the workers has that name."""
        return id is not None and any(worker.id == id for worker in self._workers)

    def node_of(self, run: RunKey) -> str | None:
        """Return the node at which a run stands in one of the workers; None if none drives it."""
        nodes = (worker.drivers.node_of(run) for worker in self._workers)
        return next((node for node in nodes if node is not None), None)

    async def wait_for_exit(self, run: RunKey) -> None:
        """Return when the row of a run that has ended here says so."""
        for worker in self._workers:
            await worker.drivers.wait_for_exit(run)

    async def stop(self) -> None:
        """Stop all workers."""
        await asyncio.gather(*(worker.stop() for worker in self._workers))
