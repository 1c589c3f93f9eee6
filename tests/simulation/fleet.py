"""A fleet of workers and clients that do everything to runs, while everything goes wrong.

Each run has a plan: which nodes it goes through, which signals it waits for. Each client has a
script of what it does to whom and when; it repeats each line until it is acknowledged, also after
it has crashed. The scripts, the plans and what came of them are outside the world: they stand for
the users.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypedDict

from holdfast.app import Holdfast
from holdfast.engine.context import Context
from holdfast.errors import (
    ExpiryNotLater,
    HoldfastError,
    NotRetryable,
    OutcomeUnknown,
    RunEnded,
    RunNotFound,
    StoreUnavailable,
    WaitTimedOut,
)
from holdfast.graph import END, Graph
from holdfast.model.policy import Retry
from holdfast.model.signals import signal
from holdfast.records.head import ENDED, head_of
from holdfast.records.keys import RunKey
from tests.simulation.faults import FaultPlan, calm, hostile
from tests.simulation.process import Process
from tests.simulation.promises import Broken, Promises
from tests.simulation.world import World, simulate

__all__ = ["Outcome", "fleet", "rough"]

WORKERS = 3
RUNS = 20
TENANT = "acme"
LEASE_SECONDS = 20.0
POLL_SECONDS = 3.0
TROUBLE_SECONDS = 150.0
"""How long everything goes wrong."""
REST_SECONDS = 8 * LEASE_SECONDS
"""After that much more, nothing may be left undone."""
CLIENT_CRASHES = 0.1
"""How many of a client's attempts it does not outlive."""
SHARED = 0.5
"""How many fleets have their clients in the processes of their workers."""
COMPACTED = 0.5
"""How many fleets write snapshots of runs as short as theirs."""
STUCK_SECONDS = 600.0
DAY_SECONDS = 24 * 3600.0
HEAVY = 12_000


class State(TypedDict, total=False):
    """What a run carries along."""

    plan: list[str]
    """The nodes, each with its argument: ``ask go``."""
    at: int
    got: list[str]
    heavy: bytes
    ballast: bytes
    """Makes some inputs too large for a row, and some too large for an item."""


@dataclass
class Line:
    """One line of a client's script."""

    at_seconds: float
    verb: str
    run: str
    argument: str = ""
    id: str = ""
    done: bool = False
    refused: bool = False


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
    plans: dict[str, list[str]] = field(default_factory=dict)
    expires: dict[str, float] = field(default_factory=dict)
    ballast: dict[str, int] = field(default_factory=dict)
    scripts: list[list[Line]] = field(default_factory=list)
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    drains: bool = True
    shared: bool = False
    """Whether clients live in the workers' processes, and so hand runs to them directly."""
    compacts: bool = False
    """Whether there is a snapshot as soon as what follows the last one outweighs it."""
    faces: dict[str, Holdfast] = field(default_factory=dict)

    @property
    def shaky(self) -> bool:
        """Whether clients still crash in the middle of what they do."""
        return bool(self.world.plan.crash)

    # --- what is run ------------------------------------------------------------------------------

    def graph(self, process: Process) -> Graph:
        """Return the graph, with the process' own clock in its nodes."""
        graph = Graph("flow", State)

        def enter(state: State, context: Context) -> None:
            # What came before a node is durable when it begins, but for those without a checkpoint.
            before = state["plan"][state["at"] - 1].split()[0] if state["at"] else "work"
            held = before in ("swift", "ask")
            head = context._host.head
            self.promises.entered(head.key, head.generation, head.epoch, context.visit, held=held)

        def next_of(state: State) -> Any:
            plan = state["plan"]
            return plan[state["at"]].split()[0] if state["at"] < len(plan) else END

        @graph.node
        async def work(state: State, ctx: Context) -> State:
            enter(state, ctx)
            await process.clock.sleep(float(_argument(state)))
            return {"at": state["at"] + 1}

        @graph.node(pausable="no")
        async def swift(state: State, ctx: Context) -> State:
            enter(state, ctx)
            return {"at": state["at"] + 1}

        @graph.node(pausable="blocking")
        async def ask(state: State, ctx: Context) -> State:
            enter(state, ctx)
            name, _, limit = _argument(state).partition("<")
            try:
                got = await ctx.wait(signal(name), max_wait=float(limit) if limit else None)
            except WaitTimedOut:
                got = "nothing"
            enter(state, ctx)
            return {"at": state["at"] + 1, "got": [*state.get("got", []), got]}

        @graph.node
        async def nap(state: State, ctx: Context) -> State:
            enter(state, ctx)
            await ctx.sleep(float(_argument(state)))
            return {"at": state["at"] + 1}

        @graph.node(retry=Retry(attempts=3, first_seconds=1, factor=6, jitter=0.2))
        async def shaky(state: State, ctx: Context) -> State:
            enter(state, ctx)
            if ctx.attempt <= int(_argument(state)):
                raise ValueError("shaky")
            return {"at": state["at"] + 1}

        @graph.node
        async def heavy(state: State, ctx: Context) -> State:
            enter(state, ctx)
            return {"at": state["at"] + 1, "heavy": _noise(ctx.run_id, HEAVY)}

        nodes = [work, swift, ask, nap, shaky, heavy]
        for node in nodes:
            # A loop in which no checkpoint ever stands is refused.
            targets = [to for to in nodes if (node, to) != (swift, swift)]
            graph.choose(node, next_of, to=[*targets, END])
        return graph

    # --- workers ----------------------------------------------------------------------------------

    async def work(self, process: Process) -> None:
        """Be a worker, and leave and come back now and then."""
        hf = self._holdfast(process)
        graph = self.graph(process)
        if self.shared:
            number = int(process.name.partition(".")[0][1:])
            task = asyncio.ensure_future(self.client(self.scripts[number])(process))
            task.add_done_callback(self._client_is_done)
        while not self.leaving.is_set():
            worker = hf.worker(
                [graph],
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
            face = self.faces[process.name] = Holdfast(
                process.store.url,
                tenant=TENANT,
                store=process.store,
                clock=process.clock,
                ids=process.ids,
            )
            if self.compacts:
                face._kernel.snapshot_floor_bytes = 0
        return self.faces[process.name]

    # --- clients ----------------------------------------------------------------------------------

    def client(self, script: list[Line]) -> Callable[[Process], Coroutine[Any, Any, None]]:
        """Return a process that works through a script."""

        async def boot(process: Process) -> None:
            hf = self._holdfast(process)
            graph = self.graph(process)
            for line in script:
                await process.clock.sleep(line.at_seconds - process.clock.monotonic())
                while not line.done:
                    crashes = CLIENT_CRASHES / 5 if self.shared else CLIENT_CRASHES
                    if self.shaky and process.ids.random() < crashes:
                        moment = self.world.loop.time() + process.ids.random() * 0.05
                        self.world.at(moment, process.crash)
                    try:
                        await self._do(hf, graph, line)
                        line.done = True
                    except (RunEnded, NotRetryable):
                        line.done = line.refused = True
                    except (StoreUnavailable, OutcomeUnknown, RunNotFound):
                        await process.clock.sleep(1.0)

        return boot

    async def _do(self, hf: Holdfast, graph: Graph, line: Line) -> None:
        key = RunKey(TENANT, line.run)
        match line.verb:
            case "start":
                expires = self.expires.get(line.run, 7 * DAY_SECONDS)
                given: State = {"plan": self.plans[line.run], "at": 0}
                if line.run in self.ballast:
                    given["ballast"] = _noise(line.run, self.ballast[line.run])
                await hf.start(graph, given, id=line.run, expires=expires)
                self.promises.started(key)
            case "signal":
                payload = f"{line.argument}/{line.id}"
                await hf.signal(line.run, line.argument, payload, signal_id=line.id)
                self.promises.signalled(key, line.argument, line.id)
            case "cancel":
                await hf.cancel(line.run, reason="no longer wanted")
            case "extend":
                with suppress(ExpiryNotLater):  # as it is, or by an earlier try
                    await hf.extend(line.run, expires=float(line.argument))
            case "grow":
                await hf.grow_shards(int(line.argument))
            case "retry":
                if (await hf.get(line.run)).status in ENDED:
                    await hf.retry(line.run)
            case _:
                raise AssertionError(line.verb)

    # --- what is asked for ------------------------------------------------------------------------

    def draw(self) -> None:
        """Draw the plans of the runs and the scripts of the clients."""
        draw = self.world.random
        lines: list[Line] = []
        for number in range(RUNS):
            run = f"run-{number:02d}"
            start = draw.random() * TROUBLE_SECONDS * 0.5
            plan = self._draw_plan()
            self.plans[run] = plan
            if draw.random() < 0.2:
                self.expires[run] = 30 + draw.random() * 90
            if draw.random() < 0.25:
                self.ballast[run] = draw.choice([700, HEAVY])
            lines.append(Line(start, "start", run))
            if draw.random() < 0.2:
                lines.append(Line(start + draw.random() * 5, "start", run))  # asked for twice
            lines += self._draw_signals(run, plan, start)
            if draw.random() < 0.12:
                lines.append(Line(start + draw.random() * 60, "cancel", run))
            if draw.random() < 0.15:
                lines.append(Line(start + 30 + draw.random() * 90, "retry", run))
        lines.append(Line(draw.random() * TROUBLE_SECONDS, "grow", "", "16"))
        lines += list(self._draw_extensions(lines))
        lines.sort(key=lambda line: line.at_seconds)
        # A line may wait for a run that another client starts; no client waits for itself.
        starters = [line for line in lines if line.verb == "start"]
        others = [line for line in lines if line.verb != "start"]
        self.scripts = [starters, others[::2], others[1::2]]

    def _draw_plan(self) -> list[str]:
        plan = ["work 0.2"]
        for _ in range(self.world.random.randint(1, 6)):
            step = self._draw_step()
            if (plan[-1], step) != ("swift", "swift"):
                plan.append(step)
        return plan

    def _draw_step(self) -> str:
        draw = self.world.random
        kind = draw.choice(["work", "work", "work", "ask", "ask", "nap", "shaky", "heavy", "swift"])
        match kind:
            case "work":
                return f"work {draw.random() ** 3 * 8:.3f}"
            case "ask":
                limit = f"<{5 + draw.random() * 40:.3f}" if draw.random() < 0.25 else ""
                return f"ask {draw.choice(['go', 'pay'])}{limit}"
            case "nap":
                return f"nap {draw.random() * 30:.3f}"
            case "shaky":
                return f"shaky {draw.choice([0, 1, 1, 2, 3])}"
            case _:
                return kind

    def _draw_extensions(self, lines: list[Line]) -> Iterator[Line]:
        """Yield who gives more time to runs that have little, now and then at the last moment."""
        draw = self.world.random
        starts = {line.run: line.at_seconds for line in lines if line.verb == "start"}
        for run, expires in self.expires.items():
            if draw.random() < 0.7:
                when = draw.choice([draw.random() * expires, expires - draw.random()])
                longer = draw.choice([60 + draw.random() * 60, 20 * DAY_SECONDS])
                yield Line(starts[run] + when, "extend", run, f"{longer:.3f}")

    def _draw_signals(self, run: str, plan: list[str], start: float) -> list[Line]:
        draw = self.world.random
        lines: list[Line] = []
        for number, step in enumerate(plan):
            kind, _, argument = step.partition(" ")
            if kind != "ask":
                continue
            name = argument.partition("<")[0]
            at = start + draw.random() * 80
            if run in self.expires and draw.random() < 0.5:
                at = start + self.expires[run] + draw.uniform(-1, 1)  # at the last moment
            lines.append(Line(at, "signal", run, name, f"s{number}"))
            if draw.random() < 0.3:
                again = at + draw.random() * 20
                lines.append(Line(again, "signal", run, name, f"s{number}"))  # the same once more
        return lines


def _argument(state: State) -> str:
    return state["plan"][state["at"]].partition(" ")[2]


def _noise(seed: str, count: int) -> bytes:
    """Return bytes that do not compress."""
    return random.Random(seed).randbytes(count)


def rough() -> FaultPlan:
    """Return the plan of faults for fleets."""
    return hostile().evolve(
        crash=0.0015,
        stall=0.0015,
        stall_seconds_max=90.0,
        restart_seconds_max=15.0,
        late_write=0.02,
        abandoned=0.4,
        cancelled_transaction=0,
    )


def fleet(seed: int | str, plan: FaultPlan | None = None, *, reuse: bool = True) -> Outcome:
    """Let a fleet work through everything, first in trouble, then in peace; check the promises."""
    chosen = plan or rough()

    async def scenario(world: World) -> Outcome:
        skew_ms = round(2 * chosen.skew_seconds_max * 1000) + 100
        promises = Promises(world, skew_ms=skew_ms, stuck_ms=round(STUCK_SECONDS * 1000))
        state = Fleet(
            world,
            promises,
            shared=world.random.random() < SHARED,
            compacts=world.random.random() < COMPACTED,
        )
        state.draw()
        await _worked_through(world, state)
        promises.settled()
        _check_results(world, state)
        statuses = _statuses(world)
        if reuse:
            await _reused(world, state)
        return Outcome(world, promises, statuses)

    return simulate(scenario, seed, chosen)


async def _passed(world: World, seconds: float) -> None:
    """Let time pass, in nobody's name."""
    over = world.loop.create_future()
    world.at(world.loop.time() + seconds, over.set_result, None)
    await over


async def _worked_through(world: World, state: Fleet) -> None:
    workers = [world.supervise(f"w{number}", state.work) for number in range(WORKERS)]
    clients = [
        world.supervise(f"c{number}", state.client(script))
        for number, script in enumerate(state.scripts)
        if not state.shared
    ]
    await _passed(world, TROUBLE_SECONDS)
    world.plan = calm().evolve(
        stale_index=world.plan.stale_index, skew_seconds_max=world.plan.skew_seconds_max
    )
    for client in clients:
        await client.ended
    while not all(line.done for script in state.scripts for line in script):
        await _passed(world, 5)
    await _passed(world, REST_SECONDS)
    state.leaving.set()
    for worker in workers:
        await worker.ended


def _statuses(world: World) -> dict[str, str]:
    heads = [head_of(item) for item in world.items("RUN#") if item["SK"] == "HEAD"]
    return {head.key.id: head.status for head in heads}


def _check_results(world: World, state: Fleet) -> None:
    """Every run has come to the end that its plan and its signals lead to."""
    statuses = _statuses(world)
    for run, plan in state.plans.items():
        refused = any(
            line.refused for script in state.scripts for line in script if line.run == run
        )
        cancelled = any(
            line.verb == "cancel" and not line.refused
            for script in state.scripts
            for line in script
            if line.run == run
        )
        status = statuses.get(run)
        hopeless = any(step == "shaky 3" for step in plan)
        allowed = {"finished"}
        if hopeless:
            allowed.add("failed")
        if run in state.expires:
            allowed |= {"expired", "failed"}
        if cancelled:
            allowed = {"cancelled"}
        if refused and status in ("running", "waiting"):
            continue
        if status not in allowed:
            raise Broken(f"P6: {run} with {plan} is {status}, and should be {sorted(allowed)}")


async def _reused(world: World, state: Fleet) -> None:
    """Start runs under ids whose rows are over their time, but perhaps not gone yet."""
    await _passed(world, 12 * DAY_SECONDS)
    world.plan = rough()
    ids = [run for run in sorted(state.plans) if run not in state.expires][:4]
    later = Fleet(world, state.promises, drains=False)
    now = world.loop.time()
    for run in ids:
        later.plans[run] = ["work 0.1", "swift", "heavy", "work 0.2"]
    later.scripts = [[Line(now + number, "start", run) for number, run in enumerate(ids)]]
    workers = [world.supervise("later", later.work)]
    clients = [world.supervise("again", later.client(script)) for script in later.scripts]
    await _passed(world, 20)
    world.plan = calm()
    for client in clients:
        await client.ended
    await _passed(world, 6 * LEASE_SECONDS)
    later.leaving.set()
    for worker in workers:
        await worker.ended
    later.promises.settled()
    _check_results(world, later)
