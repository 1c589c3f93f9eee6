"""The workers and the clients of a fleet, and the people who look after its runs."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from holdfast.app import Holdfast
from holdfast.errors import (
    ExpiryNotLater,
    HoldfastError,
    InboxFull,
    InvalidRequest,
    NotAmbiguous,
    NotRetryable,
    RunEnded,
    RunNotFound,
    SessionBusy,
    SignalMisfit,
    StoreError,
)
from holdfast.graph import Graph
from holdfast.handle import RunHandle
from holdfast.model.run import AmbiguousCall
from holdfast.model.wait import ResolutionWait
from holdfast.records.head import ENDED
from holdfast.records.keys import RunKey
from tests.simulation.chronicle import Broken
from tests.simulation.effects import Outside
from tests.simulation.faces import face_of
from tests.simulation.faults import NEVER
from tests.simulation.flow import State, noise
from tests.simulation.inboxes import TRIES, Crowd, flood
from tests.simulation.lot import Lot
from tests.simulation.once import RESOLUTION
from tests.simulation.process import Process
from tests.simulation.promises import Promises
from tests.simulation.script import (
    DAY_SECONDS,
    TENANT,
    Line,
    Script,
    Wish,
)
from tests.simulation.senders import MISFIT
from tests.simulation.shared import SAGE, SAGE_QUOTA
from tests.simulation.strangers import OWN, ask_for_others
from tests.simulation.world import World

__all__ = ["LEASE_SECONDS", "TROUBLE_SECONDS", "Fleet"]

LEASE_SECONDS = 20.0
POLL_SECONDS = 3.0
TROUBLE_SECONDS = 150.0
"""How long everything goes wrong."""
FUND_SECONDS = 4.0
"""How long a budget stands that is lowered before it is raised."""
PERSON_SECONDS = 6.0
"""How often somebody looks for calls of which nobody knows what became of them."""
LATECOMER_SECONDS = 0.7
"""How often the latecomer looks for runs that are about to expire."""
CLIENT_CRASHES = 0.1
"""How many of a client's attempts it does not outlive."""
MISFIT_EVERY = 4
"""Before one of so many signals comes one that does not fit."""


@dataclass
class Fleet:
    """Everything that is known outside the world."""

    world: World
    promises: Promises
    script: Script
    floor_bytes: int
    graph: Graph
    outside: Outside
    lot: Lot
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    drains: bool = True
    trouble_seconds: float = TROUBLE_SECONDS
    shared: bool = False
    """Whether clients live in the workers' processes, and so hand runs to them directly."""
    faces: dict[str, Holdfast] = field(default_factory=dict)
    rejected: set[str] = field(default_factory=set)
    unwritten: dict[str, str] = field(default_factory=dict)
    """How runs ended of which nothing stands anywhere."""
    crowd: Crowd | None = None
    """How small the inboxes are, where they are."""
    strange: bool = False
    """Whether other users ask for its runs."""
    late: Iterator[int] = field(default_factory=itertools.count)
    """The numbers of signals that come at the last moment."""

    @property
    def shaky(self) -> bool:
        """Whether clients still crash in the middle of what they do."""
        return self.world.plan.crash > NEVER

    def send_home(self) -> None:
        """Let every worker leave, and everybody who looks after runs."""
        self.leaving.set()
        self.promises.dismissed()

    # --- workers ----------------------------------------------------------------------------------

    async def work(self, process: Process) -> None:
        """Be a worker, and leave and come back now and then."""
        hf = self.face(process)
        if self.shared:
            number = int(process.name.partition(".")[0][1:])
            self._beside(self.client(self.script.clients[number])(process))
        if self.promises.streams.screens:
            self._beside(self.promises.streams.serve(process, hf, self.leaving))
        while not self.leaving.is_set():
            worker = hf.worker(
                [self.graph],
                concurrency=8,
                lease=LEASE_SECONDS,
                poll=POLL_SECONDS,
                drain=2.0,
                resumes_max=self.lot.resumes_max,
            )
            self.promises.reaping.works(process, worker)
            try:
                await worker.start()
            except HoldfastError:
                await process.clock.sleep(1.0)
                continue
            least, most = self.lot.stay_seconds
            patience = least + (most - least) * process.ids.random() if self.drains else 1e6
            await self._until_leaving(process, patience)
            await worker.stop()

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something else in a worker's process."""
        asyncio.ensure_future(work).add_done_callback(self._is_done)

    def _is_done(self, task: asyncio.Future[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.world.loop.fail(task.exception() or RuntimeError())

    async def _until_leaving(self, process: Process, seconds: float) -> None:
        until = process.clock.monotonic() + seconds
        while not self.leaving.is_set() and process.clock.monotonic() < until:
            await process.clock.sleep(2.0)

    def face(self, process: Process) -> Holdfast:
        """Return what a process uses; one that was started again has another."""
        if process.name not in self.faces:
            self.faces[process.name] = face_of(
                process,
                tenant=TENANT,
                models=self.outside.models,
                quotas={SAGE: SAGE_QUOTA},
                limits=None if self.crowd is None else self.crowd.limits,
            )
            kernel = self.faces[process.name]._kernel
            kernel.snapshot_floor_bytes = self.floor_bytes
            kernel.sweeps_max = self.lot.sweeps_max
            kernel.spill_bytes = self.world.outages.spill_bytes or kernel.spill_bytes
        return self.faces[process.name]

    # --- clients ----------------------------------------------------------------------------------

    def client(self, script: list[Line]) -> Callable[[Process], Coroutine[Any, Any, None]]:
        """Return a process that works through a script."""

        async def boot(process: Process) -> None:
            hf, tries = self.face(process), TRIES
            for line in script:
                await process.clock.sleep(line.at_seconds - process.clock.monotonic())
                while not line.done:
                    crashes = CLIENT_CRASHES / 5 if self.shared else CLIENT_CRASHES
                    if self.shaky and process.ids.random() < crashes:
                        moment = self.world.loop.time() + process.ids.random() * 0.05
                        self.world.at(moment, process.crash)
                    try:
                        await self._do(process, hf, line)
                        line.done = True
                    except (RunEnded, NotRetryable, ExpiryNotLater):
                        line.done = line.refused = True
                    except InboxFull:
                        # The run may make room; where it was flooded, it never will.
                        tries -= 1
                        line.done = line.refused = tries % TRIES == 0
                        await process.clock.sleep(2.0)
                    except SessionBusy:
                        line.done = line.refused = True
                        self.rejected.add(line.run)
                    except InvalidRequest as error:
                        raise Broken(f"P9: no store takes what {line} comes to: {error}") from None
                    except StoreError:
                        await process.clock.sleep(1.0)  # a part of it may have been written
                    except RunNotFound:
                        line.done = line.refused = line.run in self.rejected | self.unwritten.keys()
                        await process.clock.sleep(1.0)

        return boot

    async def _do(self, process: Process, hf: Holdfast, line: Line) -> None:
        wish = self.script.wishes.get(line.run)
        key = RunKey(TENANT if wish is None else wish.tenant, line.run)
        match line.verb:
            case "start":
                handle = await self.start(hf, line.run, self.script.wishes[line.run])
                if handle._outcome is None:
                    self.promises.started(key)
                else:
                    self.promises.seen["never written"] += 1
                    self.unwritten[line.run] = handle._outcome.status
            case "signal":
                for id in line.id.split(","):
                    await self.send(process, hf, key, line.argument, id)
            case "cancel":
                await hf.run(line.run).cancel("no longer wanted")
            case "extend":
                span = float(line.argument)
                before_ms = process.clock.now_ms()
                await hf.run(line.run).extend(span)
                now_ms = min(before_ms, process.clock.now_ms())  # it may have been set back
                self.promises.extended(key, now_ms + round(span * 1000))
            case "fund":
                for tokens in line.argument.split():  # the last one is enough
                    budget = self.promises.books.budget_of(int(tokens))
                    await hf.run(line.run).set_budget(budget)
                    self.promises.funded(key, budget)
                    await process.clock.sleep(FUND_SECONDS)
            case "grow":
                await hf.grow_shards(int(line.argument))
            case "retry":
                if (await hf.run(line.run).get()).status in ENDED:
                    await hf.run(line.run).retry()
            case _:
                raise AssertionError(line.verb)

    async def send(self, process: Process, hf: Holdfast, key: RunKey, name: str, id: str) -> None:
        """Send a signal, and let it be checked what came of it; before some, one that misfits."""
        if crc32(f"{key.id}/{name}/{id}".encode()) % MISFIT_EVERY == 0:
            try:
                await self._send(process, hf, key, name, f"{id}{MISFIT}")
            except SignalMisfit:
                self.promises.seen["misfit refused"] += 1
        await self._send(process, hf, key, name, id)

    async def _send(self, process: Process, hf: Holdfast, key: RunKey, name: str, id: str) -> None:
        senders, inboxes = self.promises.senders, self.promises.inboxes
        since, mark = senders.begins(process, key, name, id), inboxes.mark(process)
        try:
            payload = 7 if id.endswith(MISFIT) else f"{name}/{id}"
            await hf.run(key.id).signal(name, payload, signal_id=id)
        except RunEnded as ended:
            senders.refused(process, key, name, id, status=ended.status, since=since)
            raise
        except InboxFull:
            inboxes.refused(key, (name, id))
            raise
        self.promises.signalled(key, name, id)
        senders.told(key, name, id)
        inboxes.told(process, key, (name, id), mark)

    async def pest(self, process: Process) -> None:
        """Flood some runs with signals that they never take."""
        assert self.crowd is not None
        await flood(self, process, self.crowd)

    async def stranger(self, process: Process) -> None:
        """Ask for runs of other users."""
        await ask_for_others(self, process)

    async def latecomer(self, process: Process) -> None:
        """Send signals to runs that are about to expire, and again when they have."""
        hf = self.face(process)
        while not self.leaving.is_set():
            await process.clock.sleep(LATECOMER_SECONDS * (0.5 + process.ids.random()))
            expiring = self.promises.expiring(2 * round(1000 * LATECOMER_SECONDS))
            await asyncio.gather(*(self._signal_late(process, hf, key) for key in expiring * 3))

    async def _signal_late(self, process: Process, hf: Holdfast, key: RunKey) -> None:
        id = f"late-{next(self.late)}"
        for _ in range(2):
            with suppress(InboxFull, RunEnded, RunNotFound, StoreError):
                await self.send(process, hf, key, "go", id)
            await process.clock.sleep(2 * process.ids.random())

    # --- whoever is asked what became of a call ---------------------------------------------------

    async def person(self, process: Process) -> None:
        """Look now and then for calls that may have been made, and say what became of them."""
        hf = self.face(process)
        while not self.leaving.is_set():
            await process.clock.sleep(PERSON_SECONDS * (0.5 + process.ids.random()))
            if self.promises.once.is_anybody_asked:
                with suppress(StoreError):
                    async for call in hf.ambiguous():
                        await self._resolve(hf, call)

    async def read(self, process: Process) -> None:
        """Serve those who follow the text of a run, in a process without a worker."""
        await self.promises.streams.serve(process, self.face(process), self.leaving)

    async def _resolve(self, hf: Holdfast, call: AmbiguousCall) -> None:
        try:
            await hf.run(call.run).resolve(call.call, **self.outside.said_of(call.key))
        except (RunEnded, RunNotFound, NotAmbiguous):
            return
        name = ResolutionWait(call.call).signal
        self.promises.signalled(RunKey(TENANT, call.run), name, RESOLUTION)

    async def start(
        self, hf: Holdfast, run: str, wish: Wish, *, user: str | None = OWN
    ) -> RunHandle:
        """Start a run as it is wished for, unless for another user."""
        given: State = {"plan": wish.plan, "at": 0}
        if wish.ballast:
            given["ballast"] = noise(run, wish.ballast)
        return await hf.start(
            self.graph,
            given,
            id=run,
            tenant=wish.tenant,
            user=wish.user if user == OWN else user,
            session=wish.session,
            on_busy=wish.on_busy if wish.session else None,
            durability="on_pause" if wish.in_memory else None,
            expires=wish.expires or 7 * DAY_SECONDS,
            budget=None if wish.tokens is None else self.promises.books.budget_of(wish.tokens),
        )
