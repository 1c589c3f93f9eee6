"""A worker: polls for due runs, drives them side by side, and stops without losing any.

It is made of parts with one job each: `Poller` finds due runs, `Claims` claims them, `Drivers`
drives them, `Heartbeat` keeps the worker registered, and `Reaper` takes over from dead workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType

from holdfast.clock import SystemClock
from holdfast.display import get_logger
from holdfast.engine.effects.resources import Resources
from holdfast.engine.execution.figures import WorkerFigures
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.graph_items import publish_program
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.engine.worker.claims import Claims
from holdfast.engine.worker.companions import Companion, Companions
from holdfast.engine.worker.drivers import Drivers
from holdfast.engine.worker.health import USE_STORE, WorkerHealth
from holdfast.engine.worker.heartbeat import Heartbeat
from holdfast.engine.worker.hook_calls import HookCalls
from holdfast.engine.worker.loop_watchdog import LoopWatchdog
from holdfast.engine.worker.options import WorkerOptions
from holdfast.engine.worker.poll_order import PartitionOrder
from holdfast.engine.worker.poller import Poller
from holdfast.engine.worker.programs import Programs
from holdfast.engine.worker.reaper import Reaper
from holdfast.engine.worker.run_owner import RunOwner
from holdfast.engine.worker.slots import Slots
from holdfast.engine.worker.tasks import (
    CANCEL_GRACE_SECONDS,
    cancel_tasks,
    sleep_or_wake,
    wait_for_tasks,
)
from holdfast.errors import HoldfastError, InvalidRequest, StoreClosed
from holdfast.model.durations import Duration, seconds_of
from holdfast.model.execution import Execution
from holdfast.model.program import Program
from holdfast.model.run import Status
from holdfast.records.head import Head
from holdfast.records.index_keys import IndexKey
from holdfast.records.worker import offer_attributes

__all__ = ["Worker"]

_log = get_logger("holdfast.worker")

# How long to wait after a step failed before it is repeated.
_BACKOFF_SECONDS = 1.0
_REAP_INTERVAL_SECONDS = 5.0
# How long interrupted drivers may take to release their runs.
_RELEASE_SECONDS_MAX = 5.0


class Worker:
    """Runs graphs until it is stopped: ``async with hf.worker([graph]): …``"""

    def __init__(
        self,
        kernel: Kernel,
        graphs: Iterable[Program],
        options: WorkerOptions,
        *,
        on_ended: Callable[[Head, Execution, Status], None],
        on_paused: Callable[[Head], None],
        hooks: HookCalls,
        local_workers: LocalWorkers,
        resources: Resources,
        companions: Sequence[Companion] = (),
    ) -> None:
        self._programs = programs = Programs(graphs)
        for program in programs:
            resources.check_needs(program)
        self._kernel = kernel
        self._options = options
        self._slots = Slots(options.concurrency)
        self._owner = RunOwner(
            kernel,
            options,
            on_ended=on_ended,
            on_paused=on_paused,
            hooks=hooks,
            local_workers=local_workers,
            resources=resources,
            slots=self._slots,
            offer=offer_attributes(
                ((program.name, program.version) for program in programs), options.pools
            ),
        )
        self.drivers = Drivers(kernel, self._owner, programs, self._slots)
        self.claims = Claims(
            kernel,
            self._owner,
            programs=programs,
            pools=options.pools,
            slots=self._slots,
            drivers=self.drivers,
        )
        self._reaper = Reaper(
            kernel, lease_seconds=options.lease_seconds, on_requeued=self._on_requeued
        )
        self._heartbeat = Heartbeat(
            kernel,
            self._owner,
            claims=self.claims,
            drivers=self.drivers,
            on_name_lost=self._reaper.abandon,
        )
        self._poller = Poller(
            kernel,
            self._owner,
            claims=self.claims,
            slots=self._slots,
            partition_order=PartitionOrder(programs.names, options.pools),
            poll_seconds=_poll_seconds(kernel, options),
        )
        self._watchdog = LoopWatchdog(
            kernel.clock,
            self._owner.lease,
            lease_seconds=options.lease_seconds,
            list_in_nodes=self.drivers.list_in_nodes,
        )
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._background_tasks: list[asyncio.Task[None]] = []
        self.stopped = asyncio.Event()
        self._store_closed: asyncio.Future[StoreClosed] | None = None
        self._companions = Companions(companions)

    # --- what it says about itself ----------------------------------------------------------------

    @property
    def id(self) -> str:
        """The name under which it is registered; empty while it has none."""
        return self._owner.id

    @property
    def counts(self) -> Counter[str]:
        """What it did: runs claimed, ended (by status), lost, taken over from dead workers."""
        return self._owner.counts

    @property
    def figures(self) -> WorkerFigures:
        """What it counts for metrics: ended runs by graph, claim lags, waits for quotas."""
        return self._owner.figures

    @property
    def heartbeat_age_seconds(self) -> float | None:
        """How long ago it renewed its lease; None while it is not registered."""
        return self._owner.lease.age_seconds if self.id else None

    @property
    def concurrency(self) -> int:
        """How many runs it drives at once, at most."""
        return self._options.concurrency

    @property
    def running(self) -> int:
        """How many runs it drives, or is about to."""
        return self._slots.taken

    @property
    def claim_lag_seconds(self) -> float:
        """How overdue the most overdue run was that it claimed since its last heartbeat."""
        return self._owner.claim_lag_ms / 1000

    @property
    def draining(self) -> bool:
        """Whether it was asked to stop."""
        return self._owner.draining

    @property
    def health(self) -> WorkerHealth:
        """Whether it can do its work; if not, the error of the store, and since when."""
        return self._owner.outages.health

    # --- start and stop ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Register, and begin to claim runs.

        If the store cannot be used for now (it does not answer, it is full, credentials have
        expired), the worker has no name when this returns, and registers as soon as it can.

        Raises:
            StoreUnusable: the store cannot be used as it is: there is no such table or file, it is
                damaged or of another release, it may not be written, or access is denied.
            InvalidRequest: it was started before.
        """
        if self._heartbeat_task is not None:
            raise InvalidRequest("this worker was started before; make another one")
        await self._heartbeat.register()
        self._store_closed = asyncio.get_running_loop().create_future()
        if isinstance(self._kernel.clock, SystemClock):  # a thread cannot wait on another clock
            self._watchdog.start()
        self._heartbeat_task = asyncio.create_task(
            self._repeat("renew its lease", self._heartbeat.beat, until_cancelled=True),
            name="holdfast heartbeat",
        )
        self._background_tasks = [
            asyncio.create_task(
                self._repeat("poll for runs", self._poller.poll), name="holdfast poll"
            ),
            asyncio.create_task(
                self._repeat("reap dead workers", self._reap), name="holdfast reap"
            ),
            asyncio.create_task(self._publish_graphs(), name="holdfast publish"),
        ]
        await self._companions.start()

    async def stop(self, *, drain: Duration | None = None) -> None:
        """Let nodes finish for a while, release every run, and delete the lease.

        The worker stops a few seconds after ``drain``, even if nodes go on; None means as long as
        its options say. Other workers take over the runs that it could not release when its lease
        has ended.

        Raises:
            InvalidRequest: ``drain`` is not a duration.
        """
        allowed = self._options.drain_seconds if drain is None else seconds_of(drain, "drain")
        if self._heartbeat_task is None:
            return
        if self.draining:
            await self.stopped.wait()
            return
        self._owner.wake.set()
        self._owner.stopping.set()
        try:
            await self._drain(self._heartbeat_task, allowed)
        finally:
            # If the caller was cancelled, the worker stops at once.
            for task in (self._heartbeat_task, *self._work_tasks()):
                task.cancel()
            self._watchdog.stop()
            self._reaper.stop()
            self._owner.flusher.stop()
            self._owner.threads.shutdown()
            await self._companions.stop()
            self.stopped.set()

    async def _drain(self, heartbeat_task: asyncio.Task[None], drain_seconds: float) -> None:
        # A claim under way is not cancelled: its run would have an owner that does not know of it.
        claiming = (*self._background_tasks, *self.claims.tasks)
        await wait_for_tasks(*claiming, seconds_max=CANCEL_GRACE_SECONDS)
        deadline = self._kernel.clock.monotonic() + drain_seconds
        await wait_for_tasks(*self.drivers.tasks, seconds_max=drain_seconds)
        self.drivers.interrupt_all()
        grace = min(_RELEASE_SECONDS_MAX, self._owner.lease.heartbeat_seconds)
        await wait_for_tasks(*self.drivers.tasks, seconds_max=grace)
        released = not self._may_own_runs()
        await cancel_tasks(heartbeat_task, *self._work_tasks())
        if released:
            with contextlib.suppress(HoldfastError):
                await self._owner.lease.release()
        await self._owner.hooks.drain(max(grace, deadline - self._kernel.clock.monotonic()))

    def _work_tasks(self) -> tuple[asyncio.Task[None], ...]:
        return (*self._background_tasks, *self.claims.tasks, *self.drivers.tasks)

    def _may_own_runs(self) -> bool:
        """Return whether the row of a run may still name this worker."""
        if not self._owner.alive() or self._owner.may_own_strays or self.running:
            return True
        return any(not task.done() for task in (*self._background_tasks, *self.claims.tasks))

    async def wait_closed(self) -> StoreClosed:
        """Wait until the store was closed, or its file deleted or replaced; return the error.

        The worker does no more work then: open the store again, and make another worker.

        Raises:
            InvalidRequest: it was not started.
        """
        if self._store_closed is None:
            raise InvalidRequest("this worker was not started")
        return await asyncio.shield(self._store_closed)

    async def serve(self) -> None:
        """Work until the process gets SIGTERM or SIGINT, then stop.

        Raises:
            StoreReplaced: the store's file was deleted or replaced.
        """
        loop = asyncio.get_running_loop()
        requested = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, requested.set)
        ends = [asyncio.ensure_future(requested.wait()), asyncio.ensure_future(self.wait_closed())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # A second signal ends the process at once.
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            for end in ends:
                end.cancel()
        await self.stop()
        if not requested.is_set():
            raise await self.wait_closed()

    async def __aenter__(self) -> Worker:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    # --- its loops --------------------------------------------------------------------------------

    async def _repeat(
        self, what: str, step: Callable[[], Awaitable[None]], *, until_cancelled: bool = False
    ) -> None:
        """Repeat a step until the worker stops, also after errors of the store.

        Only the heartbeat is repeated ``until_cancelled``: it goes on while the worker drains, and
        before the worker has a name.
        """
        owner = self._owner
        while until_cancelled or not owner.draining:
            if owner.id == "" and not until_cancelled:
                await sleep_or_wake(self._kernel.clock, _BACKOFF_SECONDS, owner.stopping)
                continue
            try:
                await step()
                owner.outages.record_success(owner.id, what)
            except StoreClosed as error:
                self._on_store_closed(error)
                return
            except HoldfastError as error:
                owner.outages.record_failure(owner.id, what, error, level=logging.WARNING)
                await self._kernel.clock.sleep(_BACKOFF_SECONDS)
            except Exception:
                _log.exception("worker %s failed to %s, and tries again", owner.id, what)
                await self._kernel.clock.sleep(_BACKOFF_SECONDS)

    async def _publish_graphs(self) -> None:
        """Store once what processes without the graphs should know of them."""
        with contextlib.suppress(StoreClosed):  # the loops report it
            for program in self._programs:
                await publish_program(self._kernel, program, pools=self._options.pools)

    async def _reap(self) -> None:
        await self._reaper.reap(self.id)
        seconds = min(_REAP_INTERVAL_SECONDS, self._owner.lease.heartbeat_seconds)
        await sleep_or_wake(self._kernel.clock, seconds, self._owner.stopping)

    def _on_requeued(self, place: IndexKey) -> None:
        """Claim a run of a dead worker that is due again."""
        self.counts["taken over"] += 1
        self.claims.offer(place)

    def _on_store_closed(self, error: StoreClosed) -> None:
        """Report that the store answers no more; the caller has to open it again."""
        self._owner.outages.record_failure(self.id, USE_STORE, error)
        if self._store_closed is not None and not self._store_closed.done():
            self._store_closed.set_result(error)


def _poll_seconds(kernel: Kernel, options: WorkerOptions) -> float:
    given = options.poll_seconds
    return kernel.store.poll_seconds if given is None else given
