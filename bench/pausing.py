"""How fast a run pauses, and how fast a signal brings it back: in process and across processes."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import Any, TypedDict

from bench.figures import Figure
from holdfast import Context, Graph, Holdfast, RunHandle, signal
from holdfast.clock import SystemClock
from holdfast.engine.execution.run_exit import RunExit
from holdfast.records.settings import SHARDS
from holdfast.storage import PRICES

ROOT = Path(__file__).parents[1]
RUNS = 1_000
SLOTS = 1_200  # one tenant gets seven eighths of them
STAGGER_SECONDS = 3.0
SIGNALS = 200
SIGNALS_ACROSS = 40
COMMITS = 200
POLL_SQLITE_MS = 250
HOURS_A_MONTH = 730


class State(TypedDict, total=False):
    """What the measured runs carry along."""

    after: float
    text: str
    approved: bool


graph = Graph("pausing", State)


@graph.node
async def work(state: State) -> State:
    """Take some time, a different one for each run, so that they do not all pause at once."""
    await SystemClock().sleep(state.get("after", 0))
    return {"text": "x" * 1_000}


@graph.node
async def ask(state: State, ctx: Context) -> State:
    """Wait for somebody."""
    return {"approved": await ctx.wait(signal("approved"))}


@graph.node
async def finish(state: State) -> None:
    """Be the one node after the wait."""


graph.route(work, ask, finish)


def measure() -> list[Figure]:
    """Measure everything, print it, and return what it must reach."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        _show_commits(f"{folder}/commits.db")
        figures = asyncio.run(_in_process(f"sqlite:///{folder}/pausing.db"))
        figures += asyncio.run(_across(f"sqlite:///{folder}/across.db"))
    _show_polling()
    return figures


# --- in process -----------------------------------------------------------------------------------


async def _in_process(url: str) -> list[Figure]:
    random = Random(7)
    async with Holdfast(url) as hf, hf.worker([graph], concurrency=SLOTS):
        few = [await _signalled(hf) for _ in range(SIGNALS)]
        with _timed_pauses() as pauses:
            for _ in range(RUNS):
                await hf.start(graph, {"after": random.random() * STAGGER_SECONDS})
            while len(pauses) < RUNS:
                await SystemClock().sleep(0.05)
            taken = sorted(pauses)
        many = [await _signalled(hf) for _ in range(SIGNALS)]
    p99 = taken[int(len(taken) * 0.99)]
    _show(f"pause, {RUNS} runs in flight", taken)
    _show("signal to finished, nothing else", few)
    _show(f"signal to finished, {RUNS} paused", many)
    return [
        Figure("pause, p99 in ms, 1,000 runs in flight", p99, at_most=50),
        Figure("signal to finished, p50 in ms, in process", median(few), at_most=3),
        Figure("signal to finished, p50 in ms, 1,000 paused", median(many), at_most=3),
    ]


@contextmanager
def _timed_pauses() -> Iterator[list[float]]:
    """Time every pause, from the wait that is reached to the row that says so."""
    pause = RunExit.pause
    taken: list[float] = []

    async def timed(leaving: RunExit, waits: Any) -> None:
        began = perf_counter()
        await pause(leaving, waits)
        taken.append((perf_counter() - began) * 1000)

    RunExit.pause = timed
    try:
        yield taken
    finally:
        RunExit.pause = pause


async def _signalled(hf: Holdfast) -> float:
    """Let a run pause, signal it, and return how many milliseconds it took to finish."""
    run = await hf.start(graph, {})
    await _until(run, "waiting")
    began = perf_counter()
    await run.signal("approved", True)
    await run.result()
    return (perf_counter() - began) * 1000


async def _until(run: RunHandle, status: str) -> None:
    while (await run.get()).status != status:
        await SystemClock().sleep(0.01)


# --- across processes -----------------------------------------------------------------------------


async def _across(url: str) -> list[Figure]:
    async with Holdfast(url) as hf, _worker(url):
        delays: list[float] = []
        for _ in range(SIGNALS_ACROSS):
            run = await hf.start(graph, {})
            await _until(run, "waiting")
            await run.signal("approved", True)
            told_ms = SystemClock().now_ms()
            await run.result()
            finished = (await run.history()).entries[-1]
            delays.append(finished.at.timestamp() * 1000 - told_ms)
    longest = max(delays)
    _show("signal to finished, two processes", delays)
    return [
        Figure("signal to finished, most in ms, two processes", longest, at_most=POLL_SQLITE_MS)
    ]


@asynccontextmanager
async def _worker(url: str) -> AsyncIterator[None]:
    """Run a worker as a process of its own."""
    command = [sys.executable, "-m", "holdfast", "worker", "bench.pausing:graph", "--url", url]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stderr=subprocess.PIPE)
    assert process.stderr is not None
    await process.stderr.readline()
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


def _show_commits(path: str) -> None:
    """Show what one commit costs here: from a signal to the end there are four in a row."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE items (body BLOB)")
    taken: list[float] = []
    for _ in range(COMMITS):
        began = perf_counter()
        connection.execute("INSERT INTO items VALUES (zeroblob(1000))")
        taken.append((perf_counter() - began) * 1000)
    connection.close()
    _show("one durable commit of SQLite alone", taken)


def _show(what: str, taken: list[float]) -> None:
    ordered = sorted(taken)
    p99 = ordered[int(len(ordered) * 0.99)]
    print(f"  {what:<36} p50 {median(taken):7.2f} ms   p99 {p99:7.2f} ms")


def _show_polling() -> None:
    poll = 0.9 * 0.9  # the worker's pause on DynamoDB, less its mean jitter
    units = SHARDS * 0.5 / poll * 3600 * HOURS_A_MONTH
    dollars = units * PRICES.read_units_million_usd / 1_000_000
    print(f"  an idle worker on DynamoDB polls one graph for ${dollars:.2f} a month")
