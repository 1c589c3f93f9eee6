"""A worker without a rhythm of its own, and a Holdfast that makes such workers."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from holdfast.app import Holdfast
from holdfast.engine.worker.options import WorkerOptions
from holdfast.engine.worker.poll_order import PartitionOrder
from holdfast.engine.worker.requeuing import index_key_of
from holdfast.engine.worker.worker import Worker
from holdfast.records.index_keys import due_after
from holdfast.records.review import notice_due_ms_of, notice_partitions

__all__ = ["KitHoldfast", "KitWorker"]

# The kit tells its workers when to poll, and their leases outlast every test: a clock that jumps
# over days must neither end a lease nor wake a worker for each poll in between.
_NEVER_SECONDS = 900_000_000.0
_KILL_SECONDS_MAX = 1.0


class KitWorker(Worker):
    """A worker that polls and reaps when it is told to, and that can be killed."""

    def __init__(self, kernel: Any, graphs: Any, options: WorkerOptions, **parts: Any) -> None:
        graphs = tuple(graphs)
        options = msgspec.structs.replace(options, lease=_NEVER_SECONDS, poll=_NEVER_SECONDS)
        super().__init__(kernel, graphs, options, **parts)
        self._graphs = graphs
        self._partition_order = PartitionOrder(
            sorted({graph.name for graph in graphs}), options.pools
        )

    @property
    def is_running(self) -> bool:
        """Whether it was started, and neither stopped nor killed."""
        return self._heartbeat_task is not None and not self.draining

    def serves(self, graph: str, pool: str | None) -> bool:
        """Return whether it claims runs of this graph in this pool."""
        return graph in self._programs and pool in tuple(self._options.pools)

    @property
    def busy_threads(self) -> int:
        """How many threads run code of its nodes and calls."""
        return self._owner.threads.busy

    def poll_now(self) -> None:
        """Look for due runs, without waiting for the time of the next poll."""
        self._owner.wake.set()

    async def find_next_due_ms(self) -> int | None:
        """Return when the next run or notice becomes due after now; None if none is by a time."""
        kernel = self._kernel
        settings = await kernel.get_settings()
        later = due_after(kernel.clock.now_ms())
        found: list[int] = []
        for partition in self._partition_order.partitions(self.id, settings.shards):
            page = await kernel.due.query(partition, later, index="GSI1", limit=1)
            found += [index_key_of(entry).due_parts()[0] for entry in page.items]
        for partition in notice_partitions() if settings.reviews else ():
            page = await kernel.due_notices.query(partition, later, index="GSI1", limit=1)
            found += [notice_due_ms_of(entry) for entry in page.items]
        return min(found, default=None)

    async def kill(self) -> None:
        """End the worker as if its process had died: it releases no run, and keeps its lease."""
        self._owner.stopping.set()
        heartbeat, self._heartbeat_task = self._heartbeat_task, None
        # Writes are tasks of their own, which outlive the node that asked for them.
        tasks = {
            *self._work_tasks(),
            *([] if heartbeat is None else [heartbeat]),
            *self.drivers.list_writes(),
        }
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_KILL_SECONDS_MAX)
        self._watchdog.stop()
        self._reaper.stop()
        self._owner.flusher.stop()
        self._owner.threads.shutdown()
        self.stopped.set()

    async def take_over(self, dead: Worker) -> None:
        """Start, and take the runs of a killed worker as if its lease had ended."""
        await self.start()
        self._reaper.abandon(dead.id)
        await self._reaper.reap(self.id)

    def replacement(self, hf: Holdfast) -> KitWorker:
        """Return a new worker for the same graphs with the same options."""
        made = hf.worker(self._graphs, options=self._options)
        assert isinstance(made, KitWorker)
        return made

    async def _reap(self) -> None:
        await self._owner.stopping.wait()


class KitHoldfast(Holdfast):
    """A Holdfast with workers that follow a kit."""

    _worker_type = KitWorker
