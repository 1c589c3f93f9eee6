"""A fleet of workers and clients that do everything to runs, while everything goes wrong.

Each run has a plan (`flow`): which nodes it goes through, which signals it waits for. Each client
has a script (`script`) of what it does to whom and when; it repeats each line until it is
acknowledged, also after it has crashed. The scripts, the plans and what came of them are outside
the world: they stand for the users.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from holdfast.app import Holdfast, RunHandle
from holdfast.errors import (
    ExpiryNotLater,
    HoldfastError,
    InvalidRequest,
    NotAmbiguous,
    NotRetryable,
    RunEnded,
    RunNotFound,
    SessionBusy,
    StoreError,
)
from holdfast.graph import Graph
from holdfast.model.call import settled_signal
from holdfast.model.run import AmbiguousCall
from holdfast.records.head import ENDED, head_of
from holdfast.records.keys import RunKey
from tests.simulation.chronicle import Broken
from tests.simulation.effects import Outside
from tests.simulation.faults import NEVER, FaultPlan, calm, hostile
from tests.simulation.flow import State, Users, flow, gains, is_hopeless, noise
from tests.simulation.lot import Lot, drawn_lot, jump_clocks, lengthen, plant_dead
from tests.simulation.once import RESOLUTION
from tests.simulation.oracle import budget_of
from tests.simulation.outages import OutageWatch, drawn_outages
from tests.simulation.process import Process
from tests.simulation.promises import Promises
from tests.simulation.rates import rates
from tests.simulation.reduction import REUSE, WHOLE, Reduction
from tests.simulation.script import (
    DAY_SECONDS,
    FOLLOWER,
    RUNS,
    SLEEPER,
    TENANT,
    Line,
    Script,
    Wish,
    drawn_profile,
    drawn_script,
)
from tests.simulation.setting import setting
from tests.simulation.shared import SAGE, SAGE_QUOTA
from tests.simulation.streams import Screen
from tests.simulation.treasurer import Treasurer
from tests.simulation.world import World, simulate

__all__ = ["RUNS", "WORKERS", "Outcome", "fleet", "rough"]

WORKERS = 3
LEASE_SECONDS = 20.0
POLL_SECONDS = 3.0
TROUBLE_SECONDS = 150.0
"""How long everything goes wrong."""
REST_SECONDS = 8 * LEASE_SECONDS
"""After that much more, nothing may be left undone."""
TOLD_SECONDS = 4 * 50.0
"""How much longer it may take where runs ask several shared questions, one after the other."""
STILL_LEASES = 1
"""For how many leases nothing may have been left undone before a fleet is sent home earlier."""
FUND_SECONDS = 4.0
"""How long a budget stands that is lowered before it is raised."""
PERSON_SECONDS = 6.0
"""How often somebody looks for calls of which nobody knows what became of them."""
FEW_RESUMES = 10
"""Runs that lose so few workers in a row may be quarantined."""
LATECOMER_SECONDS = 0.7
"""How often the latecomer looks for runs that are about to expire."""
CLIENT_CRASHES = 0.1
"""How many of a client's attempts it does not outlive."""
TICK_MS = 16
"""How far clocks move at once where signals come one right after the other."""
SHARED = 0.5
"""How many fleets have their clients in the processes of their workers."""
REAPED_SECONDS = 3.5 * LEASE_SECONDS
"""So long after the trouble is over no dead worker is left."""
CROWDED = 4
"""Of so many fleets that call the world outside, processes crowd at one quota: see `rates`."""
SLUGGISH = 0.15
"""How many fleets that call the world outside are slow in everything that they do."""
STUCK_SECONDS = 600.0
RUNS_FOLLOWED = 3
FLOORS_BYTES = (0, 1_000, 64 * 1024)
"""From how much on a journal is worth a snapshot: mostly little, so that there are many."""


@dataclass
class Outcome:
    """What became of a simulated fleet."""

    world: World
    promises: Promises
    statuses: dict[str, str]
    calls: bool
    """Whether its runs called the world outside."""


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
    late: Iterator[int] = field(default_factory=itertools.count)
    """The numbers of signals that come at the last moment."""

    @property
    def shaky(self) -> bool:
        """Whether clients still crash in the middle of what they do."""
        return self.world.plan.crash > NEVER

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
                lease_seconds=LEASE_SECONDS,
                poll_seconds=POLL_SECONDS,
                drain_seconds=2.0,
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
            self.faces[process.name] = Holdfast(
                process.store.url,
                tenant=TENANT,
                store=process.store,
                clock=process.clock,
                ids=process.ids,
                models=self.outside.models,
                quotas={SAGE: SAGE_QUOTA},
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
            hf = self.face(process)
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
                    except SessionBusy:
                        line.done = line.refused = True
                        self.rejected.add(line.run)
                    except InvalidRequest as error:
                        raise Broken(f"P9: no store takes what {line} comes to: {error}") from None
                    except (StoreError, RunNotFound):
                        line.done = line.refused = line.run in self.rejected | self.unwritten.keys()
                        await process.clock.sleep(1.0)

        return boot

    async def _do(self, process: Process, hf: Holdfast, line: Line) -> None:
        wish = self.script.wishes.get(line.run)
        key = RunKey(TENANT if wish is None else wish.tenant, line.run)
        match line.verb:
            case "start":
                handle = await self._start(hf, line.run, self.script.wishes[line.run])
                if handle._outcome is None:
                    self.promises.started(key)
                else:
                    self.promises.seen["never written"] += 1
                    self.unwritten[line.run] = handle._outcome.status
            case "signal":
                for id in line.id.split(","):
                    await self._signal(process, hf, key, line.argument, id)
            case "cancel":
                await hf.cancel(line.run, reason="no longer wanted")
            case "extend":
                span = float(line.argument)
                before_ms = process.clock.now_ms()
                await hf.extend(line.run, expires=span)
                now_ms = min(before_ms, process.clock.now_ms())  # it may have been set back
                self.promises.extended(key, now_ms + round(span * 1000))
            case "fund":
                for tokens in line.argument.split():  # the last one is enough
                    budget = budget_of(int(tokens))
                    await hf.set_budget(line.run, budget)
                    self.promises.funded(key, budget)
                    await process.clock.sleep(FUND_SECONDS)
            case "grow":
                await hf.grow_shards(int(line.argument))
            case "retry":
                if (await hf.get(line.run)).status in ENDED:
                    await hf.retry(line.run)
            case _:
                raise AssertionError(line.verb)

    async def _signal(
        self, process: Process, hf: Holdfast, key: RunKey, name: str, id: str
    ) -> None:
        senders, since_ms = self.promises.senders, process.clock.now_ms()
        senders.begins(process, key, name, id)
        try:
            await hf.signal(key.id, name, f"{name}/{id}", signal_id=id)
        except RunEnded as ended:
            senders.refused(process, key, name, id, status=ended.status, since_ms=since_ms)
            raise
        self.promises.signalled(key, name, id)
        senders.told(key, name, id)

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
            with suppress(RunEnded, RunNotFound, StoreError):
                await self._signal(process, hf, key, "go", id)
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
            await hf.resolve(call.run, call.call, **self.outside.said_of(call.key))
        except (RunEnded, RunNotFound, NotAmbiguous):
            return
        self.promises.signalled(RunKey(TENANT, call.run), settled_signal(call.call), RESOLUTION)

    async def _start(self, hf: Holdfast, run: str, wish: Wish) -> RunHandle:
        given: State = {"plan": wish.plan, "at": 0}
        if wish.ballast:
            given["ballast"] = noise(run, wish.ballast)
        return await hf.start(
            self.graph,
            given,
            id=run,
            tenant=wish.tenant,
            user="ann" if wish.session == "phone" else None,
            session=wish.session,
            on_busy=wish.on_busy if wish.session else None,
            durability="on_pause" if wish.in_memory else None,
            expires=wish.expires or 7 * DAY_SECONDS,
            budget=None if wish.tokens is None else budget_of(wish.tokens),
        )


def rough() -> FaultPlan:
    """Return the plan of faults for fleets."""
    return hostile().evolve(
        throttled=0.015,
        unreachable=0.015,
        lost_answer=0.025,
        slow=0.015,
        crash=0.0016,
        stall=0.0018,
        stall_seconds_max=90.0,
        restart_seconds_max=15.0,
        late_write=0.02,
        slow_signal=0.03,
        abandoned=0.4,
        effect_lost=0.02,
        effect_unanswered=0.03,
        effect_late=0.03,
        effect_crash=0.03,
        effect_stall=0.02,
        dead_workers=0.1,
        clock_jumps=0.25,
        few_resumes=0.1,
        settle_stall=0.03,
        family_stall=0.02,
        table_outage=0.2,
        blob_outage=0.25,
        stream_broken=0.06,
        stream_crash=0.06,
        stream_stall=0.05,
    )


def fleet(
    seed: int | str,
    plan: FaultPlan | None = None,
    *,
    reuse: bool = True,
    calling: bool | None = None,
    telling: bool | None = None,
    reduction: Reduction = WHOLE,
) -> Outcome:
    """Let a fleet work through everything, first in trouble, then in peace; check the promises.

    ``calling`` says whether its runs call the world outside, ``telling`` whether they also share
    answers, and let texts be followed; unless said, the seed decides.
    ``reduction`` leaves parts of what was drawn out.
    """
    chosen = plan or rough()

    async def scenario(world: World) -> Outcome:
        profile = drawn_profile(world.random, calling=calling, telling=telling)
        calls, tells = profile.calls > 0, profile.tells
        lot = drawn_lot(world, chosen, calling=calls)
        promises = Promises(
            world,
            skew_ms=round(2 * chosen.skew_seconds_max * 1000) + 100,
            stuck_ms=round(STUCK_SECONDS * 1000),
            lease_seconds=LEASE_SECONDS,
            lot=lot,
        )
        script = drawn_script(world.random, TROUBLE_SECONDS, profile)
        lengthen(script.wishes, lot)
        script = reduction.reduced(script)
        if tells:
            promises.streams.screens += _screens(script)
        floor_bytes = world.random.choice(FLOORS_BYTES)
        outside = Outside(
            world,
            promises.seen,
            once=promises.once,
            books=promises.books,
            gate=promises.gate,
            shared=promises.shared,
            streams=promises.streams,
        )
        outside.begun_again = script.in_memory
        if script.has_bursts:
            world.plan = world.plan.evolve(tick_ms=TICK_MS)
        world.users = Users(promises.entered, outside)
        state = Fleet(world, promises, script, floor_bytes, flow(), outside, lot)
        state.shared = world.random.random() < SHARED
        if calls and world.random.random() < SLUGGISH:
            world.plan = world.plan.evolve(sluggish=1.0)
        _draw_outages(world, state)
        state.trouble_seconds = reduction.trouble_seconds or TROUBLE_SECONDS
        if reduction.dice:
            world.throw_anew(reduction.dice)
        with setting(script.shards):
            await _worked_through(world, state, calls=calls)
            promises.settled()
            _check_results(world, state)
            statuses = _statuses(world)
            if reuse and REUSE not in reduction.without:
                await _reused(world, state)
        return Outcome(world, promises, statuses, calls)

    outcome = simulate(scenario, seed, chosen, muted=reduction.faults)
    crowded = isinstance(seed, int) and seed % CROWDED == 0 and reduction == WHOLE
    if outcome.calls and crowded:
        outcome.promises.seen.update(rates(seed))
    return outcome


def _draw_outages(world: World, state: Fleet) -> None:
    names = [f"w{number}" for number in range(WORKERS)]
    world.outages = drawn_outages(world.seed, world.plan, seconds=TROUBLE_SECONDS, processes=names)
    if world.outages.windows:
        world.watch = OutageWatch(
            world, state.promises.seen, patience_seconds=LEASE_SECONDS, shared=state.shared
        )


def _screens(script: Script) -> list[Screen]:
    """Return who follows the texts of some runs: each of them twice."""
    speaking = [RunKey(wish.tenant, run) for run, wish in script.wishes.items() if wish.speaks]
    return [Screen(run) for run in speaking[-RUNS_FOLLOWED:] for _ in range(2)]


async def _passed(world: World, seconds: float) -> None:
    """Let time pass, in nobody's name."""
    over = world.loop.create_future()
    world.at(world.loop.time() + seconds, over.set_result, None)
    await over


async def _come_to_rest(world: World, state: Fleet) -> None:
    """Let time pass until nothing is left undone, and a while longer; at most so long.

    Whatever is late must have come, and who stalls must have gone on, before the while begins.
    """
    # What was written by a clock that was ahead is due only then.
    over = world.loop.time() + REST_SECONDS + state.lot.skew_seconds_max
    if state.promises.streams.screens:
        over += TOLD_SECONDS
    still = 0
    while still < STILL_LEASES and world.loop.time() < over:
        await _passed(world, LEASE_SECONDS)
        still = still + 1 if _is_done(world, state) and not world.is_up_to_something() else 0


def _is_done(world: World, state: Fleet) -> bool:
    """Return whether everything has come to the end that it must come to."""
    try:
        state.promises.settled()
        _check_results(world, state)
    except Broken:
        return False
    return True


async def _worked_through(world: World, state: Fleet, *, calls: bool) -> None:
    plant_dead(world, state.lot, LEASE_SECONDS)
    jump_clocks(world, state.lot, state.trouble_seconds, is_worker=_is_worker)
    workers = [world.supervise(f"w{number}", state.work) for number in range(WORKERS)]
    clients = [
        world.supervise(f"c{number}", state.client(script))
        for number, script in enumerate(state.script.clients)
        if not state.shared
    ]
    workers.append(world.supervise("person", state.person))
    if calls:
        treasurer = Treasurer(state.outside, state.promises.seen, state.leaving)
        workers.append(
            world.supervise(
                "treasurer", lambda process: treasurer.work(state.face(process), process)
            )
        )
    workers.append(world.supervise("late", state.latecomer))
    if state.promises.streams.screens:
        workers.append(world.supervise("reader", state.read))
    await _passed(world, state.trouble_seconds)
    world.plan = calm().evolve(
        stale_index=world.plan.stale_index,
        skew_seconds_max=world.plan.skew_seconds_max,
        sluggish=world.plan.sluggish,
    )
    world.at(world.loop.time() + REAPED_SECONDS, _check_reaped, state)
    for client in clients:
        await client.ended
    while not all(line.done for line in state.script.lines):
        await _passed(world, 5)
    await _come_to_rest(world, state)
    state.leaving.set()
    for worker in workers:
        await worker.ended


def _is_worker(process: Process) -> bool:
    return process.name.startswith("w") and not process.crashed


def _check_reaped(state: Fleet) -> None:
    try:
        state.promises.reaping.check_reaped()
    except Broken as broken:
        state.world.loop.fail(broken)


def _statuses(world: World) -> dict[str, str]:
    heads = [head_of(item) for item in world.items("RUN#") if item["SK"] == "HEAD"]
    return {head.key.id: head.status for head in heads}


def _check_results(world: World, state: Fleet) -> None:
    """Every run has come to the end that its plan, its signals and its session lead to."""
    statuses = _statuses(world)
    for run, wish in state.script.wishes.items():
        lines = state.script.about(run)
        status = statuses.get(run, state.unwritten.get(run))
        if run in state.rejected or (run == SLEEPER and status == "waiting"):
            continue
        if any(line.refused for line in lines) and status in ("running", "waiting"):
            continue
        allowed = _allowed(state, run, wish)
        if status not in allowed:
            raise Broken(f"P6: {run} with {wish} is {status}, and should be {sorted(allowed)}")
        if status == "finished" and run in statuses:
            got = state.promises.state(RunKey(wish.tenant, run)).get("got", [])
            # What would wait beyond an expiry fails, and may be spared.
            if len(got) > gains(wish.plan) or (
                wish.expires is None and len(got) != gains(wish.plan)
            ):
                raise Broken(f"P2: {run} with {wish} is finished, and has got {got}")


def _allowed(state: Fleet, run: str, wish: Wish) -> set[str]:
    """Return how a run may have ended."""
    lines = state.script.about(run)
    cancels = [line for line in lines if line.verb == "cancel"]
    if any(not line.refused for line in cancels):
        return {"cancelled"}
    allowed = {"finished"}
    if is_hopeless(wish.plan):
        allowed.add("failed")
    if wish.expires is not None:
        allowed |= {"expired", "failed"}
        if cancels:  # a first try whose answer was lost may count, and the next come too late
            allowed.add("cancelled")
    if wish.on_busy == "promote":
        allowed.add("promoted")
    if state.lot.resumes_max < FEW_RESUMES:
        allowed |= {"quarantined", "failed"}  # a child of it may be quarantined, too
    others = [other for name, other in state.script.wishes.items() if name != run]
    if any(other.on_busy == "replace" and other.session == wish.session for other in others):
        allowed.add("cancelled")
    return allowed


async def _reused(world: World, state: Fleet) -> None:
    """Start runs under ids whose rows are over their time, but perhaps not gone yet.

    By then nothing is left of the run that sleeps but what was made to last. Another one is started
    behind it in its session, and then it is woken.
    """
    await _passed(world, 12 * DAY_SECONDS)
    world.plan = rough()
    ids = [run for run, wish in sorted(state.script.wishes.items()) if wish.expires is None][:4]
    now = world.loop.time()
    script = Script()
    for run in ids:
        script.wishes[run] = Wish(["work 0.1", "swift", "heavy", "work 0.2"])
    script.wishes[FOLLOWER] = Wish(["work 0.1"], session=state.script.wishes[SLEEPER].session)
    starts = [Line(now + number, "start", run) for number, run in enumerate(script.wishes)]
    state.outside.begun_again = script.in_memory
    script.clients = [starts, [Line(now + 9, "signal", SLEEPER, "wake", "w")]]
    later = Fleet(
        world,
        state.promises,
        script,
        state.floor_bytes,
        state.graph,
        state.outside,
        state.lot,
        drains=False,
    )
    workers = [world.supervise("later", later.work)]
    clients = [world.supervise("again", later.client(lines)) for lines in script.clients]
    await _passed(world, 20)
    world.plan = calm()
    for client in clients:
        await client.ended
    await _passed(world, 6 * LEASE_SECONDS)
    later.leaving.set()
    for worker in workers:
        await worker.ended
    later.promises.settled()
    script.wishes[SLEEPER] = state.script.wishes[SLEEPER]
    _check_results(world, later)
    if _statuses(world)[SLEEPER] == "waiting":
        raise Broken(f"P1: {SLEEPER} was woken, and sleeps on")
