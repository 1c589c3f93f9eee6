"""Graphs for processes that are killed, and the side effects by which one counts what they did.

Every node writes a line of what it does into a file of its process before it returns. The folder of
these files is in the environment, `EFFECTS`, or in the context, `effects_folder`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal as signals
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from holdfast import Context, Graph, Retry, signal, tool, workflow
from holdfast.clock import SystemClock
from holdfast.engine.history.text_stream import TokenWriter
from holdfast.model.invocation import Answer, Emit, Request
from holdfast.model.pricing import ModelPrice, Usage

EFFECTS = "HOLDFAST_TEST_EFFECTS"
LET_GO = "HOLDFAST_TEST_LET_GO"
"""In an environment that has this, a node that would stay for a minute returns at once."""

TEN = 10
LONG_SECONDS = 60
BIG_BYTES = 40_000
SIGNALS = ("one", "two")

effects_folder: ContextVar[Path | None] = ContextVar("effects_folder", default=None)
"""For workers of one process that are to be told apart."""


class Effect(NamedTuple):
    """Something that a node did, and which process did it."""

    run: str
    node: str
    visit: int
    attempt: int
    pid: int
    at_ms: int

    @property
    def what(self) -> tuple[str, str, int, int]:
        """What was done, whoever did it."""
        return self[:4]


def leave_trace(ctx: Any, node: str | None = None) -> None:
    """Write down that the node was here; when this returns, not even kill -9 can undo it."""
    place = (ctx.run_id, node or ctx.node, ctx.visit, ctx.attempt)
    _write_down(Effect(*place, os.getpid(), SystemClock().now_ms()))


def effects(folder: Path) -> list[Effect]:
    """Return what all processes did so far, of each process in its order."""
    return [
        Effect(run, node, *map(int, numbers)) for run, node, *numbers in _written(folder, Effect)
    ]


def _write_down(what: Effect | Called) -> None:
    folder = effects_folder.get() or Path(os.environ[EFFECTS])
    file = os.open(folder / str(os.getpid()), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        line = " ".join(map(str, (type(what).__name__, *what)))
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


def _written(folder: Path, kind: type) -> Iterator[list[str]]:
    for file in sorted(folder.iterdir()):
        for line in file.read_text().splitlines():
            name, *fields = line.split()
            if name == kind.__name__:
                yield fields


class Trail(TypedDict, total=False):
    """Where a run has been, as its state tells it."""

    trail: list[str]
    work_seconds: float
    blob: bytes
    answers: list[str]
    questions: int
    heirs: int


def _went_on(state: Trail, ctx: Any) -> Trail:
    return {"trail": [*state.get("trail", []), ctx.node]}


# --- ten nodes, each of which works for a moment --------------------------------------------------

ten = Graph("ten", Trail)


def _ten(number: int) -> Callable[..., Any]:
    @ten.node(name=f"node{number}")
    async def node(state: Trail, ctx: Context) -> Trail:
        leave_trace(ctx)
        # Not a wait for anything: this is how long the work of the node takes.
        await SystemClock().sleep(state.get("work_seconds", 0))
        return _went_on(state, ctx)

    return node


ten.route(*[_ten(number) for number in range(TEN)])
TEN_TRAIL = [f"node{number}" for number in range(TEN)]


# --- nodes that take a minute, unless they are let go ---------------------------------------------

asleep = Graph("asleep", Trail, start="before")
threaded = Graph("threaded", Trail, start="before")
LONG_TRAIL = ["before", "stays", "after"]


@asleep.node(name="before")
@threaded.node(name="before")
@asleep.node(name="after")
@threaded.node(name="after")
async def passing(state: Trail, ctx: Context) -> Trail:
    leave_trace(ctx)
    return _went_on(state, ctx)


@asleep.node(name="stays")
async def stays_asleep(state: Trail, ctx: Context) -> Trail:
    leave_trace(ctx)
    if LET_GO not in os.environ:
        async with asyncio.timeout(LONG_SECONDS):
            await asyncio.Event().wait()
    return _went_on(state, ctx)


@threaded.node(name="stays")
def stays_in_a_thread(state: Trail, ctx: Any) -> Trail:
    leave_trace(ctx)
    if LET_GO not in os.environ:
        threading.Event().wait(LONG_SECONDS)
    return _went_on(state, ctx)


asleep.route(*LONG_TRAIL)
threaded.route(*LONG_TRAIL)


# --- a node that stands in front of a gate --------------------------------------------------------

gated = Graph("gated", Trail)
GATED_TRAIL = ["first", "gate", "third", "last"]


class Gate:
    """Opens for good when a line comes in on the standard input of the process."""

    def __init__(self) -> None:
        self._opened = asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._read)

    async def passed(self) -> None:
        await self._opened.wait()

    def _read(self) -> None:
        os.read(sys.stdin.fileno(), 1)
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        self._opened.set()


gates: list[Gate] = []


async def _gated(state: Trail, ctx: Context) -> Trail:
    leave_trace(ctx)
    if ctx.node == "gate":
        await passed_gate()
    return _went_on(state, ctx)


for _name in GATED_TRAIL:
    # After the gate nothing is written: it is the lease that keeps a worker from the third.
    gated.node(name=_name, pausable="no" if _name == "gate" else "yes")(_gated)
gated.route(*GATED_TRAIL)


# --- a node that speaks, and stands in front of a gate before it is done --------------------------

speaking = Graph("speaking", Trail)


@speaking.node
async def speak(state: Trail, ctx: Context) -> Trail:
    hold: Any = ctx._visit.claimed
    async with TokenWriter(
        hold.kernel,
        hold.head,
        is_claimed=hold.claim.alive,
        is_lost=hold.claim.is_lost,
        call="answer",
        name="model",
    ) as answer:
        answer.emit(f"{os.getpid()} says: ")
        await passed_gate()
        answer.emit("so be it")
    return _went_on(state, ctx)


# --- a bit of everything: another attempt, a large delta, a pause for two signals -----------------

varied = Graph("varied", Trail, start="begin")
VARIED_TRAIL = ["begin", "flaky", "big", "ask", "close"]


@varied.node(name="begin")
@varied.node(name="close")
async def plain_step(state: Trail, ctx: Context) -> Trail:
    leave_trace(ctx)
    return _went_on(state, ctx)


@varied.node(retry=Retry(attempts=2, backoff=0.3, jitter=0))
async def flaky(state: Trail, ctx: Context) -> Trail:
    leave_trace(ctx)
    if ctx.attempt == 1:
        raise ConnectionError("not this time")
    return _went_on(state, ctx)


@varied.node
async def big(state: Trail, ctx: Context) -> Trail:
    leave_trace(ctx)
    return {**_went_on(state, ctx), "blob": big_value()}


def big_value() -> bytes:
    """Return what no compressor makes smaller, so that it is kept beside the table."""
    return random.Random(7).randbytes(BIG_BYTES)


@varied.node
async def ask(state: Trail, ctx: Context) -> Trail:
    answers = [await ctx.wait(signal("answer")) for _ in SIGNALS]
    leave_trace(ctx)
    return {**_went_on(state, ctx), "answers": answers}


varied.route(*VARIED_TRAIL)


# --- branches that wait and fail, children, and a session -----------------------------------------

SESSION = "chat"
LEAVES = 1
BRANCH_SIGNALS = ("left", "right")
wide = Graph("wide", Trail, start="begin", reducers={"trail": "append"})
leaf = Graph("leaf", Trail)
idle = Graph("idle", Trail)
brief = Graph("brief", Trail)


@wide.node(name="begin")
@wide.node(name="close")
@leaf.node(name="grow")
@brief.node(name="speak")
async def told_step(state: Trail, ctx: Context) -> Trail:
    leave_trace(ctx)
    await SystemClock().sleep(state.get("work_seconds", 0))
    return {"trail": [ctx.node]}


@wide.node(name="left", writes=["trail"])
@wide.node(name="right", writes=["trail"])
async def wait_in_branch(state: Trail, ctx: Context) -> Trail:
    if state.get("work_seconds") is None:
        await ctx.wait(signal(ctx.node))
    leave_trace(ctx)
    return {"trail": [ctx.node]}


@wide.node(name="shaky", writes=["trail"], retry=Retry(attempts=2, backoff=0.05, jitter=0))
async def fail_in_branch(state: Trail, ctx: Context) -> Trail:
    leave_trace(ctx)
    if ctx.attempt == 1:
        raise ConnectionError("not this time")
    return {"trail": [ctx.node]}


@wide.node(name="raise_children")
async def raise_children(state: Trail, ctx: Context) -> Trail:
    given: Trail = {"work_seconds": state["work_seconds"]} if "work_seconds" in state else {}
    children = [await ctx.start(leaf, given) for _ in range(LEAVES)]
    await ctx.start(idle, id=f"{ctx.run_id}-idle")
    for child in children:
        assert (await child.result())["trail"] == ["grow"]
    leave_trace(ctx)
    return {"trail": [ctx.node]}


@idle.node(name="stay")
async def stay(state: Trail, ctx: Context) -> Trail:
    await ctx.wait(signal("never"))
    return {}


wide.fork("begin", ["left", "right", "shaky"], join="raise_children")
wide.route("raise_children", "close")
WIDE_TRAIL = ["begin", "left", "right", "shaky", "raise_children", "close"]
FAMILY = [wide, leaf, idle, brief]


# --- gates inside a branch, and between the starts of children ------------------------------------

gated_branch = Graph("gated_branch", Trail, start="first", reducers={"trail": "append"})
gated_parent = Graph("gated_parent", Trail, start="first", reducers={"trail": "append"})
GATED_BRANCH_TRAIL = ["first", "gate", "beside", "last"]
GATED_PARENT_TRAIL = ["first", "gate", "last"]


@gated_branch.node(name="first")
@gated_branch.node(name="gate", writes=["trail"], pausable="no")
@gated_branch.node(name="beside", writes=["trail"])
@gated_branch.node(name="last")
@gated_parent.node(name="first")
@gated_parent.node(name="last")
async def pass_gate(state: Trail, ctx: Context) -> Trail:
    leave_trace(ctx)
    if ctx.node == "gate":
        await passed_gate()
    return {"trail": [ctx.node]}


@gated_parent.node(name="gate")
async def start_on_both_sides(state: Trail, ctx: Context) -> Trail:
    """Start a child, stand at the gate, start another one, and await both."""
    before = await ctx.start(leaf, id=f"{ctx.run_id}-before")
    leave_trace(ctx)
    await passed_gate()
    after = await ctx.start(leaf, id=f"{ctx.run_id}-after")
    for child in (before, after):
        await child.result()
    return {"trail": [ctx.node]}


async def passed_gate() -> None:
    if not gates:
        gates.append(Gate())
    await gates[0].passed()


gated_branch.fork("first", ["gate", "beside"], join="last")
gated_parent.route(*GATED_PARENT_TRAIL)


# --- a node of ten calls, in the middle of which the process may kill itself ----------------------

DIE_AT = "HOLDFAST_TEST_DIE_AT"
"""In an environment that has this, the process dies inside its call of that number."""

ten_calls = Graph("ten_calls", Trail)
ten_calls_once = Graph("ten_calls_once", Trail)
TEN_CALLS = [f"call{number}" for number in range(TEN)]
_calls = itertools.count(1)


class Called(NamedTuple):
    """A call that reached the world, the key that it brought along, and whose it was."""

    run: str
    name: str
    key: str
    pid: int
    at_ms: int

    @property
    def what(self) -> tuple[str, str]:
        """Which call it was, whoever made it."""
        return self[:2]


def calls(folder: Path) -> list[Called]:
    """Return the calls that all processes made so far, of each process in their order."""
    return [Called(*names, int(pid), int(at)) for *names, pid, at in _written(folder, Called)]


async def call_outside(run: str, name: str, work_seconds: float, idempotency_key: str) -> str:
    _write_down(Called(run, name, idempotency_key, os.getpid(), SystemClock().now_ms()))
    if next(_calls) == int(os.environ.get(DIE_AT, 0)):
        os.kill(os.getpid(), signals.SIGKILL)
    # Not a wait for anything: this is how long the call takes.
    await SystemClock().sleep(work_seconds)
    return name


def _ten_calls(tools: list[Callable[..., Any]]) -> Callable[..., Awaitable[Trail]]:
    async def node(state: Trail, ctx: Context) -> Trail:
        work = state.get("work_seconds", 0)
        named = zip(tools, TEN_CALLS, strict=True)
        return {"trail": [await ctx.call(made, ctx.run_id, name, work) for made, name in named]}

    return node


ten_calls.node(_ten_calls([call_outside] * TEN), name="all")


@workflow
async def ten_calls_workflow(given: Trail, ctx: Context) -> Trail:
    return {**given, **await _ten_calls([call_outside] * TEN)(given, ctx)}


ten_calls_once.node(
    _ten_calls([tool(name=name, at_most_once=True)(call_outside) for name in TEN_CALLS]),
    name="all",
)


# --- a node that asks a model which is paid, alone and through the runs that it starts ------------

paid = Graph("paid", Trail)
TOKENS_A_QUESTION = 20


class PaidModel:
    """Is paid the same for each question, and writes down whenever it is reached."""

    name = "paid"
    price = ModelPrice(input_usd=1, output_usd=1)
    max_tokens = TOKENS_A_QUESTION // 2

    def tokens_max(self, request: Request) -> tuple[int, int]:
        return TOKENS_A_QUESTION - self.max_tokens, self.max_tokens

    async def answer(self, request: Request, emit: Emit | None) -> Answer:
        run, number = request.messages[-1]["content"].split()
        key = request.idempotency_key
        _write_down(Called(run, f"question{number}", key, os.getpid(), SystemClock().now_ms()))
        # Not a wait for anything: this is how long the answer takes.
        await SystemClock().sleep(ANSWER_SECONDS)
        usage = Usage(TOKENS_A_QUESTION - self.max_tokens, self.max_tokens)
        return Answer(text=number, usage=usage, model=self.name)


ANSWER_SECONDS = 0.05
MODELS = {PaidModel.name: PaidModel()}


@paid.node
async def pay(state: Trail, ctx: Context) -> Trail:
    given: Trail = {"questions": state.get("questions", 1)}
    heirs = [await ctx.start(paid, given) for _ in range(state.get("heirs", 0))]
    asked = range(state.get("questions", 1))
    trail = [(await ctx.model(PaidModel.name, f"{ctx.run_id} {n}")).text for n in asked]
    for heir in heirs:
        trail += (await heir.result())["trail"]
    return {"trail": trail}
