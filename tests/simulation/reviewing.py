"""Runs that ask people, and people who decide: early, late, all at once, and after a crash.

Each run has a plan: at each step a node asks for one review or for several. Each person has deeds:
what to do with which review, and when by the person's own clock, often at the very millisecond of
the expiry. A deed is repeated until the person is told what became of it, also after a crash. A
chair decides at the end what nobody decided, so that every run comes to its end.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Literal, TypedDict

from holdfast import Context, Graph, Holdfast
from holdfast.errors import (
    AlreadyVoted,
    ExpiryNotLater,
    HoldfastError,
    InvalidRequest,
    NotAssigned,
    ReviewChanged,
    ReviewClaimed,
    ReviewDecided,
    ReviewNotFound,
    RunEnded,
    RunNotFound,
    StoreError,
)
from holdfast.graph import END
from holdfast.model.review import Review, ReviewDecision
from holdfast.records.head import ENDED
from holdfast.records.keys import HEAD, RunKey
from holdfast.records.review import ReviewKey
from tests.simulation.chronicle import Broken
from tests.simulation.decided import Case
from tests.simulation.faces import face_of
from tests.simulation.faults import FaultPlan, calm, hostile
from tests.simulation.loop import OWNER
from tests.simulation.lot import Lot
from tests.simulation.process import Process
from tests.simulation.promises import Promises
from tests.simulation.setting import setting
from tests.simulation.world import World, simulate

__all__ = ["Panel", "quarrel", "reviewing"]

TENANT = "acme"
PEOPLE = ("ana", "ben", "cid")
STRANGERS = ("dan", "eve", "fay")
"""Further reviewers, who vote where those disagree."""
WORKERS = 2
RUNS = 5
SHARDS = 2
LEASE_SECONDS = 20.0
TROUBLE_SECONDS = 70.0
REST_SECONDS = 400.0
TOLD_SECONDS = 100.0
"""So long after an expiry in calm times the node has been told."""
TICK_MS = 16
"""Clocks that move so far at once meet at one millisecond. Expiries are multiples of it."""
DECIDER_CRASHES = 0.1
"""How many deeds a person's process does not outlive, somewhere between two of its writes."""
CHANGER_CRASHES = 0.3
"""The same of edits and reassignments, where people change much."""
DECISIVE = ("approve", "reject", "withdraw")
CHANGING = ("edit", "reassign")

Verb = Literal[
    "approve", "reject", "withdraw", "edit", "reassign", "claim", "release", "comment", "look"
]


class Ask(TypedDict):
    """One review that a node asks for."""

    assignees: list[str]
    quorum: int
    expires_ms: int
    """0 if it does not expire."""
    form: bool


class Terms(TypedDict):
    """What reviewers may edit."""

    months: int


class Plan(TypedDict, total=False):
    """The state of a run that asks people."""

    steps: list[list[Ask]]
    at: int
    got: list[str]


@dataclass
class Deed:
    """What a person wants to do with a review; the person repeats it until there is an answer."""

    key: ReviewKey
    verb: Verb
    by: str
    at_ms: int
    """By the person's own clock."""
    tag: str
    looks: bool = False
    """Whether the person decides on a page: what it showed goes with the decision."""
    done: bool = False


def quarrel() -> FaultPlan:
    """Return the plan of faults for people who decide reviews."""
    return hostile().evolve(
        lost_answer=0.03,
        late_write=0.02,
        slow_signal=0.03,
        crash=0.002,
        stall=0.002,
        stall_seconds_max=60.0,
        restart_seconds_max=8.0,
        abandoned=0.4,
        restless=0.3,
    )


@cache
def judged() -> Graph:
    """Return the graph of runs that ask people."""
    graph = Graph("judged", Plan, reducers={"got": "append"})

    @graph.node
    async def judge(state: Plan, ctx: Context) -> Plan:
        panel = _panel()
        panel.promises.entered(ctx, False)
        step = state["steps"][state["at"]]
        decisions = await asyncio.gather(
            *(_asked(ctx, ask, f"{state['at']}.{number}") for number, ask in enumerate(step))
        )
        return {"at": state["at"] + 1, "got": [decision.status for decision in decisions]}

    def more(state: Plan) -> Any:
        return judge if state["at"] < len(state["steps"]) else END

    graph.choose(judge, more, to=[judge, END])
    return graph


async def _asked(ctx: Context, ask: Ask, number: str) -> ReviewDecision[Any]:
    options: dict[str, Any] = {"form": Terms, "values": Terms(months=12)} if ask["form"] else {}
    decision = await ctx.review(
        f"{ctx.run_id} {number}?",
        show={"number": number},
        assignees=ask["assignees"],
        expires=ask["expires_ms"] / 1000 if ask["expires_ms"] else None,
        quorum=ask["quorum"],
        **options,
    )
    _panel().got(ctx, number, decision, form=ask["form"])
    return decision


def _panel() -> Panel:
    process = OWNER.get()
    assert isinstance(process, Process)
    panel = process.world.users
    assert isinstance(panel, Panel)
    return panel


@dataclass
class Panel:
    """Everything that is known outside the world: the people, and what they want."""

    world: World
    promises: Promises
    plans: dict[str, list[list[Ask]]]
    expires: dict[str, float | None] = field(default_factory=dict)
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    deeds: dict[ReviewKey, list[Deed]] = field(default_factory=dict)
    given: dict[tuple[str, str], tuple[str, str | None]] = field(default_factory=dict)
    """What nodes got, by run and number."""
    faces: dict[str, Holdfast] = field(default_factory=dict)
    restless: bool = False
    """Whether people change reviews at the moment at which others decide."""
    closing: bool = False
    """Whether the chair decides what is left."""
    stopped: set[str] = field(default_factory=set)

    def face(self, process: Process) -> Holdfast:
        if process.name not in self.faces:
            self.faces[process.name] = face_of(process, tenant=TENANT)
        return self.faces[process.name]

    def got(self, ctx: Context, number: str, decision: ReviewDecision[Any], *, form: bool) -> None:
        """Hear what a node got: the same each time."""
        got = (decision.status, decision.by)
        known = self.given.setdefault((ctx.run_id, number), got)
        broken = None
        if known != got:
            broken = f"P4: {ctx.run_id} got {got} as {number}, and before {known}"
        if form and decision.approved and not isinstance(decision.values["months"], int):
            broken = f"P1: {ctx.run_id} got {decision.values} as {number}"
        if broken is not None:
            # Not raised: in a node it would only make the node fail.
            self.world.loop.fail(Broken(broken))

    # --- workers and callers ----------------------------------------------------------------------

    async def work(self, process: Process) -> None:
        """Be a worker, and leave and come back now and then."""
        hf = self.face(process)
        while not self.leaving.is_set():
            worker = hf.worker([judged()], concurrency=8, lease=LEASE_SECONDS, poll=3.0, drain=2.0)
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

    async def call(self, process: Process) -> None:
        """Start the runs; cancel and extend some of them."""
        hf = self.face(process)
        for number, (run, steps) in enumerate(self.plans.items()):
            await process.clock.sleep(number * 2.0 - process.clock.monotonic())
            await self._until_told(process, partial(self._start, hf, run, steps))
        for run in list(self.plans)[1::2]:
            at = self.draw_at(run)
            await process.clock.sleep(at - process.clock.monotonic())
            await self._until_told(process, partial(self._meddle, hf, run))

    def draw_at(self, run: str) -> float:
        """Return when somebody meddles with a run; the same again after a crash."""
        return 12 + 40 * random.Random(f"{self.world.seed}/{run}").random()

    async def _until_told(
        self, process: Process, do: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        while True:
            try:
                return await do()
            except StoreError:
                await process.clock.sleep(1.0)
            except (RunEnded, ExpiryNotLater, RunNotFound):
                return

    async def _start(self, hf: Holdfast, run: str, steps: list[list[Ask]]) -> None:
        given: Plan = {"steps": steps, "at": 0}
        span = self.expires.get(run) or 7 * 24 * 3600
        await hf.start(judged(), given, id=run, expires=span)
        self.promises.started(RunKey(TENANT, run))

    async def _meddle(self, hf: Holdfast, run: str) -> None:
        if self.expires.get(run) is not None:
            await hf.run(run).extend(self.expires[run] or 0)
        elif random.Random(f"{self.world.seed}/{run}/cancel").random() < 0.5:
            self.stopped.add(run)
            await hf.run(run).cancel("no longer wanted")

    # --- people -----------------------------------------------------------------------------------

    def deeds_of(self, case: Case) -> list[Deed]:
        """Return what people want to do with a review; drawn when they first hear of it."""
        if case.key not in self.deeds:
            self.deeds[case.key] = list(self._drawn(case))
        return self.deeds[case.key]

    def _drawn(self, case: Case) -> Iterator[Deed]:
        assert case.entry is not None
        draw = random.Random(f"{self.world.seed}/{case.key.id}")
        since, expires = case.entry.created_ms, case.entry.expires_ms
        last = since + 30_000 if expires is None else expires
        moment = draw.randint(min(since + 2_000, last), last)
        for number in range(draw.randint(0, 3 + 2 * self.restless)):
            verb = draw.choice(["edit", "edit", "reassign", "claim", "release", "comment"])
            at_ms = draw.randint(since, last)
            if self.restless and draw.random() < 0.7:
                verb, at_ms = draw.choice(CHANGING), moment
            yield Deed(case.key, verb, draw.choice(PEOPLE), at_ms, f"{verb}{number}=")
        for number in range(draw.randint(1, 5)):
            odds = (9, 6, 3) if draw.random() < 0.7 else (1, 1, 0)
            (verb,) = draw.choices(DECISIVE, odds)
            near = draw.random() if not self.restless else draw.uniform(0.5, 1)
            if expires is not None and near < 0.6:
                # What it takes to read comes before the decision.
                at_ms = expires - draw.choice([0, 16, 16, 16, 16, 32, -16])
            elif near < 0.8:
                at_ms = moment
            else:
                at_ms = draw.randint(since, last)
            tag = f"{verb}{number}={draw.choice(['', '', draw.randint(1, 9)])}"
            looks = self.restless and draw.random() < 0.5
            yield Deed(case.key, verb, draw.choice(PEOPLE), at_ms, tag, looks)

    def person(self, name: str) -> Callable[[Process], Coroutine[Any, Any, None]]:
        """Return a process in which a person decides."""

        async def boot(process: Process) -> None:
            begun: set[int] = set()
            hf = self.face(process)
            while not self.leaving.is_set():
                await process.clock.sleep(0.5)
                soon = process.clock.now_ms() + 1_500
                for case in list(self.promises.decided.cases.values()):
                    if case.entry is None:
                        continue
                    for deed in self.deeds_of(case):
                        if deed.by == name and deed.at_ms <= soon and id(deed) not in begun:
                            begun.add(id(deed))
                            task = process.spawn(self._see_to(process, hf, case, deed))
                            task.add_done_callback(self._is_done, context=self.world.context)

        return boot

    def _is_done(self, task: asyncio.Future[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.world.loop.fail(error)

    async def _see_to(self, process: Process, hf: Holdfast, case: Case, deed: Deed) -> None:
        """Do a deed at its moment, and again until there is an answer."""
        while not deed.done:
            await process.clock.sleep(max(0, deed.at_ms - process.clock.now_ms()) / 1000)
            if self.closing and deed.verb not in DECISIVE:
                return
            expires_ms = None if case.entry is None else case.entry.expires_ms
            # Who means to decide in the last moment mostly does.
            in_time = expires_ms is None or deed.at_ms < expires_ms - 100
            changes = self.restless and deed.verb in CHANGING
            crashes = CHANGER_CRASHES if changes else DECIDER_CRASHES
            if in_time and not self.closing and process.ids.random() < crashes:
                moment = self.world.loop.time() + process.ids.random() * 0.06
                self.world.at(moment, process.crash)
            with suppress(StoreError):
                await self.do(process, hf, case, deed)
                deed.done = True
                return
            await process.clock.sleep(0.3 + process.ids.random())

    async def do(self, process: Process, hf: Holdfast, case: Case, deed: Deed) -> Review | None:
        """Do a deed, and let it be checked what the person is told."""
        decided = self.promises.decided
        key, by, comment = case.key, deed.by, deed.tag
        decides = deed.verb in ("approve", "reject") and decided.is_decisive(
            case, by, approve=deed.verb == "approve"
        )
        actions = len(case.actions)
        try:
            review = await self._done(hf, key.id, deed)
        except ReviewDecided as refused:
            decided.refused(case, refused.decision, f"{process.name} for {by}")
            return None
        except (AlreadyVoted, NotAssigned, ReviewClaimed, ReviewChanged, InvalidRequest) as error:
            self.promises.seen[f"refused as {type(error).__name__}"] += 1
            return None
        except ReviewNotFound:
            if decided.is_there(case):
                raise Broken(f"P1: {by} does not find {key.id}") from None
            return None
        if deed.verb in ("approve", "reject"):
            decided.acknowledged(
                case, review, by=by, approve=deed.verb == "approve", comment=comment
            )
            # An edit begins another round, also one that comes with the vote itself.
            if decides and case.decision is None and len(case.actions) == actions:
                raise Broken(f"P1: the vote of {by} on {key.id} decides, and nothing is decided")
        elif deed.verb == "withdraw" and case.decision is None:
            raise Broken(f"P1: {by} withdrew {key.id}, and nothing is decided")
        else:
            decided.read(case, review, by, knew=None)
        if deed.verb in CHANGING:
            decided.changed(case, by, comment)
        return review

    async def _done(self, hf: Holdfast, id: str, deed: Deed) -> Review:
        reviews, by = hf.reviews, deed.by
        match deed.verb:
            case "approve" | "reject":
                return await self._decided(hf, id, deed)
            case "withdraw":
                return await reviews.withdraw(id, by=by, comment=deed.tag)
            case "edit":
                months = 20 + int(deed.tag[-2])
                return await reviews.edit(id, by=by, values={"months": months}, key=deed.tag)
            case "reassign":
                to = [by, *PEOPLE[:1]]
                return await reviews.reassign(id, by=by, to=to, comment=deed.tag, key=deed.tag)
            case "claim":
                return await reviews.claim(id, by=by)
            case "release":
                return await reviews.release(id, by=by)
            case "comment":
                return await reviews.comment(id, by=by, text=deed.tag)
            case "look":
                return await reviews.get(id)

    async def _decided(self, hf: Holdfast, id: str, deed: Deed) -> Review:
        """Approve or reject; who is told that the page is an old one decides on the new one."""
        options: dict[str, Any] = {"by": deed.by, "comment": deed.tag}
        months = deed.tag.rpartition("=")[2]
        page = await hf.reviews.get(id) if deed.looks or months else None
        if deed.verb == "approve" and months and page is not None and page.form is not None:
            options["values"] = {"months": int(months)}
        decide = hf.reviews.approve if deed.verb == "approve" else hf.reviews.reject
        while page is not None and deed.looks:
            try:
                return await decide(id, seen=page.rendered, **options)
            except ReviewChanged as changed:
                if changed.review.rendered == page.rendered or not changed.difference:
                    raise Broken(f"P1: {deed.by} is told that {id} changed: {changed}") from None
                self.promises.seen["shown again with the difference"] += 1
                page = changed.review
        return await decide(id, **options)

    async def watch(self, process: Process) -> None:
        """Read reviews again and again, and the lists; at the end, decide what nobody decided."""
        hf, decided = self.face(process), self.promises.decided
        while not self.leaving.is_set():
            await process.clock.sleep(1.0 + process.ids.random())
            with suppress(StoreError):
                for entry in (await hf.reviews.list(status="pending")).reviews:
                    self.promises.seen["review listed"] += entry.status == "pending"
            for case in list(decided.cases.values()):
                if case.entry is None or process.ids.random() < 0.5:
                    continue
                with suppress(StoreError, ReviewNotFound):
                    knew, was_open = case.told, case.final is None
                    review = await hf.reviews.get(case.key.id)
                    if decided.is_there(case):
                        decided.read(case, review, process.name, knew=knew, was_open=was_open)
                        if self.closing and review.decision is None:
                            await self._close(process, hf, case, review)

    async def _close(self, process: Process, hf: Holdfast, case: Case, review: Review) -> None:
        """Let everybody approve who may and has not decided."""
        if review.expires_at is not None and case.entry and case.entry.expires_ms is not None:
            return
        for person in (
            [review.claimed_by] if review.claimed_by else review.assignees or (*PEOPLE, *STRANGERS)
        ):
            with suppress(StoreError):
                await self.do(process, hf, case, Deed(case.key, "approve", person, 0, "closed="))

    # --- at rest ----------------------------------------------------------------------------------

    def is_done(self) -> bool:
        """Return whether everything has come to the end that it must come to."""
        try:
            self.settled()
        except Broken:
            return False
        return True

    def settled(self) -> None:
        """Check that every run has come to its end, and every review."""
        self.promises.settled()
        statuses = self.statuses()
        for run in self.plans:
            allowed = {"finished"}
            allowed |= {"cancelled"} if run in self.stopped else set()
            allowed |= {"expired"} if self.expires.get(run) is not None else set()
            if statuses.get(run) not in allowed:
                raise Broken(f"P6: {run} is {statuses.get(run)}, and should be {sorted(allowed)}")
        self.promises.decided.settled()

    def statuses(self) -> dict[str, str]:
        """Return the status of each run."""
        heads = [item for item in self.world.items("RUN#") if item["SK"] == HEAD]
        return {RunKey.parsed(item["PK"]).id: item["status"] for item in heads}


def _drawn_plans(draw: random.Random, *, at_once: bool) -> dict[str, list[list[Ask]]]:
    several = [1, 1, 2] if at_once else [1]
    return {
        f"run-{number}": [
            [_drawn_ask(draw) for _ in range(draw.choice(several))]
            for _ in range(draw.choice([1, 1, 2]))
        ]
        for number in range(RUNS)
    }


def _drawn_ask(draw: random.Random) -> Ask:
    quorum = draw.choice([1, 1, 1, 2, 2, 3])
    all_of = list(PEOPLE) if quorum > 1 or draw.random() < 0.5 else []
    return Ask(
        assignees=all_of if quorum < 3 or draw.random() < 0.8 else [],
        quorum=quorum,
        expires_ms=TICK_MS * draw.randint(500, 2_000) if draw.random() < 0.7 else 0,
        form=draw.random() < 0.5,
    )


async def _passed(world: World, seconds: float) -> None:
    over = world.loop.create_future()
    world.at(world.loop.time() + seconds, over.set_result, None)
    await over


def reviewing(seed: int | str, plan: FaultPlan | None = None) -> Counter[str]:
    """Let people decide reviews, first in trouble, then in peace; return what happened how often.

    Raises:
        Broken: a promise was broken.
    """
    chosen = plan or quarrel()
    draw = random.Random(f"{seed}/people")
    # asyncio begins tasks in their order, and so a node's reviews at once; a loop that shuffles
    # would not.
    at_once = draw.random() < 0.5

    async def scenario(world: World) -> Counter[str]:
        world.plan = world.plan.evolve(tick_ms=draw.choice([1, TICK_MS]))
        promises = Promises(
            world,
            skew_ms=round(2 * chosen.skew_seconds_max * 1000) + 100,
            stuck_ms=round((TROUBLE_SECONDS + REST_SECONDS) * 1000),
            lease_seconds=LEASE_SECONDS,
            lot=Lot(),
        )
        panel = Panel(world, promises, _drawn_plans(draw, at_once=at_once))
        panel.restless = random.Random(f"{seed}/restless").random() < chosen.restless
        panel.expires = {
            run: draw.uniform(15, 60) for run in list(panel.plans)[1:] if draw.random() < 0.3
        }
        world.users = panel
        with setting(SHARDS):
            await _lived_through(world, panel)
        seen = promises.seen
        seen.update(panel.statuses().values())
        seen.update(world.faults)
        return seen

    return simulate(scenario, f"{seed}/reviewing", chosen, shuffle=not at_once)


async def _lived_through(world: World, panel: Panel) -> None:
    all_of = [world.supervise(f"w{number}", panel.work) for number in range(WORKERS)]
    caller = world.supervise("caller", panel.call)
    all_of += [world.supervise(name, panel.person(name)) for name in PEOPLE]
    all_of.append(world.supervise("chair", panel.watch))
    await _passed(world, TROUBLE_SECONDS)
    world.plan = calm().evolve(
        stale_index=world.plan.stale_index,
        skew_seconds_max=world.plan.skew_seconds_max,
        tick_ms=world.plan.tick_ms,
    )
    panel.closing = True
    await caller.ended
    over = world.loop.time() + REST_SECONDS
    # Who stalls goes on by then, and the dead are reaped.
    await _passed(world, TOLD_SECONDS)
    while world.loop.time() < over:
        await _passed(world, LEASE_SECONDS / 2)
        panel.promises.decided.check_told(round(TOLD_SECONDS * 1000))
        if panel.is_done() and not world.is_up_to_something():
            break
    panel.settled()
    panel.leaving.set()
    panel.promises.dismissed()
    for one in all_of:
        await one.ended
    if left := [run for run, status in panel.statuses().items() if status not in ENDED]:
        raise Broken(f"P6: {left} go on")
