"""A fleet of workers and clients that do everything to runs, while everything goes wrong.

Each run has a plan (`flow`): which nodes it goes through, which signals it waits for. Each client
has a script (`script`) of what it does to whom and when; it repeats each line until it is
acknowledged, also after it has crashed. The scripts, the plans and what came of them are outside
the world: they stand for the users.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from holdfast.app import Holdfast, RunHandle
from holdfast.errors import (
    ExpiryNotLater,
    HoldfastError,
    NotAmbiguous,
    NotRetryable,
    OutcomeUnknown,
    RunEnded,
    RunNotFound,
    SessionBusy,
    StoreUnavailable,
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
from tests.simulation.once import RESOLUTION
from tests.simulation.oracle import budget_of
from tests.simulation.process import Process
from tests.simulation.promises import Promises
from tests.simulation.reduction import REUSE, WHOLE, Reduction
from tests.simulation.script import (
    DAY_SECONDS,
    FOLLOWER,
    RUNS,
    SLEEPER,
    Line,
    Script,
    Wish,
    drawn_script,
)
from tests.simulation.world import World, simulate

__all__ = ["RUNS", "WORKERS", "Outcome", "fleet", "rough"]

WORKERS = 3
TENANT = "acme"
LEASE_SECONDS = 20.0
POLL_SECONDS = 3.0
TROUBLE_SECONDS = 150.0
"""How long everything goes wrong."""
REST_SECONDS = 8 * LEASE_SECONDS
"""After that much more, nothing may be left undone."""
PERSON_SECONDS = 6.0
"""How often somebody looks for calls of which nobody knows what became of them."""
CLIENT_CRASHES = 0.1
"""How many of a client's attempts it does not outlive."""
SHARED = 0.5
"""How many fleets have their clients in the processes of their workers."""
STUCK_SECONDS = 600.0
FLOORS_BYTES = (0, 1_000, 64 * 1024)
"""From how much on a journal is worth a snapshot: mostly little, so that there are many."""


@dataclass
class Outcome:
    """What became of a simulated fleet."""

    world: World
    promises: Promises
    statuses: dict[str, str]


@dataclass
class Fleet:
    """Everything that is known outside the world."""

    world: World
    promises: Promises
    script: Script
    floor_bytes: int
    graph: Graph
    outside: Outside
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    drains: bool = True
    trouble_seconds: float = TROUBLE_SECONDS
    shared: bool = False
    """Whether clients live in the workers' processes, and so hand runs to them directly."""
    faces: dict[str, Holdfast] = field(default_factory=dict)
    rejected: set[str] = field(default_factory=set)
    unwritten: dict[str, str] = field(default_factory=dict)
    """How runs ended of which nothing stands anywhere."""

    @property
    def shaky(self) -> bool:
        """Whether clients still crash in the middle of what they do."""
        return self.world.plan.crash > NEVER

    # --- workers ----------------------------------------------------------------------------------

    async def work(self, process: Process) -> None:
        """Be a worker, and leave and come back now and then."""
        hf = self._holdfast(process)
        if self.shared:
            number = int(process.name.partition(".")[0][1:])
            task = asyncio.ensure_future(self.client(self.script.clients[number])(process))
            task.add_done_callback(self._client_is_done)
        while not self.leaving.is_set():
            worker = hf.worker(
                [self.graph],
                concurrency=8,
                lease_seconds=LEASE_SECONDS,
                poll_seconds=POLL_SECONDS,
                drain_seconds=2.0,
                resumes_max=50,
            )
            try:
                await worker.start()
            except HoldfastError:
                await process.clock.sleep(1.0)
                continue
            patience = 20 + 100 * process.ids.random() if self.drains else 1e6
            await self._until_leaving(process, patience)
            await worker.stop()

    def _client_is_done(self, task: asyncio.Future[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.world.loop.fail(task.exception() or RuntimeError())

    async def _until_leaving(self, process: Process, seconds: float) -> None:
        until = process.clock.monotonic() + seconds
        while not self.leaving.is_set() and process.clock.monotonic() < until:
            await process.clock.sleep(2.0)

    def _holdfast(self, process: Process) -> Holdfast:
        if process.name not in self.faces:
            self.faces[process.name] = Holdfast(
                process.store.url,
                tenant=TENANT,
                store=process.store,
                clock=process.clock,
                ids=process.ids,
                models=self.outside.models,
            )
            self.faces[process.name]._kernel.snapshot_floor_bytes = self.floor_bytes
        return self.faces[process.name]

    # --- clients ----------------------------------------------------------------------------------

    def client(self, script: list[Line]) -> Callable[[Process], Coroutine[Any, Any, None]]:
        """Return a process that works through a script."""

        async def boot(process: Process) -> None:
            hf = self._holdfast(process)
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
                    except (StoreUnavailable, OutcomeUnknown, RunNotFound):
                        line.done = line.refused = line.run in self.rejected | self.unwritten.keys()
                        await process.clock.sleep(1.0)

        return boot

    async def _do(self, process: Process, hf: Holdfast, line: Line) -> None:
        key = RunKey(TENANT, line.run)
        match line.verb:
            case "start":
                handle = await self._start(hf, line.run, self.script.wishes[line.run])
                if handle._outcome is None:
                    self.promises.started(key)
                else:
                    self.promises.seen["never written"] += 1
                    self.unwritten[line.run] = handle._outcome.status
            case "signal":
                payload = f"{line.argument}/{line.id}"
                await hf.signal(line.run, line.argument, payload, signal_id=line.id)
                self.promises.signalled(key, line.argument, line.id)
            case "cancel":
                await hf.cancel(line.run, reason="no longer wanted")
            case "extend":
                span = float(line.argument)
                until_ms = process.clock.now_ms() + round(span * 1000)
                await hf.extend(line.run, expires=span)
                self.promises.extended(key, until_ms)
            case "fund":
                budget = budget_of(int(line.argument))
                await hf.set_budget(line.run, budget)
                self.promises.funded(key, budget)
            case "grow":
                await hf.grow_shards(int(line.argument))
            case "retry":
                if (await hf.get(line.run)).status in ENDED:
                    await hf.retry(line.run)
            case _:
                raise AssertionError(line.verb)

    # --- whoever is asked what became of a call ---------------------------------------------------

    async def person(self, process: Process) -> None:
        """Look now and then for calls that may have been made, and say what became of them."""
        hf = self._holdfast(process)
        while not self.leaving.is_set():
            await process.clock.sleep(PERSON_SECONDS * (0.5 + process.ids.random()))
            if self.promises.once.is_anybody_asked:
                with suppress(StoreUnavailable, OutcomeUnknown):
                    async for call in hf.ambiguous():
                        await self._resolve(hf, call)

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
        crash=0.0015,
        stall=0.0015,
        stall_seconds_max=90.0,
        restart_seconds_max=15.0,
        late_write=0.02,
        abandoned=0.4,
        effect_lost=0.02,
        effect_unanswered=0.03,
        effect_late=0.03,
        effect_crash=0.03,
        effect_stall=0.02,
    )


def fleet(
    seed: int | str,
    plan: FaultPlan | None = None,
    *,
    reuse: bool = True,
    calling: bool | None = None,
    reduction: Reduction = WHOLE,
) -> Outcome:
    """Let a fleet work through everything, first in trouble, then in peace; check the promises.

    ``calling`` says whether its runs call the world outside; unless said, those of every fourth do.
    ``reduction`` leaves parts of what was drawn out.
    """
    chosen = plan or rough()
    calls = seed % 4 == 0 if calling is None and isinstance(seed, int) else bool(calling)

    async def scenario(world: World) -> Outcome:
        skew_ms = round(2 * chosen.skew_seconds_max * 1000) + 100
        promises = Promises(world, skew_ms=skew_ms, stuck_ms=round(STUCK_SECONDS * 1000))
        script = reduction.reduced(drawn_script(world.random, TROUBLE_SECONDS, calling=calls))
        floor_bytes = world.random.choice(FLOORS_BYTES)
        outside = Outside(
            world,
            promises.seen,
            once=promises.once,
            books=promises.books,
            gate=promises.gate,
        )
        world.users = Users(promises.entered, outside)
        state = Fleet(world, promises, script, floor_bytes, flow(), outside)
        state.shared = world.random.random() < SHARED
        state.trouble_seconds = reduction.trouble_seconds or TROUBLE_SECONDS
        if reduction.dice:
            world.throw_anew(reduction.dice)
        await _worked_through(world, state)
        promises.settled()
        _check_results(world, state)
        statuses = _statuses(world)
        if reuse and REUSE not in reduction.without:
            await _reused(world, state)
        return Outcome(world, promises, statuses)

    return simulate(scenario, seed, chosen, muted=reduction.faults)


async def _passed(world: World, seconds: float) -> None:
    """Let time pass, in nobody's name."""
    over = world.loop.create_future()
    world.at(world.loop.time() + seconds, over.set_result, None)
    await over


async def _worked_through(world: World, state: Fleet) -> None:
    workers = [world.supervise(f"w{number}", state.work) for number in range(WORKERS)]
    clients = [
        world.supervise(f"c{number}", state.client(script))
        for number, script in enumerate(state.script.clients)
        if not state.shared
    ]
    workers.append(world.supervise("person", state.person))
    await _passed(world, state.trouble_seconds)
    world.plan = calm().evolve(
        stale_index=world.plan.stale_index, skew_seconds_max=world.plan.skew_seconds_max
    )
    for client in clients:
        await client.ended
    while not all(line.done for line in state.script.lines):
        await _passed(world, 5)
    await _passed(world, REST_SECONDS)
    state.leaving.set()
    for worker in workers:
        await worker.ended


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
            got = state.promises.state(RunKey(TENANT, run)).get("got", [])
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
    script.clients = [starts, [Line(now + 9, "signal", SLEEPER, "wake", "w")]]
    later = Fleet(
        world,
        state.promises,
        script,
        state.floor_bytes,
        state.graph,
        state.outside,
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
