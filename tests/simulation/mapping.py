"""Runs that map over many items, in chunks on all workers, while everything goes wrong.

Each run has a plan: at each step a node maps over some items, or two maps run side by side. What an
item does follows from the seed: it sleeps, calls the world outside, fails once, or fails until
somebody heals its map. People cancel runs, retry those that failed, retry single items, and read
how far the maps are. At the end everything has come to its end, and every result is there once.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, TypedDict

from holdfast import Context, Graph, Holdfast
from holdfast.errors import (
    BlobNotFound,
    ExpiryNotLater,
    HoldfastError,
    MapFailed,
    NotRetryable,
    RunEnded,
    RunNotFound,
    StoreError,
)
from holdfast.graph import END
from holdfast.model.map import Mapped, MappedItem
from holdfast.model.policy import Retry
from holdfast.records.head import ENDED, Head
from holdfast.records.keys import HEAD, RunKey
from tests.simulation.chronicle import Broken
from tests.simulation.effects import Outside
from tests.simulation.faces import face_of
from tests.simulation.fanout import FannedOut
from tests.simulation.faults import FaultPlan, calm, hostile
from tests.simulation.loop import OWNER
from tests.simulation.lot import Lot
from tests.simulation.process import Process
from tests.simulation.promises import Promises
from tests.simulation.setting import setting
from tests.simulation.world import World, simulate

__all__ = ["Mapper", "mapping", "scattering"]

TENANT = "acme"
WORKERS = 3
RUNS = 4
SHARDS = 2
LEASE_SECONDS = 20.0
TROUBLE_SECONDS = 90.0
REST_SECONDS = 600.0
ITEMS_MAX = 24
RESUMES_CALM = 3
"""How often a run is claimed at most for each of its maps, where nothing goes wrong."""


class Ask(TypedDict):
    """One map that a node asks for."""

    total: int
    chunk: int
    concurrency: int
    tolerate: int
    values: bool
    """Whether it is given the values of its items, and not only their number."""
    leaves: bool
    """Whether each item is a run of its own."""
    caught: bool
    """Whether the node goes on if too many items failed."""
    doomed: float
    """How many of its items fail until they are healed."""


class Plan(TypedDict, total=False):
    """The state of a run that maps."""

    steps: list[list[Ask]]
    at: int
    cursors: list[dict[str, Any]]


def scattering() -> FaultPlan:
    """Return the plan of faults for runs that map."""
    return hostile().evolve(
        throttled=0.015,
        lost_answer=0.02,
        late_write=0.02,
        slow_signal=0.03,
        crash=0.0012,
        stall=0.0015,
        stall_seconds_max=70.0,
        restart_seconds_max=8.0,
        abandoned=0.4,
        settle_stall=0.03,
        family_stall=0.02,
        effect_lost=0.02,
        effect_unanswered=0.03,
        effect_late=0.03,
        effect_crash=0.03,
        effect_stall=0.02,
    )


def _behaviour(run: str, map: str, index: int, doomed: float) -> str:
    """Return what an item does."""
    draw = random.Random(f"{_mapper().world.seed}/{run}/{map}/{index}")
    if draw.random() < doomed:
        return "doomed"
    kinds = ["swift", "work", "work", "work", "chain", "linger", "shaky", "nap"]
    return f"{draw.choice(kinds)} {draw.random() ** 2 * 6:.2f}"


async def _do_item(ctx: Context, index: int, given: dict[str, Any]) -> str:
    mapper, name = _mapper(), f"{given['run']}/{given['map']}/{index}"
    kind, _, seconds = _behaviour(given["run"], given["map"], index, given["doomed"]).partition(" ")
    match kind:
        case "work":
            await _process().clock.sleep(float(seconds))
        case "chain" | "linger":
            await mapper.outside.step(ctx, kind, _never, _never)
        case "nap":
            await ctx.sleep(float(seconds))
        case "shaky":
            mapper.attempts[name] += 1
            if mapper.attempts[name] % 3 == 1:
                raise OSError(f"{name} fails once")
        case "doomed":
            if name not in mapper.healed:
                raise ValueError(f"{name} is not healed")
        case _:
            pass
    return f"{name} is done"


@cache
def graphs() -> tuple[Graph, Graph]:
    """Return the graph of runs that map, and the one of runs that are items."""
    leaf = Graph("leaf", dict)

    @leaf.node
    async def only(state: Any, ctx: Context) -> Any:
        _mapper().promises.entered(ctx, False)
        return {"said": await _do_item(ctx, state["index"], state)}

    graph = Graph("scattered", Plan, reducers={"cursors": "append"})

    @graph.item(retry=Retry(attempts=2, backoff=1))
    async def part(value: Any, ctx: Context) -> str:
        with _mapper().item(ctx):
            if value not in (ctx.index, f"value {ctx.index}"):
                _mapper().broken(f"P1: item {ctx.index} of {ctx.run_id} was given {value!r}")
            return await _do_item(ctx, ctx.index, ctx.given)

    @graph.node
    async def scatter(state: Plan, ctx: Context) -> Plan:
        mapper = _mapper()
        mapper.promises.entered(ctx, False)
        asks = state["steps"][state["at"]]
        maps = [_mapped(ctx, part, leaf, ask, f"{state['at']}-{n}") for n, ask in enumerate(asks)]
        cursors = [cursor for cursor in await asyncio.gather(*maps) if cursor is not None]
        for cursor in cursors:
            mapper.check_entries(cursor, [entry async for entry in ctx.mapped(cursor)])
        return {"at": state["at"] + 1, "cursors": [cursor.as_dict() for cursor in cursors]}

    @graph.node
    async def gather(state: Plan, ctx: Context) -> Plan:
        """Read everything once more, in another node."""
        for cursor in state.get("cursors", []):
            count = await ctx.mapped(cursor).fold(lambda count, entry: count + entry.ok, 0)
            if count < cursor["succeeded"]:
                _mapper().broken(f"P1: {count} of {cursor} are left")
        return {}

    def more(state: Plan) -> Any:
        return scatter if state["at"] < len(state["steps"]) else gather

    graph.choose(scatter, more, to=[scatter, gather])
    graph.route(gather, END)
    return graph, leaf


async def _never(*args: Any) -> Any:
    raise AssertionError("items start no runs")


async def _mapped(ctx: Context, part: Any, leaf: Graph, ask: Ask, map: str) -> Mapped | None:
    given = {"run": ctx.run_id, "map": map, "doomed": ask["doomed"]}
    values: Any = [f"value {index}" for index in range(ask["total"])]
    try:
        return await ctx.map(
            leaf if ask["leaves"] else part,
            values if ask["values"] and not ask["leaves"] else ask["total"],
            chunk=ask["chunk"],
            concurrency=ask["concurrency"],
            tolerate=ask["tolerate"],
            given=given,
        )
    except MapFailed as failed:
        if failed.failed <= failed.tolerated:
            _mapper().broken(f"P2: {ctx.run_id} is told {failed}")
        if not ask["caught"]:
            raise
        return None


def _process() -> Process:
    process = OWNER.get()
    assert isinstance(process, Process)
    return process


def _mapper() -> Mapper:
    mapper = _process().world.users
    assert isinstance(mapper, Mapper)
    return mapper


class _Item:
    """An item that runs: it counts while it does, unless its process crashed."""

    def __init__(self, mapper: Mapper, ctx: Context) -> None:
        self._mapper = mapper
        self._process = _process()
        self.head: Head = ctx._visit.claimed.head
        self.index = ctx.index
        self._ctx = ctx

    @property
    def is_active(self) -> bool:
        return not self._process.crashed and not self._process.stalled

    def __enter__(self) -> None:
        mapper, fanout = self._mapper, self._mapper.promises.fanout
        mapper.promises.entered(self._ctx, True)  # a chunk forks without a checkpoint
        if (broken := fanout.enters(self.head, self.index)) is not None:
            mapper.world.loop.fail(broken)
        mapper.items.append(self)
        found = fanout.of_chunk(self.head)
        beside = [
            item.head
            for item in mapper.items
            if item.is_active
            and item.head.chunk
            and item.head.chunk.lane >= 0
            and fanout.of_chunk(item.head) is found
        ]
        count = len(fanout.running(beside))
        mapper.promises.seen["concurrency was full"] += count == found.spec.concurrency
        if count > found.spec.concurrency:
            mapper.broken(f"P2: {count} items of {found.name} run at once, by {found.spec}")

    def __exit__(self, *error: object) -> None:
        if self in self._mapper.items:
            self._mapper.items.remove(self)


@dataclass
class Mapper:
    """Everything that is known outside the world: the runs, and the people who look after them."""

    world: World
    promises: Promises
    outside: Outside
    plans: dict[str, list[list[Ask]]]
    closing: bool = False
    """Whether nobody retries single items any more."""
    floor_bytes: int = 64 * 1024
    """From how much on a journal is worth a snapshot."""
    expires: dict[str, float] = field(default_factory=dict)
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    faces: dict[str, Holdfast] = field(default_factory=dict)
    attempts: Counter[str] = field(default_factory=Counter[str])
    healed: set[str] = field(default_factory=set)
    items: list[_Item] = field(default_factory=list)
    stopped: set[str] = field(default_factory=set)
    """The runs that somebody asked to be cancelled."""

    def face(self, process: Process) -> Holdfast:
        if process.name not in self.faces:
            self.faces[process.name] = face_of(process, tenant=TENANT)
            self.faces[process.name]._kernel.snapshot_floor_bytes = self.floor_bytes
        return self.faces[process.name]

    def broken(self, why: str) -> None:
        """Fail the simulation. Not raised: in a node it would only make the node fail."""
        self.world.loop.fail(Broken(why))

    def item(self, ctx: Context) -> _Item:
        return _Item(self, ctx)

    # --- results ----------------------------------------------------------------------------------

    def check_entries(self, cursor: Mapped, entries: list[MappedItem]) -> None:
        """Check what a run reads of a map that has ended."""
        if [entry.index for entry in entries] != list(range(cursor.total)):
            self.broken(f"P1: {cursor} has {[entry.index for entry in entries]}")
        failed = sum(not entry.ok for entry in entries)
        if failed > cursor.failed:
            self.broken(f"P1: {failed} items of {cursor} failed")
        self._check_values(self._found(cursor.run, cursor.map), entries)
        self.promises.seen["map read by its run"] += 1

    def _found(self, run: str, map: str) -> FannedOut:
        row = self.world.truth.row(RunKey(TENANT, run).pk)
        assert row is not None
        return self.promises.fanout.maps[RunKey(TENANT, run).pk, row["generation"], map]

    def _check_values(self, found: FannedOut, entries: list[MappedItem]) -> None:
        for entry in entries:
            if entry.ok and (
                entry.index not in found.done or found.done[entry.index] != entry.result
            ):
                done = found.done.get(entry.index)
                self.broken(f"P1: {found.name} has {entry}, and its chunk recorded {done!r}")

    # --- workers and callers ----------------------------------------------------------------------

    async def work(self, process: Process) -> None:
        """Be a worker, and leave and come back now and then."""
        hf = self.face(process)
        while not self.leaving.is_set():
            worker = hf.worker(
                list(graphs()),
                concurrency=8,
                lease=LEASE_SECONDS,
                poll=3.0,
                drain=2.0,
                resumes_max=Lot.resumes_max,
            )
            self.promises.reaping.works(process, worker)
            try:
                await worker.start()
            except HoldfastError:
                await process.clock.sleep(1.0)
                continue
            until = process.clock.monotonic() + 15 + 60 * process.ids.random()
            while not self.leaving.is_set() and process.clock.monotonic() < until:
                await process.clock.sleep(2.0)
            await worker.stop()

    def draw(self, what: str) -> random.Random:
        """Return dice that fall the same again after a crash."""
        return random.Random(f"{self.world.seed}/{what}")

    async def call(self, process: Process) -> None:
        """Start the runs; cancel some of them."""
        hf = self.face(process)
        for number, (run, steps) in enumerate(self.plans.items()):
            await self._at(process, number * 3.0)
            await self._until_told(process, partial(self._start, hf, run, steps))
        for run in self.plans:
            draw = self.draw(f"{run}/cancel")
            if draw.random() < 0.25:
                await self._at(process, 10 + 50 * draw.random())
                self.stopped.add(run)
                await self._until_told(process, partial(self._cancel, hf, run))

    async def _at(self, process: Process, seconds: float) -> None:
        await process.clock.sleep(seconds - process.clock.monotonic())

    async def _until_told(
        self, process: Process, do: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        while True:
            try:
                return await do()
            except StoreError:
                await process.clock.sleep(1.0)
            except (RunEnded, ExpiryNotLater, RunNotFound, NotRetryable):
                return

    async def _start(self, hf: Holdfast, run: str, steps: list[list[Ask]]) -> None:
        given: Plan = {"steps": steps, "at": 0}
        span = self.expires.get(run) or 7 * 24 * 3600
        await hf.start(graphs()[0], given, id=run, expires=span)
        self.promises.started(RunKey(TENANT, run))

    async def _cancel(self, hf: Holdfast, run: str) -> None:
        await hf.run(run).cancel("no longer wanted")

    async def heal(self, process: Process) -> None:
        """Read the maps; heal some items that failed, and retry them alone."""
        hf = self.face(process)
        while not self.leaving.is_set():
            await process.clock.sleep(3.0 + 4 * process.ids.random())
            for run in self.plans:
                with suppress(StoreError, RunNotFound, BlobNotFound):  # it may expire meanwhile
                    await self._look_after(process, hf, run)

    async def _look_after(self, process: Process, hf: Holdfast, run: str) -> None:
        handle = hf.run(run)
        for progress in await handle.maps():
            found = self._found(run, progress.map)
            if progress.succeeded + progress.failed > progress.total:
                raise Broken(f"P2: {progress}")
            entries = [entry async for entry in handle.map(progress.map).items()]
            indices = [entry.index for entry in entries]
            if indices != sorted(set(indices)):
                raise Broken(f"P1: {found.name} has {indices}")
            self._check_values(found, entries)
            bad = [entry.index async for entry in handle.map(progress.map).failed()]
            for index in bad:
                if not self.closing and process.ids.random() < 0.25:
                    await self._retry_item(handle, found, index)

    async def retry(self, process: Process) -> None:
        """Retry runs that failed, often before all of their chunks are settled."""
        hf = self.face(process)
        while not self.leaving.is_set():
            await process.clock.sleep(0.3 + process.ids.random())
            for run in self.plans:
                row = self.world.truth.row(RunKey(TENANT, run).pk)
                if row is None or row["status"] != "failed" or process.ids.random() < 0.5:
                    continue
                for found in list(self.promises.fanout.maps.values()):
                    if found.run.id == run:
                        self._heal(found, range(found.spec.total))
                with suppress(StoreError, RunNotFound, NotRetryable, RunEnded):
                    await hf.run(run).retry()
                    self.promises.seen["run retried"] += 1

    async def _retry_item(self, handle: Any, found: FannedOut, index: int) -> None:
        self._heal(found, [index])
        with suppress(NotRetryable):
            await handle.map(found.spec.map).retry(index)
            self.promises.seen["retry of an item acknowledged"] += 1

    def _heal(self, found: FannedOut, indices: Any) -> None:
        for step, asks in enumerate(self.plans[found.run.id]):
            for number in range(len(asks)):
                names = (f"{found.run.id}/{step}-{number}/{index}" for index in indices)
                self.healed |= set(names)

    # --- at rest ----------------------------------------------------------------------------------

    def is_done(self) -> bool:
        """Return whether everything has come to the end that it must come to."""
        try:
            self.settled()
        except Broken:
            return False
        return True

    def settled(self) -> None:
        """Check that every run has come to its end, with all that belongs to it."""
        self.promises.settled()
        self.promises.fanout.settled()
        statuses = self.statuses()
        for run in self.plans:
            allowed = {"finished"}
            allowed |= {"cancelled"} if run in self.stopped else set()
            allowed |= {"expired", "failed"} if run in self.expires else set()
            if statuses.get(run) not in allowed:
                raise Broken(f"P6: {run} is {statuses.get(run)}, and should be {sorted(allowed)}")
        if left := [run for run, status in statuses.items() if status not in ENDED]:
            raise Broken(f"P6: {left} go on")

    def statuses(self) -> dict[str, str]:
        """Return the status of each run, also of chunks."""
        heads = [item for item in self.world.items("RUN#") if item["SK"] == HEAD]
        return {RunKey.parsed(item["PK"]).id: item["status"] for item in heads}

    async def check_results(self, process: Process) -> None:
        """Read all maps once more when all is calm: what chunks recorded is there, and no more."""
        hf = self.face(process)
        for found in self.promises.fanout.maps.values():
            row = self.world.truth.row(found.run.pk)
            if row is None or row["generation"] != found.generation or row.get("freed"):
                continue
            handle = hf.run(found.run.id).map(found.spec.map)
            entries = [entry async for entry in handle.items()]
            self._check_values(found, entries)
            there = {entry.index for entry in entries if entry.ok}
            if lost := (found.settled | (found.done.keys() & found.retried)) - there:
                raise Broken(f"P1: {found.name} has lost the results of {sorted(lost)}")
            progress = await handle.progress()
            # A chunk that a later round did not begin any more does not count what it had before.
            unsure = found.spec.round > 0 and progress.status != "finished"
            if progress.succeeded > len(there) or (progress.succeeded < len(there) and not unsure):
                raise Broken(f"P2: {found.name} has {len(there)} results, and tells {progress}")
            failed = [entry.index async for entry in handle.failed()]
            if failed != [entry.index for entry in entries if not entry.ok]:
                raise Broken(f"P1: {found.name} tells that {failed} failed, and has {entries}")


def _drawn_plans(draw: random.Random, *, at_once: bool) -> dict[str, list[list[Ask]]]:
    return {
        f"run-{number}": [
            [_drawn_ask(draw) for _ in range(draw.choice([1, 1, 2] if at_once else [1]))]
            for _ in range(draw.choice([1, 1, 2]))
        ]
        for number in range(RUNS)
    }


def _drawn_ask(draw: random.Random) -> Ask:
    doomed = draw.choice([0.0, 0.1, 0.2, 0.3])
    return Ask(
        total=draw.choice([0, 1, draw.randint(2, ITEMS_MAX), draw.randint(8, ITEMS_MAX)]),
        chunk=draw.randint(1, 5),
        concurrency=draw.choice([1, 3, 8, 16]),
        tolerate=draw.choice([0, 1, 2, 3, ITEMS_MAX]) if doomed else 0,
        values=draw.random() < 0.3,
        leaves=draw.random() < 0.15,
        caught=draw.random() < 0.3,
        doomed=doomed,
    )


async def _passed(world: World, seconds: float) -> None:
    over = world.loop.create_future()
    world.at(world.loop.time() + seconds, over.set_result, None)
    await over


def mapping(seed: int | str, plan: FaultPlan | None = None) -> Counter[str]:
    """Let runs map, first in trouble, then in peace; return what happened how often.

    Raises:
        Broken: a promise was broken.
    """
    chosen = plan or scattering()
    draw = random.Random(f"{seed}/maps")
    # asyncio begins tasks in their order, and so a node's maps; a loop that shuffles would not.
    at_once = draw.random() < 0.4

    async def scenario(world: World) -> Counter[str]:
        promises = Promises(
            world,
            skew_ms=round(2 * chosen.skew_seconds_max * 1000) + 100,
            stuck_ms=round((TROUBLE_SECONDS + REST_SECONDS) * 1000),
            lease_seconds=LEASE_SECONDS,
            lot=Lot(),
        )
        outside = Outside(
            world,
            promises.seen,
            once=promises.once,
            books=promises.books,
            gate=promises.gate,
            shared=promises.shared,
            streams=promises.streams,
        )
        mapper = Mapper(world, promises, outside, _drawn_plans(draw, at_once=at_once))
        mapper.floor_bytes = draw.choice([0, 1_000, 64 * 1024])
        mapper.expires = {
            run: draw.uniform(15, 60) for run in list(mapper.plans)[1:] if draw.random() < 0.2
        }
        world.users = mapper
        with setting(SHARDS):
            await _lived_through(world, mapper)
        seen = promises.seen
        seen.update(mapper.statuses().values())
        seen.update(world.faults)
        return seen

    return simulate(scenario, f"{seed}/mapping", chosen, shuffle=not at_once)


async def _lived_through(world: World, mapper: Mapper) -> None:
    all_of = [world.supervise(f"w{number}", mapper.work) for number in range(WORKERS)]
    caller = world.supervise("caller", mapper.call)
    all_of += [world.supervise("healer", mapper.heal), world.supervise("owner", mapper.retry)]
    await _passed(world, TROUBLE_SECONDS)
    world.plan = calm().evolve(
        stale_index=world.plan.stale_index, skew_seconds_max=world.plan.skew_seconds_max
    )
    await caller.ended
    over = world.loop.time() + REST_SECONDS
    while world.loop.time() < over:
        await _passed(world, LEASE_SECONDS / 2)
        if mapper.is_done() and not world.is_up_to_something():
            if mapper.closing:
                break
            mapper.closing = True
    mapper.settled()
    mapper.leaving.set()
    mapper.promises.dismissed()
    for one in all_of:
        await one.ended
    auditor = world.process("auditor")
    await auditor.run(mapper.check_results(auditor))
