"""The runs that a worker drives: one driver, one task and one slot for each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from holdfast.display import get_logger
from holdfast.engine.execution.claimed_run import ClaimedRun
from holdfast.engine.execution.driver import Driver
from holdfast.engine.execution.live_reports import report_released
from holdfast.engine.journal.reader import LoadedRun
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.chunk_program import ChunkProgram
from holdfast.engine.worker.programs import Programs
from holdfast.engine.worker.run_owner import RunOwner
from holdfast.engine.worker.slots import Slots
from holdfast.errors import StoreClosed
from holdfast.model.execution import nodes_summary
from holdfast.records.head import Head
from holdfast.records.keys import RunKey

__all__ = ["Drivers"]

_log = get_logger("holdfast.worker")


class Drivers:
    """Starts a driver for each claimed run, and takes its slot back when the driver has ended."""

    def __init__(self, kernel: Kernel, owner: RunOwner, programs: Programs, slots: Slots) -> None:
        self._kernel = kernel
        self._owner = owner
        self._programs = programs
        self._slots = slots
        self._drivers: dict[RunKey, Driver] = {}
        self._tasks: dict[RunKey, asyncio.Task[None]] = {}
        # Claims of runs whose last driver has released them, but has not ended yet.
        self._next_claims: dict[RunKey, tuple[Head, LoadedRun | None]] = {}

    @property
    def tasks(self) -> Iterable[asyncio.Task[None]]:
        """The tasks of all drivers."""
        return self._tasks.values()

    def list_writes(self) -> list[asyncio.Future[Any]]:
        """Return the journal writes in progress: they are tasks that outlive a cancelled driver."""
        journals = [driver.claimed.journal for driver in self._drivers.values()]
        return [write for journal in journals for write in journal.writes]

    def list_in_nodes(self) -> list[ClaimedRun]:
        """Return the runs with a node in progress; also for threads, while the loop is blocked."""
        claimed = [driver.claimed for driver in list(self._drivers.values())]
        return [run for run in claimed if run.claim.in_node]

    def has_driver(self, run: RunKey) -> bool:
        """Return whether a driver of the run has not ended yet."""
        return run in self._drivers

    def node_of(self, run: RunKey) -> str | None:
        """Return the node at which a run stands here; None if it has no driver."""
        driver = self._drivers.get(run)
        if driver is None or not driver.claimed.journal.is_loaded:
            return None
        return nodes_summary(driver.claimed.execution)

    def is_driving(self, run: RunKey) -> bool:
        """Return whether the run has a driver that has not released it."""
        driver = self._drivers.get(run)
        return driver is not None and not driver.claimed.claim.released

    def is_expecting(self, run: RunKey) -> bool:
        """Return whether the run has a driver, or gets one when its last driver ends."""
        return run in self._drivers or run in self._next_claims

    def start(self, head: Head, loaded: LoadedRun | None = None) -> None:
        """Drive a claimed run: now, or when the driver that has released it ends.

        ``loaded`` is what this process knows of the run; without it the driver reads the journal.
        """
        if head.key in self._drivers:
            self._next_claims[head.key] = (head, loaded)
        else:
            self._start_if_owned(head, loaded)

    def on_signal(self, run: RunKey) -> None:
        """Tell the driver of a run that a signal came."""
        if run in self._drivers:
            self._drivers[run].on_signal()

    def interrupt(self, run: RunKey) -> None:
        """Tell the driver of a run that another process wrote into the run's journal."""
        if run in self._drivers:
            self._drivers[run].interrupt(journal_changed=True)

    def interrupt_all(self) -> None:
        """Ask every driver to release its run, because the worker stops."""
        for driver in list(self._drivers.values()):
            driver.interrupt(journal_changed=False)

    async def wait_for_exit(self, run: RunKey) -> None:
        """Return when the row of a run that has ended here says so."""
        driver = self._drivers.get(run)
        if driver is not None and driver.claimed.execution.ending is not None:
            await asyncio.wait({self._tasks[run]})

    def _start_if_owned(self, head: Head, loaded: LoadedRun | None) -> None:
        """Start a driver, unless the worker has another name than the claim by now."""
        if head.owner == self._owner.id:
            self._start_driver(head, loaded)
        elif loaded is not None and loaded.in_memory is not None:
            loaded.in_memory.mark_lost()

    def _start_driver(self, head: Head, loaded: LoadedRun | None) -> None:
        program = self._programs.select(head.graph, head.version)
        if head.chunk is not None:
            program = ChunkProgram(
                program.name, program.version, program, find_program=self._programs.find
            )
        driver = Driver(ClaimedRun(self._kernel, self._owner, head, loaded), program)
        task = asyncio.create_task(driver.drive(), name=f"holdfast run {head.key.id}")
        if head.chunk is not None and head.parent is not None:
            self._kernel.chunk_shares.add(head.parent.generation, head.chunk.map, head.key)
        if head.key not in self._drivers:
            self._slots.take(head.key.tenant)
        self._drivers[head.key], self._tasks[head.key] = driver, task
        task.add_done_callback(lambda task: self._on_done(head.key, driver, task))

    def _on_done(self, run: RunKey, driver: Driver, task: asyncio.Task[None]) -> None:
        """Take the slot of a driver back, and start the run's next claim if there is one."""
        head = driver.claimed.head
        if head.chunk is not None and head.parent is not None:
            self._kernel.chunk_shares.discard(head.parent.generation, head.chunk.map, run)
        if self._drivers.get(run) is driver:
            del self._drivers[run], self._tasks[run]
            self._slots.release(run.tenant)
        if not driver.claimed.claim.released:
            self._owner.may_own_strays = True
            self._owner.counts["lost"] += 1
        released = driver.claimed.claim.released
        self._owner.hooks.on_driver_done(driver.claimed.head, released=released)
        if released and self._kernel.live.is_followed(run):
            report_released(driver.claimed)
        driver.claimed.persistence.notify_starter()
        successor = self._next_claims.pop(run, None)
        if successor is not None and _is_later_claim(successor[0], driver.claimed.head):
            self._start_if_owned(*successor)
        _log_failure(run, task)
        if self._slots.needs_poll(freed=True):
            self._owner.wake.set()
        self._kernel.notifier.notify(run)  # by now its row says whether it waits or has ended


def _log_failure(run: RunKey, task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if isinstance(error, SystemExit | KeyboardInterrupt):
        _log.error("%s: a node raised %r, which ends the process", run.log_name, error)
    elif error is not None and not isinstance(error, StoreClosed):  # the worker logs that one
        _log.error("%s: the driver broke", run.log_name, exc_info=error)


def _is_later_claim(head: Head, driven: Head) -> bool:
    """Return whether a row is of a later claim than one that was driven to its end.

    A poll and a signal may claim a run for this worker at the same time, and both find the run
    claimed. That is one claim, and the second of them has no run to drive.
    """
    return head.generation != driven.generation or head.epoch > driven.epoch
