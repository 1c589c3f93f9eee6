"""How long one tenant's runs take while another one has flooded the only worker with its own.

The worker is a process of its own, so that every run has to be found in the due index.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import nan
from pathlib import Path
from statistics import median
from typing import TypedDict

from bench.figures import Figure
from holdfast import Graph, Holdfast, RunHandle
from holdfast.clock import SystemClock
from holdfast.records.index_keys import shard_of_run
from holdfast.records.keys import RunKey
from holdfast.records.settings import SHARDS

ROOT = Path(__file__).parents[1]
FLOOD = 10_000
FLOOD_TENANT = "flood"
STARTS_AT_ONCE = 200
RUNS = 20
SHORT_SECONDS = 0.005
LONG_SECONDS = 1.0
DELAY_MAX = 1.0


class State(TypedDict, total=False):
    """What the measured runs carry along."""

    seconds: float


graph = Graph("fairness", State)


@graph.node
async def work(state: State) -> None:
    """Take some time."""
    await SystemClock().sleep(state["seconds"])


def measure() -> list[Figure]:
    """Measure everything, print it, and return what it must reach."""
    apart, beside = _tenants()
    alone = asyncio.run(_measured(apart, flood_seconds=None, runs=RUNS))
    short = asyncio.run(_measured(apart, flood_seconds=SHORT_SECONDS, runs=RUNS))
    long = asyncio.run(_measured(apart, flood_seconds=LONG_SECONDS, runs=RUNS))
    shared = asyncio.run(_measured(beside, flood_seconds=SHORT_SECONDS, runs=RUNS))
    amid = asyncio.run(_amid(beside))
    _show("no flood", alone)
    _show(f"{FLOOD:,} runs of {SHORT_SECONDS * 1000:g} ms before it, no shard shared", short)
    _show(f"{FLOOD:,} runs of {LONG_SECONDS:g} s before it, no shard shared", long)
    _show(f"{FLOOD:,} runs of {SHORT_SECONDS * 1000:g} ms before it, both shards shared", shared)
    # What the rules do not help: it waits until what stands before it is done.
    _show("one run, half of the same flood before it and half after, shards shared", amid)
    delays = {"short nodes": short, "long nodes": long, "short nodes, in its shards": shared}
    return [
        Figure(f"delay in s, most, flood of {what}", _delay(taken, alone), at_most=DELAY_MAX)
        for what, taken in delays.items()
    ]


def _tenants() -> tuple[str, str]:
    """Return a tenant that shares no shard with the flood's, and one that shares both."""
    flooded = _shards(FLOOD_TENANT)
    names = [f"tenant-{number}" for number in range(1_000)]
    apart = next(name for name in names if not _shards(name) & flooded)
    return apart, next(name for name in names if _shards(name) == flooded)


def _shards(tenant: str) -> set[int]:
    return {shard_of_run(RunKey(tenant, f"{number}"), SHARDS) for number in range(32)}


async def _measured(tenant: str, *, flood_seconds: float | None, runs: int) -> list[float]:
    """Return how many seconds each of the tenant's runs took, or nothing if the flood is over."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        url = f"sqlite:///{folder}/fairness.db"
        async with Holdfast(url, tenant=tenant) as hf:
            if flood_seconds is not None:
                await _flood(hf, flood_seconds, range(FLOOD))
            async with _worker(url):
                taken = [await _seconds(hf) for _ in range(runs)]
                over = flood_seconds is not None and await _is_over(hf)
    return [] if over else taken


async def _amid(tenant: str) -> list[float]:
    """Return how many seconds a run took that came in the middle of a flood, in its shards."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        url = f"sqlite:///{folder}/fairness.db"
        async with Holdfast(url, tenant=tenant) as hf:
            await _flood(hf, SHORT_SECONDS, range(FLOOD // 2))
            run = await hf.start(graph, {"seconds": SHORT_SECONDS})
            await _flood(hf, SHORT_SECONDS, range(FLOOD // 2, FLOOD))
            began_ms = SystemClock().now_ms()
            async with _worker(url):
                return [await _until_finished(run, began_ms)]


async def _flood(hf: Holdfast, seconds: float, numbers: range) -> None:
    for start in range(numbers.start, numbers.stop, STARTS_AT_ONCE):
        await asyncio.gather(
            *(
                hf.start(graph, {"seconds": seconds}, id=f"{number}", tenant=FLOOD_TENANT)
                for number in range(start, start + STARTS_AT_ONCE)
            )
        )


async def _is_over(hf: Holdfast) -> bool:
    last = await hf.run(f"{FLOOD - 1}", tenant=FLOOD_TENANT).get()
    return last.status == "finished"


async def _seconds(hf: Holdfast) -> float:
    started_ms = SystemClock().now_ms()
    return await _until_finished(await hf.start(graph, {"seconds": SHORT_SECONDS}), started_ms)


async def _until_finished(run: RunHandle, since_ms: int) -> float:
    await run.result()
    finished = (await run.history()).entries[-1]
    return finished.at.timestamp() - since_ms / 1000


@asynccontextmanager
async def _worker(url: str) -> AsyncIterator[None]:
    """Run a worker as a process of its own."""
    command = [sys.executable, "-m", "holdfast", "worker", "bench.fairness:graph", "--url", url]
    process = await asyncio.create_subprocess_exec(
        *command, "--drain", "0s", cwd=ROOT, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    await process.stderr.readline()
    try:
        yield
    finally:
        process.kill()  # what is left of the flood is nobody's any more
        await process.wait()


def _delay(taken: list[float], alone: list[float]) -> float:
    return max(taken) - median(alone) if taken else nan


def _show(what: str, taken: list[float]) -> None:
    if not taken:
        print(f"  {what:<72} the flood was over too soon")
        return
    print(f"  {what:<72} p50 {median(taken):6.3f} s   max {max(taken):6.3f} s   of {len(taken)}")
