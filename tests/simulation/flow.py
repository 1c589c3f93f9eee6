"""The graph of simulated fleets: each run carries its plan along, and its nodes do what it says.

A plan is a list of steps, each a word and what belongs to it. ``fork``, ``each`` and ``side`` have
branches with plans of their own: ``fork ask go;nap 3|shaky 1`` has two, of two steps and of one.

====================== =============================================================================
``work 0.5``           takes that many seconds
``swift``              leaves no checkpoint behind
``ask go``, ``go<20``  waits for a signal, that long at most
``first go,pay<20``    waits for the first of several until it has them all; once also for the time
``first …,kid!20``     the same with a run of its own; after that long it gives up once
``nap 8``              sleeps
``shaky 2``            fails that often; a third failure is for good
``heavy``              makes the state too large for an item
``fork a|b``           two branches; one that fails takes the other along, and the run
``each a|b|c``         a branch for each, two at a time; one that fails spares the others
``side a``             a graph of its own inside this one
``kids a|b``           a run of its own for each, and another step when they have ended
``kid``                one such run, also in a branch
``call chain``         calls the world outside: see `effects`
``twin 1``             in a branch of ``each``: two further branches, the first of which may fail
====================== =============================================================================
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypedDict

from holdfast.engine.execution.child import Child
from holdfast.engine.execution.context import Context
from holdfast.errors import StoreError, Unsuccessful, WaitTimedOut
from holdfast.graph import END, Graph
from holdfast.model.budget import Budget
from holdfast.model.child import child_signal
from holdfast.model.conditions import timer
from holdfast.model.policy import Retry
from holdfast.model.signals import signal
from tests.simulation.choices import Choices
from tests.simulation.chronicle import Broken
from tests.simulation.effects import Outside
from tests.simulation.loop import OWNER
from tests.simulation.process import Process

__all__ = [
    "HEAVY",
    "Entered",
    "State",
    "Users",
    "branches_of",
    "flow",
    "gains",
    "is_hopeless",
    "noise",
]

HEAVY = 12_000
KID = ["work 0.1", "nap 3.5"]
RETRY = Retry(attempts=3, backoff=1, factor=6, jitter=0.2)
PAYLOAD: Any = str | dict[str, Any]
"""What a signal brings: a text, or the input of a promoted run. A number does not fit."""

Entered = Callable[[Context, bool], None]
"""Hears that a node begins, and whether what came just before it need not be durable yet."""
Step = Callable[[Context, str], Coroutine[Any, Any, str]]
"""Does one step of a plan, and returns what it adds."""


class Part(TypedDict):
    """One branch of many."""

    plan: list[str]
    at: int


class State(TypedDict, total=False):
    """What a run carries along."""

    plan: list[str]
    at: int
    got: list[str]
    """What every step of a branch and every answer adds to."""
    heavy: bytes
    ballast: bytes
    """Makes some inputs too large for a row, and some too large for an item."""
    left: int
    right: int
    """How far the two branches of a fork are."""
    parts: list[Part]
    part: Part


class Side(TypedDict, total=False):
    """What the graph inside carries along."""

    plan: list[str]
    at: int
    got: list[str]
    step: int


@dataclass
class Users:
    """What the nodes of a fleet meet outside of it. They find it by the process that runs them."""

    entered: Entered
    outside: Outside
    choices: Choices


@cache
def flow() -> Graph:
    """Return the graph of all fleets; its nodes take the time of the process that runs them."""
    graph = Graph("flow", State, reducers={"got": "append"})
    step = partial(_unblamed, partial(_step, graph))

    def entered(context: Context, held: bool) -> None:
        _users().entered(context, held)

    def enter(state: State, context: Context) -> None:
        # What came before a node is durable when it begins, but for those without a checkpoint.
        before = state["plan"][state["at"] - 1].split()[0] if state["at"] else "work"
        entered(context, before in ("swift", "ask", "side"))

    def next_of(state: State) -> Any:
        plan = state["plan"]
        return plan[state["at"]].split()[0] if state["at"] < len(plan) else END

    @graph.node
    async def work(state: State, ctx: Context) -> State:
        enter(state, ctx)
        await _pass(float(_argument(state)))
        return {"at": state["at"] + 1}

    @graph.node(pausable="no")
    async def swift(state: State, ctx: Context) -> State:
        enter(state, ctx)
        return {"at": state["at"] + 1}

    @graph.node(pausable="blocking")
    async def ask(state: State, ctx: Context) -> State:
        enter(state, ctx)
        got = await _answer(ctx, _argument(state))
        enter(state, ctx)
        return {"at": state["at"] + 1, "got": [got]}

    @graph.node
    async def nap(state: State, ctx: Context) -> State:
        enter(state, ctx)
        await ctx.sleep(float(_argument(state)))
        return {"at": state["at"] + 1}

    @graph.node(retry=RETRY)
    async def shaky(state: State, ctx: Context) -> State:
        enter(state, ctx)
        if ctx.attempt <= int(_argument(state)):
            raise ValueError("shaky")
        return {"at": state["at"] + 1}

    @graph.node
    async def heavy(state: State, ctx: Context) -> State:
        enter(state, ctx)
        return {"at": state["at"] + 1, "heavy": noise(ctx.run_id, HEAVY)}

    @graph.node
    async def kids(state: State, ctx: Context) -> State:
        enter(state, ctx)
        plans = branches_of(_argument(state))
        children = [await ctx.start(graph, {"plan": plan, "at": 0}) for plan in plans]
        ends = await asyncio.gather(*(_end_of(child) for child in children))
        enter(state, ctx)
        return {"at": state["at"] + 1, "got": ends}

    @graph.node
    async def kid(state: State, ctx: Context) -> State:
        enter(state, ctx)
        return {"at": state["at"] + 1, "got": [await step(ctx, "kid")]}

    @graph.node
    async def first(state: State, ctx: Context) -> State:
        enter(state, ctx)
        return {"at": state["at"] + 1, "got": [await step(ctx, state["plan"][state["at"]])]}

    @graph.node(retry=RETRY)
    async def call(state: State, ctx: Context) -> State:
        enter(state, ctx)
        return {"at": state["at"] + 1, "got": [await step(ctx, state["plan"][state["at"]])]}

    nodes: list[Any] = [work, swift, ask, nap, shaky, heavy, kids, kid, first, call]
    side = graph.include(_side(step, entered), name="side", gives={"got": "got", "at": "at"})
    entrances = [
        _add_fork(graph, step, enter, entered),
        _add_each(graph, step, enter, entered),
        (side, side),
    ]
    targets = [*nodes, *(first for first, _ in entrances)]
    for node in [*nodes, *(last for _, last in entrances)]:
        # A loop in which no checkpoint ever stands is refused; a graph inside is not looked into.
        restless = (swift, side)
        allowed = [to for to in targets if node not in restless or to not in restless]
        graph.choose(node, next_of, to=[*allowed, END])
    return graph


def _add_fork(graph: Graph, step: Step, enter: Any, entered: Entered) -> tuple[Any, Any]:
    """Add two branches that differ in what is held back; return where they begin and end."""

    @graph.node(writes=["left", "right"])
    async def fork(state: State, ctx: Context) -> State:
        enter(state, ctx)
        return {"left": 0, "right": 0}

    @graph.node(writes=["left", "got"], pausable="blocking", retry=RETRY)
    async def left(state: State, ctx: Context) -> State:
        entered(ctx, state["left"] > 0)
        got = await step(ctx, branches_of(_argument(state))[0][state["left"]])
        return {"left": state["left"] + 1, "got": [got]}

    @graph.node(writes=["right", "got"], retry=RETRY)
    async def right(state: State, ctx: Context) -> State:
        entered(ctx, False)
        got = await step(ctx, branches_of(_argument(state))[1][state["right"]])
        return {"right": state["right"] + 1, "got": [got]}

    @graph.node
    async def meet(state: State, ctx: Context) -> State:
        entered(ctx, True)
        return {"at": state["at"] + 1}

    def more_left(state: State) -> Any:
        return left if state["left"] < len(branches_of(_argument(state))[0]) else meet

    def more_right(state: State) -> Any:
        return right if state["right"] < len(branches_of(_argument(state))[1]) else meet

    graph.fork(fork, [left, right], join=meet)
    graph.choose(left, more_left, to=[left, meet])
    graph.choose(right, more_right, to=[right, meet])
    return fork, meet


def _add_each(graph: Graph, step: Step, enter: Any, entered: Entered) -> tuple[Any, Any]:
    """Add a branch for each of several, in which two more may begin."""

    @graph.node(writes=["parts"])
    async def each(state: State, ctx: Context) -> State:
        enter(state, ctx)
        plans = branches_of(_argument(state))
        return {"parts": [{"plan": plan, "at": 0} for plan in plans]}

    @graph.node(writes=["part", "got"], retry=RETRY)
    async def part(state: State, ctx: Context) -> State:
        entered(ctx, False)
        own = state["part"]
        got = await step(ctx, own["plan"][own["at"]])
        return {"part": {"plan": own["plan"], "at": own["at"] + 1}, "got": [got]}

    @graph.node(writes=[])
    async def twin(state: State, ctx: Context) -> State:
        entered(ctx, False)
        return {}

    @graph.node(writes=["got"], retry=RETRY)
    async def near(state: State, ctx: Context) -> State:
        entered(ctx, False)
        own = state["part"]
        return {"got": [await step(ctx, own["plan"][own["at"]])]}

    @graph.node(writes=["got"])
    async def far(state: State, ctx: Context) -> State:
        entered(ctx, False)
        return {"got": [await step(ctx, "nap 4")]}

    @graph.node(writes=["part"])
    async def inside(state: State, ctx: Context) -> State:
        entered(ctx, False)
        own = state["part"]
        return {"part": {"plan": own["plan"], "at": own["at"] + 1}}

    @graph.node
    async def gather(state: State, ctx: Context) -> State:
        entered(ctx, False)
        return {"at": state["at"] + 1, "parts": []}

    def more(state: State) -> Any:
        own = state["part"]
        if own["at"] >= len(own["plan"]):
            return gather
        return twin if own["plan"][own["at"]].startswith("twin") else part

    graph.each(
        each, part, over="parts", into="part", join=gather, on_failure="spare", concurrency=2
    )
    graph.fork(twin, [near, far], join=inside)
    for node in (part, inside):
        graph.choose(node, more, to=[part, twin, gather])
    return each, gather


def _side(take: Step, entered: Entered) -> Graph:
    """Return the graph inside, which has a state of its own."""
    graph = Graph("side", Side, reducers={"got": "append"})

    @graph.node(retry=RETRY)
    async def step(state: Side, ctx: Context) -> Side:
        at = state.get("step", 0)
        entered(ctx, at == 0)
        return {"step": at + 1, "got": [await take(ctx, _plan(state)[at])]}

    @graph.node
    async def done(state: Side, ctx: Context) -> Side:
        entered(ctx, False)
        return {"at": state["at"] + 1}

    def more(state: Side) -> Any:
        return step if state.get("step", 0) < len(_plan(state)) else done

    def _plan(state: Side) -> list[str]:
        return branches_of(state["plan"][state["at"]].partition(" ")[2])[0]

    graph.choose(step, more, to=[step, done])
    return graph


async def _unblamed(do: Step, ctx: Context, step: str) -> str:
    """Do one step of a branch, which is not to hear of stores that cannot be used."""
    try:
        return await do(ctx, step)
    except StoreError as error:
        process = OWNER.get()
        assert isinstance(process, Process)
        # Not raised: in a node it would only make the node fail.
        process.world.loop.fail(Broken(f"P6: {step!r} of {ctx.run_id} is told {error!r}"))
        raise


async def _step(graph: Graph, ctx: Context, step: str) -> str:
    """Do one step of a branch, and return what it adds."""

    async def start(
        ctx: Context, plan: list[str] | None = None, budget: Budget | None = None
    ) -> Child:
        return await ctx.start(graph, {"plan": plan or KID, "at": 0}, budget=budget)

    kind, _, argument = step.partition(" ")
    match kind:
        case "work":
            await _pass(float(argument))
        case "ask":
            return await _answer(ctx, argument)
        case "nap":
            await ctx.sleep(float(argument))
        case "kid":
            await _end_of(await start(ctx))
        case "first":
            names, sign, limit = _parsed_first(argument)
            child = await start(ctx) if "kid" in names else None
            return await _one_by_one(ctx, names, child, sign, limit)
        case "call":
            return await _users().outside.step(ctx, argument, start, _end_of)
        case "shaky" | "twin":
            if ctx.attempt <= int(argument):
                raise ValueError("shaky")
        case _:
            raise AssertionError(step)
    return step


async def _end_of(child: Child) -> str:
    """Wait for a child, and return how it ended."""
    try:
        result: State = await child.result()
    except Unsuccessful as error:
        return type(error).__name__
    return f"finished {result['at']}"


def _parsed_first(argument: str) -> tuple[list[str], str, float]:
    """Return the names of several, and the time: ``<`` for a timer, ``!`` for a limit."""
    sign = next((sign for sign in "<!" if sign in argument), "")
    names, _, limit = argument.partition(sign) if sign else (argument, "", "0")
    return names.split(","), sign, float(limit)


async def _one_by_one(
    ctx: Context, names: list[str], child: Child | None, sign: str, limit: float
) -> str:
    """Wait for the first of several until none is left; return what came, in its order."""
    choices, got = _users().choices, list[str]()
    left: dict[str, Any] = {
        name: child if name == "kid" else signal(name, PAYLOAD) for name in names
    }
    while left:
        number = len(got)
        choices.asks(ctx, number, frozenset(map(_signal_name, left.values())))
        conditions = [*left.values(), *([timer(limit)] if sign == "<" else [])]
        came, payload = "", ""
        try:
            answer = await ctx.wait_any(
                *conditions,
                about={"left": [*left], "number": number},
                max_wait=limit if sign == "!" else None,
            )
            if answer.index < len(left):
                came = [*left][answer.index]
                payload = "" if came == "kid" else str(answer.payload)
        except WaitTimedOut:
            pass
        except Unsuccessful:
            came = "kid"
        told = (_signal_name(left[came]), payload) if came else None
        choices.answered(ctx, number, told)
        got.append(came or "time")
        if came:
            del left[came]
        else:
            sign = ""
    return " ".join(got)


def _signal_name(condition: Any) -> str:
    return child_signal(condition.id) if isinstance(condition, Child) else condition.name


async def _pass(seconds: float) -> None:
    await _process().clock.sleep(seconds)


def _process() -> Process:
    """Return the process that runs this."""
    process = OWNER.get()
    assert isinstance(process, Process)
    return process


def _users() -> Users:
    users = _process().world.users
    assert isinstance(users, Users)
    return users


async def _answer(ctx: Context, argument: str) -> str:
    name, _, limit = argument.partition("<")
    awaited = signal(name, PAYLOAD)
    try:
        return str(await ctx.wait(awaited, max_wait=float(limit) if limit else None))[:40]
    except WaitTimedOut:
        return "nothing"


def branches_of(argument: str) -> list[list[str]]:
    """Return the plans of the branches that a step has."""
    return [branch.split(";") for branch in argument.split("|")]


def is_hopeless(plan: list[str]) -> bool:
    """Return whether a plan has a step that fails for good, and takes the run along."""
    return any("shaky 3" in step for step in plan if not step.startswith(("each", "kids")))


def gains(plan: list[str]) -> int:
    """Return how many entries a run that went through its plan has got."""
    found = 0
    for step in plan:
        kind, _, argument = step.partition(" ")
        if kind in ("ask", "kid", "first", "call"):
            found += 1
        elif kind == "kids":
            found += len(branches_of(argument))
        elif kind in ("fork", "side"):
            found += sum(len(branch) for branch in branches_of(argument))
        elif kind == "each":
            # What a branch that failed added is not there.
            lasting = [b for b in branches_of(argument) if not {"shaky 3", "twin 3"} & {*b}]
            found += sum(1 + (s.startswith("twin")) for branch in lasting for s in branch)
    return found


def noise(seed: str, count: int) -> bytes:
    """Return bytes that do not compress."""
    return random.Random(seed).randbytes(count)


def _argument(state: State) -> str:
    return state["plan"][state["at"]].partition(" ")[2]
