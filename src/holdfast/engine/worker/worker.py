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

from holdfast.display import log_named
from holdfast.engine.effects.resources import Means
from holdfast.engine.execution.claimed_run import Hold
from holdfast.engine.execution.driver import Driver
from holdfast.engine.execution.node_threads import NodeThreads
from holdfast.engine.journal.flusher import Flusher
from holdfast.engine.journal.reader import Loaded
from holdfast.engine.kernel.kernel import Dropped, Kernel
from holdfast.engine.runs.local_workers import Hands
from holdfast.engine.worker.health import Outages, WorkerHealth, probe_blobs
from holdfast.engine.worker.lease import Lease
from holdfast.engine.worker.options import WorkerOptions
from holdfast.engine.worker.poll_order import Rounds
from holdfast.engine.worker.poller import Scan
from holdfast.engine.worker.reaper import Reaper, requeue, requeue_all
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
from holdfast.graph import Graph
from holdfast.model.execution import Execution
from holdfast.model.run import Status
from holdfast.records.changes import claimed
from holdfast.records.head import Head, head_of, is_newer
from holdfast.records.keys import Place, RunKey

__all__ = ["Room", "Worker"]

_log = log_named("holdfast.worker")

_BEATS_A_LEASE = 4
# How often a worker asks at the least whether the shards have become more.
_SETTINGS_SECONDS = 60.0
# How long to wait after the store could not be used, before the next try: longer and longer.
_TROUBLE_SECONDS = 1.0
_TROUBLE_SECONDS_MAX = 30.0
# What a worker cannot do while the store cannot be used; its log and its health name it.
_DRIVE, _REGISTER, _USE = "drive runs", "register", "use its store"
# When a run is tried again whose row makes no sense: another release may read it.
_UNREADABLE_MS = 60_000
_REAPING_SECONDS = 5.0
# How long tasks have to end once they are cancelled: a node may not mind being cancelled.
_FAREWELL_SECONDS = 1.0


class Room:
    """Room that a worker keeps for a run: it is to be taken, or given back."""

    def __init__(self, worker: Worker, run: RunKey) -> None:
        self._worker = worker
        self.run = run
        self.owner = worker.id
        """The name under which the run is to stand."""

    def take(self, head: Head, loaded: Loaded | None = None) -> None:
        """Let the worker go on with the run; ``loaded`` is what is known of it."""
        self._worker.arrived(self, head, loaded, unsure=False)

    def give_back(self, *, unsure: bool = False) -> None:
        """Let the worker have its room back; if unsure, the run may yet stand under its name."""
        self._worker.arrived(self, None, None, unsure=unsure)


class Worker:
    """Runs programs until it is told to leave: ``async with hf.worker([graph]): …``"""

    def __init__(
        self,
        kernel: Kernel,
        graphs: Iterable[Graph],
        options: WorkerOptions,
        *,
        ended: Callable[[Head, Execution, Status], None],
        paused: Callable[[Head], None],
        hands: Hands,
        means: Means,
    ) -> None:
        self._kernel = kernel
        self._graphs: dict[str, dict[int, Graph]] = {}
        if not isinstance(graphs, Iterable):
            raise InvalidRequest(f"graphs are a list, not {graphs!r:.80}", field="graphs")
        for graph in graphs:
            if not isinstance(graph, Graph):
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
        self._on_ended = ended
        self._on_paused = paused
        self.hands = hands
        self.means = means
        self.flusher = Flusher(kernel.clock)
        self._lease = Lease(kernel, options.lease_seconds)
        self._reaper = Reaper(kernel, lease_seconds=options.lease_seconds, found=self._take_over)
        self._slots = Slots(options.concurrency)
        self._rounds = Rounds(self._graphs, options.pools)
        self._due = Scan(
            kernel, self._rounds, self._slots, claim=self._claim, may_claim=self._may_claim
        )
        self._drivers: dict[RunKey, Driver] = {}
        self._tasks: dict[RunKey, asyncio.Task[None]] = {}
        # Runs that are being made or claimed for us.
        self._coming: Counter[RunKey] = Counter()
        # Rows of a newer release, or that cannot be read, not to be tried again at each scan.
        self._unreadable: set[Place] = set()
        self._succeeding: dict[RunKey, tuple[Head, Loaded | None]] = {}
        self._claims: set[asyncio.Task[None]] = set()
        self._beating: asyncio.Task[None] | None = None
        self._seeking: list[asyncio.Task[None]] = []
        self._beats = 0
        # Whether something may stand under our name that we do not drive.
        self._owes = False
        self._wake = asyncio.Event()
        self._leaving = asyncio.Event()
        self._gone = asyncio.Event()
        self._broken: asyncio.Future[StoreClosed] | None = None
        self._threads = NodeThreads(options.concurrency)
        self.id = ""
        self.draining = False
        self._outages = Outages(kernel)
        # A result that cannot be written is held for as long as the lease would last by itself.
        self.patience_seconds = options.lease_seconds
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
        if self._beating is not None:
            raise InvalidRequest("a worker starts once; make another one")
        try:
            await self._kernel.settings()
            await self._lease.take()
            self.id = self._lease.worker
        except StoreError as error:
            if not error.may_pass:
                raise
            self._outages.failed("", _REGISTER, error)
        self._broken = asyncio.get_running_loop().create_future()
        self._beating = asyncio.create_task(self._forever(self._beat), name="holdfast beat")
        self._seeking = [
            asyncio.create_task(self._forever(self._scan), name="holdfast scan"),
            asyncio.create_task(self._forever(self._reap), name="holdfast reap"),
        ]

    async def stop(self, *, drain_seconds: float | None = None) -> None:
        """Leave: let nodes run on for a while, release every run, and forget the lease.

        It is gone a few seconds after the deadline, whatever the nodes do. What it could not
        release is found by others once its lease has lapsed.
        """
        if self._beating is None:
            return
        if self.draining:
            await self._gone.wait()
            return
        self.draining = True
        try:
            await self._leave(self._beating, drain_seconds)
        finally:
            # Also where whoever waited for it was cancelled: it leaves at once then.
            for task in (self._beating, *self._seeking, *self._claims, *self._tasks.values()):
                task.cancel()
            self._reaper.stop()
            self.flusher.stop()
            self._threads.shutdown()
            self._gone.set()

    async def _leave(self, beating: asyncio.Task[None], drain_seconds: float | None) -> None:
        self._wake.set()
        self._leaving.set()
        # A claim under way is not cut short: a run that we took without knowing would be nobody's.
        await _over(*self._seeking, *self._claims, within=_FAREWELL_SECONDS)
        allowed = self._options.drain_seconds if drain_seconds is None else drain_seconds
        await _over(*self._tasks.values(), within=allowed)
        for driver in list(self._drivers.values()):
            driver.interrupt(overtaken=False)
        grace = min(5.0, self._options.lease_seconds / _BEATS_A_LEASE)
        await _over(*self._tasks.values(), within=grace)
        seeking = self._claims or any(not task.done() for task in self._seeking)
        clean = self.alive() and not (self._owes or self.running or seeking)
        await _cancelled(beating, *self._seeking, *self._claims, *self._tasks.values())
        if clean:
            with contextlib.suppress(HoldfastError):
                await self._lease.give_up()

    async def broken(self) -> StoreClosed:
        """Wait until the store was closed, or its file deleted or replaced; return the error.

        The worker does nothing any more then: open the store again, and make another one.

        Raises:
            InvalidRequest: it was not started.
        """
        if self._broken is None:
            raise InvalidRequest("the worker was not started")
        return await asyncio.shield(self._broken)

    async def serve(self) -> None:
        """Work until the process is asked to end (SIGTERM, SIGINT), then leave.

        Raises:
            StoreReplaced: the store's file was deleted or replaced.
        """
        loop = asyncio.get_running_loop()
        asked = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, asked.set)
        ends = [asyncio.ensure_future(asked.wait()), asyncio.ensure_future(self.broken())]
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
            raise await self.broken()

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
        return self.id != "" and self._lease.holds()

    def cut_off(self, error: StoreError) -> None:
        """Hear that a run was released because the store could not be used: claim no others."""
        self.counts["cut off"] += 1
        self._outages.failed(self.id, _DRIVE, error)
        self._wake.set()

    def paused(self, head: Head) -> None:
        """Hear that a run waits, and how its row looks."""
        self._on_paused(head)

    def ended(self, head: Head, execution: Execution, status: Status) -> None:
        """Hear that a run has ended."""
        self.counts[status] += 1
        if status == "quarantined":
            why = "" if head.failure is None else f"{head.failure.type}: {head.failure.message}"
            _log.error("%s is quarantined: %s", head.key.told, why)
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

    def reserve(self, run: RunKey, graph: str, pool: str | None) -> Room | None:
        """Keep room for a run that is about to be made or woken, if there is room for it."""
        if not self._may_claim() or not self._serves(graph, pool):
            return None
        # One claim at a time: of two, neither could tell whether it was its own that counted.
        driver = self._drivers.get(run)
        if run in self._coming or (driver is not None and not driver.hold.let_go):
            return None
        if not self._slots.admits(run.tenant):
            return None
        self._expect(run)
        return Room(self, run)

    def arrived(self, room: Room, head: Head | None, loaded: Loaded | None, unsure: bool) -> None:
        """Hear what became of a run for which we kept room; see `Room`."""
        self._owes = self._owes or unsure
        if head is not None:
            self._go_on_with(head, loaded)
        self._come(room.run)

    def offer(self, place: Place) -> None:
        """Hear that a run is due now."""
        graph, pool, _ = place.due_queue()
        if self.draining or not self._serves(graph, pool):
            return
        if self._slots.admits(place.due_parts()[1].tenant):
            claim = asyncio.create_task(self._claim_offered(place))
            self._claims.add(claim)
            claim.add_done_callback(self._claims.discard)

    def holds(self, run: RunKey) -> bool:
        """Return whether we drive that run."""
        return run in self._drivers

    async def settled(self, run: RunKey) -> None:
        """Return when the row of a run that has ended here says so."""
        driver = self._drivers.get(run)
        if driver is not None and driver.hold.execution.ending is not None:
            await asyncio.wait({self._tasks[run]})

    def hear(self, run: RunKey) -> None:
        """Hear that a signal came for a run that we may hold."""
        if run in self._drivers:
            self._drivers[run].hear()

    def interrupt(self, run: RunKey) -> None:
        """Hear that somebody wrote into the journal of a run that we may hold."""
        if run in self._drivers:
            self._drivers[run].interrupt(overtaken=True)

    # --- claiming ---------------------------------------------------------------------------------

    async def _scan(self) -> None:
        """Claim what is due, then wait for more."""
        if _DRIVE in self._outages:
            await self._until_usable()
            return
        self._slots.held_back = False
        found = await self._due.claim(await self._partitions()) if self._slots.free > 0 else 0
        if not found:
            # Not in step with other workers, which would ask the same at the same time.
            jitter = 1 - 0.2 * self._kernel.ids.random()
            await self._until_woken(self._poll_seconds() * jitter, self._wake)
            self._wake.clear()

    async def _until_usable(self) -> None:
        """Return when runs can be driven again, or the worker leaves."""
        pause = _TROUBLE_SECONDS
        while not self.draining:
            await self._until_woken(pause, self._leaving)
            pause = min(2 * pause, _TROUBLE_SECONDS_MAX)
            try:
                await probe_blobs(self._kernel)
            except StoreClosed:
                raise
            except StoreError as error:
                self._outages.failed(self.id, _DRIVE, error)
            else:
                self._outages.works(self.id, _DRIVE)
                return

    async def _partitions(self) -> list[str]:
        seconds = min(self._options.lease_seconds / _BEATS_A_LEASE, _SETTINGS_SECONDS)
        settings = await self._kernel.settings(seconds_old_max=seconds)
        return self._rounds.order(self.id, settings.shards)

    def _may_claim(self) -> bool:
        return not self.draining and self.alive() and _DRIVE not in self._outages

    def _serves(self, graph: str, pool: str | None) -> bool:
        return graph in self._graphs and pool in self._pools

    async def _claim_offered(self, place: Place) -> None:
        try:
            if await self._claim(place) or not self._slots.held_back:
                return
        except HoldfastError:
            pass
        self._wake.set()  # the scan will find it, or what was refused while this one was tried

    async def _claim(self, place: Place) -> bool:
        """Take a run that was seen at a place, if it is still there; return whether it was."""
        _, run, epoch = place.due_parts()
        if place in self._unreadable or not self._may_claim():
            return False
        if self._is_ours(run):
            # Perhaps it was woken before its last driver has heard that it let go of it.
            self._slots.held_back = True
            return False
        if not self._slots.admits(run.tenant):
            return False
        self._expect(run)
        try:
            head = await self._taken(place, run, epoch)
            if head is None or head.owner != self.id:
                return False
            self.counts["claimed"] += 1
            self._go_on_with(head, None)
            return True
        except Dropped:
            return False
        except HoldfastError:
            raise
        except Exception as error:
            # Whatever its row holds, the other runs of the shard come all the same.
            self._set_aside(place, run, error)
            return False
        finally:
            self._come(run)

    def _set_aside(self, place: Place, run: RunKey, error: Exception) -> None:
        """Leave a run alone for a while whose row cannot be read."""
        self._unreadable.add(place)
        self._kernel.note_damage({"PK": run.head.pk, "SK": run.head.sk}, error)

    def _expect(self, run: RunKey) -> None:
        self._slots.take(run.tenant)
        self._coming[run] += 1

    def _come(self, run: RunKey) -> None:
        self._slots.give_back(run.tenant)
        self._coming[run] -= 1
        if self._coming[run] <= 0:
            del self._coming[run]
        self._has_room(refused=self._slots.held_back and run not in self._drivers)

    def _has_room(self, *, refused: bool) -> None:
        """Look again if a slot was given back that somebody wanted, or the first one of all."""
        if refused or self._slots.free == 1:
            self._wake.set()

    async def _taken(self, place: Place, run: RunKey, epoch: int) -> Head | None:
        worker, now = self.id, self._kernel.clock.now_ms()
        write = claimed(place, run, worker=worker, now_ms=now, token=self._kernel.ids.new())
        try:
            item = await self._kernel.settle(
                self._kernel.heads,
                write,
                alive=lambda: self.id == worker and self.alive(),
                stands=lambda item: item.get("owner") == worker and item.get("epoch") == epoch + 1,
            )
        except ConditionFailed as failed:
            if failed.item is not None and is_newer(failed.item):
                self._unreadable.add(place)
            return None
        except (ItemDamaged, InvalidRequest) as error:
            self._set_aside(place, run, error)
            return None
        except (Dropped, HoldfastError):
            self._owes = True
            raise
        try:
            return head_of(item)
        except JournalDamaged as error:
            self._set_aside(place, run, error)
            ours = Place.owned(worker, place.due_queue(), run, epoch + 1)
            await requeue(self._kernel, ours, lost=False, in_ms=_UNREADABLE_MS)
            return None

    def _go_on_with(self, head: Head, loaded: Loaded | None) -> None:
        if head.key in self._drivers:
            # Its last driver has let go of it, and only waits to hear so.
            self._succeeding[head.key] = (head, loaded)
        else:
            self._drive_ours(head, loaded)

    def _drive_ours(self, head: Head, loaded: Loaded | None) -> None:
        """Go on with a run, unless it stands under a name that we no longer have."""
        if head.owner == self.id:
            self._drive(head, loaded)
        elif loaded is not None and loaded.unwritten is not None:
            loaded.unwritten.is_lost()

    def _drive(self, head: Head, loaded: Loaded | None) -> None:
        versions = self._graphs[head.graph]
        # Another version may go on with it: what was decided is recorded, the route included.
        graph = versions.get(head.version) or versions[max(versions)]
        driver = Driver(Hold(self._kernel, self, head, loaded), graph)
        task = asyncio.create_task(driver.drive(), name=f"holdfast run {head.key.id}")
        if head.key not in self._drivers:
            self._slots.take(head.key.tenant)
        self._drivers[head.key], self._tasks[head.key] = driver, task
        task.add_done_callback(lambda task: self._done(head.key, driver, task))

    def _done(self, run: RunKey, driver: Driver, task: asyncio.Task[None]) -> None:
        if self._drivers.get(run) is driver:
            del self._drivers[run], self._tasks[run]
            self._slots.give_back(run.tenant)
        if not driver.hold.let_go:
            self._owes = True
        driver.hold.tell_starter()
        successor = self._succeeding.pop(run, None)
        if successor is not None and _is_later(successor[0], driver.hold.head):
            self._drive_ours(*successor)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, SystemExit | KeyboardInterrupt):
            _log.error("%s: a node raised %r, which ends the process", run.told, error)
        elif error is not None and not isinstance(error, StoreClosed):  # that the worker says
            _log.error("%s: the driver broke", run.told, exc_info=error)
        self._has_room(refused=self._slots.held_back)
        self._kernel.news.tell(run)  # its row says by now what became of it

    # --- staying alive ----------------------------------------------------------------------------

    async def _beat(self) -> None:
        if self.id == "":
            await self._begin_anew()
        seconds = self._options.lease_seconds / _BEATS_A_LEASE
        await self._kernel.clock.sleep(min(seconds, max(self._lease.remaining_seconds(), 0)))
        if not await self._prolonged():
            _log.warning("worker %s lost its lease, and begins anew: %s", self.id, self._lease.loss)
            await self._begin_anew()
            return
        self._beats += 1
        if self._beats % _BEATS_A_LEASE == 0:
            self._unreadable.clear()
            await self._audit()

    async def _prolonged(self) -> bool:
        """Prolong the lease; past its end nothing of ours may go on, whatever the store does."""
        try:
            async with asyncio.timeout(max(self._lease.remaining_seconds(), 0)):
                return await self._lease.prolong()
        except TimeoutError:
            return False

    async def _begin_anew(self) -> None:
        """Drop everything that we held, and take a new name."""
        self._reaper.abandon(self.id)
        self.id, self._owes = "", False
        dropped = list(self._tasks.values())
        self.counts["lost"] += len(dropped)
        await _cancelled(*dropped)
        pause = _TROUBLE_SECONDS
        while self.id == "":
            try:
                await self._lease.take()
                self.id = self._lease.worker
            except StoreClosed:
                raise
            except HoldfastError as error:
                self._outages.failed("", _REGISTER, error)
                await self._kernel.clock.sleep(pause)
                pause = min(2 * pause, _TROUBLE_SECONDS_MAX)
        self._outages.works(self.id, _REGISTER)
        self._wake.set()

    async def _audit(self) -> None:
        """Make due what stands under our name and is not ours: a claim whose answer never came."""
        with contextlib.suppress(StoreError):  # the next audit finds it
            await requeue_all(
                self._kernel, self.id, lost=False, found=self.offer, but=self._is_ours
            )

    def _is_ours(self, run: RunKey) -> bool:
        return run in self._drivers or run in self._coming or run in self._succeeding

    async def _reap(self) -> None:
        await self._reaper.reap(self.id)
        pause = min(_REAPING_SECONDS, self._options.lease_seconds / _BEATS_A_LEASE)
        await self._until_woken(pause, self._leaving)

    def _take_over(self, place: Place) -> None:
        """Hear that a run of a dead worker is due again."""
        self.counts["taken over"] += 1
        self.offer(place)

    # --- small things -----------------------------------------------------------------------------

    async def _forever(self, step: Callable[[], Awaitable[None]]) -> None:
        """Repeat a step; what the store cannot do now it may do later."""
        what = step.__name__.strip("_")
        while not self.draining or step == self._beat:
            if self.id == "" and step != self._beat:  # there is nothing to do without a name
                await self._until_woken(_TROUBLE_SECONDS, self._leaving)
                continue
            try:
                await step()
                self._outages.works(self.id, what)
            except StoreClosed as error:
                self._break(error)
                return
            except HoldfastError as error:
                self._outages.failed(self.id, what, error, level=logging.WARNING)
                await self._kernel.clock.sleep(_TROUBLE_SECONDS)
            except Exception:
                _log.exception("worker %s stumbled", self.id)
                await self._kernel.clock.sleep(_TROUBLE_SECONDS)

    def _break(self, error: StoreClosed) -> None:
        """Hear that the store will never answer again; only the one who opened it can open it."""
        self._outages.failed(self.id, _USE, error)
        if self._broken is not None and not self._broken.done():
            self._broken.set_result(error)

    def _poll_seconds(self) -> float:
        if self._options.poll_seconds is not None:
            return self._options.poll_seconds
        # Reads of a file cost nothing; those of DynamoDB cost half a unit each.
        return 0.15 if self._kernel.store.url.startswith("sqlite") else 0.9

    async def _until_woken(self, seconds: float, woken: asyncio.Event) -> None:
        """Return when the event is set, or after a while."""
        sleep = asyncio.ensure_future(self._kernel.clock.sleep(seconds))
        wake = asyncio.ensure_future(woken.wait())
        try:
            await asyncio.wait((sleep, wake), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleep.cancel()
            wake.cancel()


def _is_later(head: Head, driven: Head) -> bool:
    """Return whether a row is of a later claim than one that was driven to its end.

    A scan and a signal may both take a run for us, and each hear that the run is ours: then it was
    one claim, and whoever came second has nothing to go on with.
    """
    return head.generation != driven.generation or head.epoch > driven.epoch


async def _over(*tasks: asyncio.Task[Any], within: float) -> None:
    """Return when the tasks are over, or after a while."""
    if tasks:
        await asyncio.wait(tasks, timeout=within)


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks, and return when they are over, or do not mind."""
    for task in tasks:
        task.cancel()
    await _over(*tasks, within=_FAREWELL_SECONDS)
