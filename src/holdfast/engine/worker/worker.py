"""A worker: claims runs that are due, drives them side by side, and leaves without losing any."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any

from holdfast.display import get_logger
from holdfast.engine.effects.resources import Resources
from holdfast.engine.execution.claimed_run import ClaimedRun
from holdfast.engine.execution.driver import Driver
from holdfast.engine.execution.node_threads import NodeThreads
from holdfast.engine.journal.flusher import Flusher
from holdfast.engine.journal.reader import LoadedRun
from holdfast.engine.kernel.kernel import ClaimLost, Kernel
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.engine.worker.health import Outages, WorkerHealth, probe_blobs
from holdfast.engine.worker.lease import Lease
from holdfast.engine.worker.options import WorkerOptions
from holdfast.engine.worker.poll_order import PartitionOrder
from holdfast.engine.worker.poller import DueScan
from holdfast.engine.worker.reaper import Reaper, requeue_run, requeue_runs
from holdfast.engine.worker.slots import Slots
from holdfast.errors import (
    ConditionFailed,
    HoldfastError,
    InvalidRequest,
    ItemDamaged,
    JournalDamaged,
    StoreClosed,
    StoreError,
)
from holdfast.model.execution import Execution
from holdfast.model.program import Program
from holdfast.model.run import Status
from holdfast.records.head import Head, head_of, is_from_newer_release
from holdfast.records.keys import IndexKey, RunKey
from holdfast.records.run_writes import claim_write

__all__ = ["SlotReservation", "Worker"]

_log = get_logger("holdfast.worker")

_HEARTBEATS_PER_LEASE = 4
# How often a worker asks at the least whether the shards have become more.
_SETTINGS_REFRESH_SECONDS = 60.0
# How long to wait after the store could not be used, before the next try: longer and longer.
_BACKOFF_SECONDS = 1.0
_BACKOFF_SECONDS_MAX = 30.0
# What a worker cannot do while the store cannot be used; its log and its health name it.
_DRIVE, _REGISTER, _USE = "drive runs", "register", "use its store"
# When a run is tried again whose row makes no sense: another release may read it.
_UNREADABLE_BACKOFF_MS = 60_000
_REAP_INTERVAL_SECONDS = 5.0
# How long tasks have to end once they are cancelled: a node may not mind being cancelled.
_CANCEL_GRACE_SECONDS = 1.0


class SlotReservation:
    """Room that a worker keeps for a run: it is to be taken, or given back."""

    def __init__(self, worker: Worker, run: RunKey) -> None:
        self._worker = worker
        self.run = run
        self.owner = worker.id
        """The name under which the run is to stand."""

    def start_run(self, head: Head, loaded: LoadedRun | None = None) -> None:
        """Let the worker go on with the run; ``loaded`` is what is known of it."""
        self._worker.finish_reservation(self, head, loaded, maybe_claimed=False)

    def release(self, *, maybe_claimed: bool = False) -> None:
        """Let the worker have its room back; if unsure, the run may yet stand under its name."""
        self._worker.finish_reservation(self, None, None, maybe_claimed=maybe_claimed)


class Worker:
    """Runs programs until it is told to leave: ``async with hf.worker([graph]): …``"""

    def __init__(
        self,
        kernel: Kernel,
        graphs: Iterable[Program],
        options: WorkerOptions,
        *,
        on_ended: Callable[[Head, Execution, Status], None],
        on_paused: Callable[[Head], None],
        local_workers: LocalWorkers,
        resources: Resources,
    ) -> None:
        self._kernel = kernel
        self._graphs: dict[str, dict[int, Program]] = {}
        if not isinstance(graphs, Iterable):
            raise InvalidRequest(f"graphs are a list, not {graphs!r:.80}", field="graphs")
        for graph in graphs:
            if not isinstance(graph, Program):
                raise InvalidRequest(f"a worker runs graphs, not {graph!r:.80}", field="graphs")
            versions = self._graphs.setdefault(graph.check().name, {})
            if versions.setdefault(graph.version, graph) is not graph:
                raise InvalidRequest(
                    f"there are two graphs {graph.name!r} of version {graph.version}",
                    field="graphs",
                )
        if not self._graphs:
            raise InvalidRequest("a worker needs at least one graph", field="graphs")
        self._options = options
        self._pools = frozenset(options.pools)
        self._on_ended = on_ended
        self._on_paused = on_paused
        self.local_workers = local_workers
        self.resources = resources
        self.flusher = Flusher(kernel.clock)
        self._lease = Lease(kernel, options.lease_seconds)
        self._reaper = Reaper(
            kernel, lease_seconds=options.lease_seconds, on_requeued=self._on_requeued
        )
        self._slots = Slots(options.concurrency)
        self._partition_order = PartitionOrder(self._graphs, options.pools)
        self._due_scan = DueScan(
            kernel,
            self._partition_order,
            self._slots,
            claim=self._claim_run,
            may_claim=self._may_claim,
        )
        self._drivers: dict[RunKey, Driver] = {}
        self._tasks: dict[RunKey, asyncio.Task[None]] = {}
        # Runs that are being made or claimed for us.
        self._incoming: Counter[RunKey] = Counter()
        # Rows of a newer release, or that cannot be read, not to be tried again at each scan.
        self._unreadable: set[IndexKey] = set()
        self._next_claims: dict[RunKey, tuple[Head, LoadedRun | None]] = {}
        self._claim_tasks: set[asyncio.Task[None]] = set()
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._background_tasks: list[asyncio.Task[None]] = []
        self._heartbeats = 0
        # Whether something may stand under our name that we do not drive.
        self._may_own_strays = False
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._stopped = asyncio.Event()
        self._store_closed: asyncio.Future[StoreClosed] | None = None
        self._threads = NodeThreads(options.concurrency)
        self.id = ""
        self.draining = False
        self._outages = Outages(kernel)
        # A result that cannot be written is held for as long as the lease would last by itself.
        self.store_retry_seconds = options.lease_seconds
        self.hold_ms = round(options.hold_seconds * 1000)
        self.resumes_max = options.resumes_max
        self.counts: Counter[str] = Counter()
        """What it did: runs claimed, ended (by status), lost, taken over from the dead."""

    # --- its life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Register, and begin to claim.

        Where the store cannot be used for now (it does not answer, it is full, credentials have
        expired), the worker has no name yet when this returns, and registers once it can.

        Raises:
            StoreUnusable: the store cannot be used as it is: there is no such table or file, it is
                damaged or of another release, it may not be written, or access is denied.
            InvalidRequest: it was started before.
        """
        if self._heartbeat_task is not None:
            raise InvalidRequest("a worker starts once; make another one")
        try:
            await self._kernel.get_settings()
            await self._lease.register()
            self.id = self._lease.worker_id
        except StoreError as error:
            if not error.is_transient:
                raise
            self._outages.record_failure("", _REGISTER, error)
        self._store_closed = asyncio.get_running_loop().create_future()
        self._heartbeat_task = asyncio.create_task(
            self._repeat(self._heartbeat), name="holdfast beat"
        )
        self._background_tasks = [
            asyncio.create_task(self._repeat(self._scan), name="holdfast scan"),
            asyncio.create_task(self._repeat(self._reap), name="holdfast reap"),
        ]

    async def stop(self, *, drain_seconds: float | None = None) -> None:
        """Leave: let nodes run on for a while, release every run, and forget the lease.

        It is gone a few seconds after the deadline, whatever the nodes do. What it could not
        release is found by others once its lease has lapsed.
        """
        if self._heartbeat_task is None:
            return
        if self.draining:
            await self._stopped.wait()
            return
        self.draining = True
        try:
            await self._drain(self._heartbeat_task, drain_seconds)
        finally:
            # Also where whoever waited for it was cancelled: it leaves at once then.
            for task in (
                self._heartbeat_task,
                *self._background_tasks,
                *self._claim_tasks,
                *self._tasks.values(),
            ):
                task.cancel()
            self._reaper.stop()
            self.flusher.stop()
            self._threads.shutdown()
            self._stopped.set()

    async def _drain(self, heartbeat_task: asyncio.Task[None], drain_seconds: float | None) -> None:
        self._wake.set()
        self._stopping.set()
        # A claim under way is not cut short: a run that we took without knowing would be nobody's.
        await _wait_tasks(*self._background_tasks, *self._claim_tasks, within=_CANCEL_GRACE_SECONDS)
        allowed = self._options.drain_seconds if drain_seconds is None else drain_seconds
        await _wait_tasks(*self._tasks.values(), within=allowed)
        for driver in list(self._drivers.values()):
            driver.interrupt(journal_changed=False)
        grace = min(5.0, self._options.lease_seconds / _HEARTBEATS_PER_LEASE)
        await _wait_tasks(*self._tasks.values(), within=grace)
        scanning = self._claim_tasks or any(not task.done() for task in self._background_tasks)
        clean = self.alive() and not (self._may_own_strays or self.running or scanning)
        await _cancel_tasks(
            heartbeat_task, *self._background_tasks, *self._claim_tasks, *self._tasks.values()
        )
        if clean:
            with contextlib.suppress(HoldfastError):
                await self._lease.release()

    async def wait_closed(self) -> StoreClosed:
        """Wait until the store was closed, or its file deleted or replaced; return the error.

        The worker does nothing any more then: open the store again, and make another one.

        Raises:
            InvalidRequest: it was not started.
        """
        if self._store_closed is None:
            raise InvalidRequest("the worker was not started")
        return await asyncio.shield(self._store_closed)

    async def serve(self) -> None:
        """Work until the process is asked to end (SIGTERM, SIGINT), then leave.

        Raises:
            StoreReplaced: the store's file was deleted or replaced.
        """
        loop = asyncio.get_running_loop()
        asked = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, asked.set)
        ends = [asyncio.ensure_future(asked.wait()), asyncio.ensure_future(self.wait_closed())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Whoever asks a second time does not want to wait.
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            for end in ends:
                end.cancel()
        await self.stop()
        if not asked.is_set():
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

    # --- what its drivers need: see Holder --------------------------------------------------------

    @property
    def threads(self) -> NodeThreads:
        """Where nodes that are plain functions run."""
        return self._threads

    def alive(self) -> bool:
        """Return whether its lease still holds."""
        return self.id != "" and self._lease.is_valid()

    def on_store_outage(self, error: StoreError) -> None:
        """Hear that a run was released because the store could not be used: claim no others."""
        self.counts["cut off"] += 1
        self._outages.record_failure(self.id, _DRIVE, error)
        self._wake.set()

    def on_paused(self, head: Head) -> None:
        """Hear that a run waits, and how its row looks."""
        self._on_paused(head)

    def on_ended(self, head: Head, execution: Execution, status: Status) -> None:
        """Hear that a run has ended."""
        self.counts[status] += 1
        if status == "quarantined":
            why = "" if head.failure is None else f"{head.failure.type}: {head.failure.message}"
            _log.error("%s is quarantined: %s", head.key.log_name, why)
        self._on_ended(head, execution, status)

    @property
    def health(self) -> WorkerHealth:
        """Whether it can do its work, and if not, what the store raised, and since when."""
        return self._outages.health

    # --- what its own process hands it ------------------------------------------------------------

    @property
    def running(self) -> int:
        """How many runs it holds, or is about to."""
        return self._slots.taken

    def reserve(self, run: RunKey, graph: str, pool: str | None) -> SlotReservation | None:
        """Keep room for a run that is about to be made or woken, if there is room for it."""
        if not self._may_claim() or not self._serves(graph, pool):
            return None
        # One claim at a time: of two, neither could tell whether it was its own that counted.
        driver = self._drivers.get(run)
        if run in self._incoming or (driver is not None and not driver.claimed.released):
            return None
        if not self._slots.check_room(run.tenant):
            return None
        self._reserve_slot(run)
        return SlotReservation(self, run)

    def finish_reservation(
        self,
        reservation: SlotReservation,
        head: Head | None,
        loaded: LoadedRun | None,
        maybe_claimed: bool,
    ) -> None:
        """Hear what became of a run for which we kept room; see `Room`."""
        self._may_own_strays = self._may_own_strays or maybe_claimed
        if head is not None:
            self._drive_or_queue(head, loaded)
        self._release_slot(reservation.run)

    def offer(self, place: IndexKey) -> None:
        """Hear that a run is due now."""
        graph, pool, _ = place.due_queue()
        if self.draining or not self._serves(graph, pool):
            return
        if self._slots.check_room(place.due_parts()[1].tenant):
            claim = asyncio.create_task(self._claim_offered(place))
            self._claim_tasks.add(claim)
            claim.add_done_callback(self._claim_tasks.discard)

    def has_claimed(self, run: RunKey) -> bool:
        """Return whether we drive that run."""
        return run in self._drivers

    async def wait_for_exit(self, run: RunKey) -> None:
        """Return when the row of a run that has ended here says so."""
        driver = self._drivers.get(run)
        if driver is not None and driver.claimed.execution.ending is not None:
            await asyncio.wait({self._tasks[run]})

    def on_signal(self, run: RunKey) -> None:
        """Hear that a signal came for a run that we may hold."""
        if run in self._drivers:
            self._drivers[run].on_signal()

    def interrupt(self, run: RunKey) -> None:
        """Hear that somebody wrote into the journal of a run that we may hold."""
        if run in self._drivers:
            self._drivers[run].interrupt(journal_changed=True)

    # --- claiming ---------------------------------------------------------------------------------

    async def _scan(self) -> None:
        """Claim what is due, then wait for more."""
        if _DRIVE in self._outages:
            await self._wait_until_usable()
            return
        self._slots.refused = False
        found = (
            await self._due_scan.claim_due_runs(await self._load_partitions())
            if self._slots.free > 0
            else 0
        )
        if not found:
            # Not in step with other workers, which would ask the same at the same time.
            jitter = 1 - 0.2 * self._kernel.ids.random()
            await self._sleep_or_wake(self._poll_seconds() * jitter, self._wake)
            self._wake.clear()

    async def _wait_until_usable(self) -> None:
        """Return when runs can be driven again, or the worker leaves."""
        backoff = _BACKOFF_SECONDS
        while not self.draining:
            await self._sleep_or_wake(backoff, self._stopping)
            backoff = min(2 * backoff, _BACKOFF_SECONDS_MAX)
            try:
                await probe_blobs(self._kernel)
            except StoreClosed:
                raise
            except StoreError as error:
                self._outages.record_failure(self.id, _DRIVE, error)
            else:
                self._outages.record_success(self.id, _DRIVE)
                return

    async def _load_partitions(self) -> list[str]:
        seconds = min(
            self._options.lease_seconds / _HEARTBEATS_PER_LEASE, _SETTINGS_REFRESH_SECONDS
        )
        settings = await self._kernel.get_settings(seconds_old_max=seconds)
        return self._partition_order.partitions(self.id, settings.shards)

    def _may_claim(self) -> bool:
        return not self.draining and self.alive() and _DRIVE not in self._outages

    def _serves(self, graph: str, pool: str | None) -> bool:
        return graph in self._graphs and pool in self._pools

    async def _claim_offered(self, place: IndexKey) -> None:
        try:
            if await self._claim_run(place) or not self._slots.refused:
                return
        except HoldfastError:
            pass
        self._wake.set()  # the scan will find it, or what was refused while this one was tried

    async def _claim_run(self, place: IndexKey) -> bool:
        """Take a run that was seen at a place, if it is still there; return whether it was."""
        _, run, epoch = place.due_parts()
        if place in self._unreadable or not self._may_claim():
            return False
        if self._is_ours(run):
            # Perhaps it was woken before its last driver has heard that it let go of it.
            self._slots.refused = True
            return False
        if not self._slots.check_room(run.tenant):
            return False
        self._reserve_slot(run)
        try:
            head = await self._write_claim(place, run, epoch)
            if head is None or head.owner != self.id:
                return False
            self.counts["claimed"] += 1
            self._drive_or_queue(head, None)
            return True
        except ClaimLost:
            return False
        except HoldfastError:
            raise
        except Exception as error:
            # Whatever its row holds, the other runs of the shard come all the same.
            self._skip_unreadable(place, run, error)
            return False
        finally:
            self._release_slot(run)

    def _skip_unreadable(self, place: IndexKey, run: RunKey, error: Exception) -> None:
        """Leave a run alone for a while whose row cannot be read."""
        self._unreadable.add(place)
        self._kernel.note_damage({"PK": run.head.pk, "SK": run.head.sk}, error)

    def _reserve_slot(self, run: RunKey) -> None:
        self._slots.take(run.tenant)
        self._incoming[run] += 1

    def _release_slot(self, run: RunKey) -> None:
        self._slots.release(run.tenant)
        self._incoming[run] -= 1
        if self._incoming[run] <= 0:
            del self._incoming[run]
        self._wake_if_room(refused=self._slots.refused and run not in self._drivers)

    def _wake_if_room(self, *, refused: bool) -> None:
        """Look again if a slot was given back that somebody wanted, or the first one of all."""
        if refused or self._slots.free == 1:
            self._wake.set()

    async def _write_claim(self, place: IndexKey, run: RunKey, epoch: int) -> Head | None:
        worker, now = self.id, self._kernel.clock.now_ms()
        write = claim_write(place, run, worker=worker, now_ms=now, token=self._kernel.ids.new())
        try:
            item = await self._kernel.resolve_write(
                self._kernel.heads,
                write,
                alive=lambda: self.id == worker and self.alive(),
                was_applied=lambda item: (
                    item.get("owner") == worker and item.get("epoch") == epoch + 1
                ),
            )
        except ConditionFailed as failed:
            if failed.item is not None and is_from_newer_release(failed.item):
                self._unreadable.add(place)
            return None
        except (ItemDamaged, InvalidRequest) as error:
            self._skip_unreadable(place, run, error)
            return None
        except (ClaimLost, HoldfastError):
            self._may_own_strays = True
            raise
        try:
            return head_of(item)
        except JournalDamaged as error:
            self._skip_unreadable(place, run, error)
            ours = IndexKey.owned(worker, place.due_queue(), run, epoch + 1)
            await requeue_run(self._kernel, ours, lost=False, in_ms=_UNREADABLE_BACKOFF_MS)
            return None

    def _drive_or_queue(self, head: Head, loaded: LoadedRun | None) -> None:
        if head.key in self._drivers:
            # Its last driver has let go of it, and only waits to hear so.
            self._next_claims[head.key] = (head, loaded)
        else:
            self._drive_if_owned(head, loaded)

    def _drive_if_owned(self, head: Head, loaded: LoadedRun | None) -> None:
        """Go on with a run, unless it stands under a name that we no longer have."""
        if head.owner == self.id:
            self._start_driver(head, loaded)
        elif loaded is not None and loaded.in_memory is not None:
            loaded.in_memory.mark_lost()

    def _start_driver(self, head: Head, loaded: LoadedRun | None) -> None:
        versions = self._graphs[head.graph]
        # Another version may go on with it: what was decided is recorded, the route included.
        graph = versions.get(head.version) or versions[max(versions)]
        driver = Driver(ClaimedRun(self._kernel, self, head, loaded), graph)
        task = asyncio.create_task(driver.drive(), name=f"holdfast run {head.key.id}")
        if head.key not in self._drivers:
            self._slots.take(head.key.tenant)
        self._drivers[head.key], self._tasks[head.key] = driver, task
        task.add_done_callback(lambda task: self._on_driver_done(head.key, driver, task))

    def _on_driver_done(self, run: RunKey, driver: Driver, task: asyncio.Task[None]) -> None:
        if self._drivers.get(run) is driver:
            del self._drivers[run], self._tasks[run]
            self._slots.release(run.tenant)
        if not driver.claimed.released:
            self._may_own_strays = True
        driver.claimed.notify_starter()
        successor = self._next_claims.pop(run, None)
        if successor is not None and _is_later_claim(successor[0], driver.claimed.head):
            self._drive_if_owned(*successor)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, SystemExit | KeyboardInterrupt):
            _log.error("%s: a node raised %r, which ends the process", run.log_name, error)
        elif error is not None and not isinstance(error, StoreClosed):  # that the worker says
            _log.error("%s: the driver broke", run.log_name, exc_info=error)
        self._wake_if_room(refused=self._slots.refused)
        self._kernel.notifier.notify(run)  # its row says by now what became of it

    # --- staying alive ----------------------------------------------------------------------------

    async def _heartbeat(self) -> None:
        if self.id == "":
            await self._reregister()
        seconds = self._options.lease_seconds / _HEARTBEATS_PER_LEASE
        await self._kernel.clock.sleep(min(seconds, max(self._lease.remaining_seconds(), 0)))
        if not await self._renew_lease():
            _log.warning(
                "worker %s lost its lease, and begins anew: %s", self.id, self._lease.loss_reason
            )
            await self._reregister()
            return
        self._heartbeats += 1
        if self._heartbeats % _HEARTBEATS_PER_LEASE == 0:
            self._unreadable.clear()
            await self._requeue_strays()

    async def _renew_lease(self) -> bool:
        """Prolong the lease; past its end nothing of ours may go on, whatever the store does."""
        try:
            async with asyncio.timeout(max(self._lease.remaining_seconds(), 0)):
                return await self._lease.renew()
        except TimeoutError:
            return False

    async def _reregister(self) -> None:
        """Drop everything that we held, and take a new name."""
        self._reaper.abandon(self.id)
        self.id, self._may_own_strays = "", False
        dropped = list(self._tasks.values())
        self.counts["lost"] += len(dropped)
        await _cancel_tasks(*dropped)
        backoff = _BACKOFF_SECONDS
        while self.id == "":
            try:
                await self._lease.register()
                self.id = self._lease.worker_id
            except StoreClosed:
                raise
            except HoldfastError as error:
                self._outages.record_failure("", _REGISTER, error)
                await self._kernel.clock.sleep(backoff)
                backoff = min(2 * backoff, _BACKOFF_SECONDS_MAX)
        self._outages.record_success(self.id, _REGISTER)
        self._wake.set()

    async def _requeue_strays(self) -> None:
        """Make due what stands under our name and is not ours: a claim whose answer never came."""
        with contextlib.suppress(StoreError):  # the next audit finds it
            await requeue_runs(
                self._kernel, self.id, lost=False, on_requeued=self.offer, skip=self._is_ours
            )

    def _is_ours(self, run: RunKey) -> bool:
        return run in self._drivers or run in self._incoming or run in self._next_claims

    async def _reap(self) -> None:
        await self._reaper.reap(self.id)
        backoff = min(_REAP_INTERVAL_SECONDS, self._options.lease_seconds / _HEARTBEATS_PER_LEASE)
        await self._sleep_or_wake(backoff, self._stopping)

    def _on_requeued(self, place: IndexKey) -> None:
        """Hear that a run of a dead worker is due again."""
        self.counts["taken over"] += 1
        self.offer(place)

    # --- small things -----------------------------------------------------------------------------

    async def _repeat(self, step: Callable[[], Awaitable[None]]) -> None:
        """Repeat a step; what the store cannot do now it may do later."""
        what = step.__name__.strip("_")
        while not self.draining or step == self._heartbeat:
            if self.id == "" and step != self._heartbeat:  # there is nothing to do without a name
                await self._sleep_or_wake(_BACKOFF_SECONDS, self._stopping)
                continue
            try:
                await step()
                self._outages.record_success(self.id, what)
            except StoreClosed as error:
                self._on_store_closed(error)
                return
            except HoldfastError as error:
                self._outages.record_failure(self.id, what, error, level=logging.WARNING)
                await self._kernel.clock.sleep(_BACKOFF_SECONDS)
            except Exception:
                _log.exception("worker %s stumbled", self.id)
                await self._kernel.clock.sleep(_BACKOFF_SECONDS)

    def _on_store_closed(self, error: StoreClosed) -> None:
        """Hear that the store will never answer again; only the one who opened it can open it."""
        self._outages.record_failure(self.id, _USE, error)
        if self._store_closed is not None and not self._store_closed.done():
            self._store_closed.set_result(error)

    def _poll_seconds(self) -> float:
        if self._options.poll_seconds is not None:
            return self._options.poll_seconds
        # Reads of a file cost nothing; those of DynamoDB cost half a unit each.
        return 0.15 if self._kernel.store.url.startswith("sqlite") else 0.9

    async def _sleep_or_wake(self, seconds: float, woken: asyncio.Event) -> None:
        """Return when the event is set, or after a while."""
        sleep = asyncio.ensure_future(self._kernel.clock.sleep(seconds))
        wake = asyncio.ensure_future(woken.wait())
        try:
            await asyncio.wait((sleep, wake), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleep.cancel()
            wake.cancel()


def _is_later_claim(head: Head, driven: Head) -> bool:
    """Return whether a row is of a later claim than one that was driven to its end.

    A scan and a signal may both take a run for us, and each hear that the run is ours: then it was
    one claim, and whoever came second has nothing to go on with.
    """
    return head.generation != driven.generation or head.epoch > driven.epoch


async def _wait_tasks(*tasks: asyncio.Task[Any], within: float) -> None:
    """Return when the tasks are over, or after a while."""
    if tasks:
        await asyncio.wait(tasks, timeout=within)


async def _cancel_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks, and return when they are over, or do not mind."""
    for task in tasks:
        task.cancel()
    await _wait_tasks(*tasks, within=_CANCEL_GRACE_SECONDS)
