"""Maps: how throughput grows with workers, and what 100,000 items cost and hold in memory.

``python -m bench.fan_out wait URL SECONDS`` is a worker whose items wait for 50 ms each, ten at a
time. ``python -m bench.fan_out size FOLDER ITEMS`` maps in a process of its own and prints what it
saw. With ``MAP_ITEMS=10000`` in the environment the large map is shorter.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.figures import Figure, ratio, show
from bench.memory import peak_mb
from holdfast import Graph, Holdfast
from holdfast.clock import SystemClock

MEMORY = Path("/dev/shm")
FOLDER = MEMORY if MEMORY.is_dir() else Path(__file__).parents[1] / ".cache"
WAIT_SECONDS = 0.05
WAITING_ITEMS = 2_000
WAITING_CHUNK = 100
BRANCHES = 10
"""How many items are mapped at a time for each worker."""
ROUNDS = 3
SMALL = 10_000
LARGE = int(os.environ.get("MAP_ITEMS", "100000"))
LARGE_CHUNK = 100
SECONDS_MAX = 1800

waiting = Graph("waiting", dict)


@waiting.item
async def wait(index: int, ctx: Any) -> int:
    """Take as long as a quick request."""
    await SystemClock().sleep(WAIT_SECONDS)
    return index


@waiting.node
async def wait_for_all(state: Any, ctx: Any) -> Any:
    """Map with room for two workers."""
    mapped = await ctx.map(
        wait, WAITING_ITEMS, chunk=WAITING_CHUNK, concurrency=state["concurrency"]
    )
    return {"succeeded": mapped.succeeded}


def measure() -> list[Figure]:
    """Measure everything, print it, and return what it must reach."""
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix="bench-") as folder:
        rounds = [asyncio.run(_round(folder, number)) for number in range(ROUNDS)]
        show(rounds, "items a second")
        scale = Figure(
            "items a second, two workers / one", ratio(rounds, "two", "one"), at_least=1.7
        )
        small, large = (_measured_size(folder, items) for items in (SMALL, LARGE))
    return [
        scale,
        Figure(f"write units an item of {LARGE:,}, its SEG# included", large["writes"], at_most=2),
        Figure("blobs a chunk", large["blobs"] / (LARGE / LARGE_CHUNK), at_most=1.1),
        Figure("visits of the node that maps", large["visits"], at_most=9),
        Figure(
            f"peak memory of {LARGE:,} items / of {SMALL:,}",
            large["peak_mb"] / small["peak_mb"],
            at_most=1.5,
        ),
        Figure("share that had ended when the first result was read", large["first"], at_most=0.2),
    ]


# --- workers --------------------------------------------------------------------------------------


async def _round(folder: str, number: int) -> dict[str, float]:
    return {
        name: await _throughput(f"sqlite:///{folder}/{name}-{number}.db", workers)
        for name, workers in (("one", 1), ("two", 2))
    }


async def _throughput(url: str, workers: int) -> float:
    """Return the items a second of so many worker processes, with ten items at a time for each."""
    async with Holdfast(url) as hf:
        await hf.create()
        async with _workers(url, workers):
            began = time.perf_counter()
            run = await hf.start(waiting, {"concurrency": workers * BRANCHES}, id="waiting")
            result: Any = await run.result(timeout=SECONDS_MAX)
            seconds = time.perf_counter() - began
    assert result["succeeded"] == WAITING_ITEMS, result
    return WAITING_ITEMS / seconds


@asynccontextmanager
async def _workers(url: str, count: int) -> AsyncGenerator[None]:
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.fan_out", "wait", url, stdin=PIPE, stdout=PIPE
        )
        for _ in range(count)
    ]
    try:
        for process in processes:
            await _ready(process)
        yield
    finally:
        for process in processes:
            process.kill()
            await process.wait()


async def _ready(process: Process) -> None:
    assert process.stdout is not None
    async with asyncio.timeout(60):
        line = await process.stdout.readline()
    assert line == b"ready\n", line


async def _work(url: str) -> None:
    """Work until this process is killed."""
    async with Holdfast(url) as hf, hf.worker([waiting]):
        print("ready", flush=True)
        await asyncio.Event().wait()


# --- size -----------------------------------------------------------------------------------------


def _measured_size(folder: str, items: int) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.fan_out", "size", folder, str(items)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the map failed:\n{done.stderr[-2000:]}")
    told: dict[str, float] = json.loads(done.stdout)
    print(
        f"  {items:>9,} items: {told['a_second']:>6,.0f} a second, {told['writes']:.3f} write "
        f"and {told['reads']:.3f} read units an item, {told['blobs']:,.0f} blobs, "
        f"at most {told['peak_mb']:.0f} MB, the node ran {told['visits']:.0f} times, "
        f"the first result was read when {told['first']:.1%} had ended"
    )
    return told


class Segmenting:
    """A graph that puts one segment for each item, and counts the visits of the node that maps."""

    def __init__(self, hf: Holdfast, items: int) -> None:
        self.visits = 0
        self.graph = graph = Graph("segmenting", dict)

        @graph.item
        async def segment(index: int, ctx: Any) -> dict[str, int]:
            workflow = ctx.given["workflow"]
            key = f"segments/{index + 1:07}.json"
            await hf.documents.put_segment(workflow, index + 1, s3_key=key)
            return {"characters": index % 4_000}

        @graph.node
        async def segment_all(state: Any, ctx: Any) -> Any:
            self.visits += 1
            given = {"workflow": state["workflow"]}
            mapped = await ctx.map(
                segment, items, chunk=LARGE_CHUNK, concurrency=4 * BRANCHES, given=given
            )
            return {"succeeded": mapped.succeeded}


async def _size(folder: str, items: int) -> dict[str, float]:
    async with Holdfast(f"sqlite:///{folder}/{items}.db") as hf:
        await hf.create()
        project = await hf.documents.projects.create("bench", id="bench")
        document = await hf.documents.add(
            project.id,
            file_uri="s3://bench/large.pdf",
            file_name="large.pdf",
            file_type="application/pdf",
        )
        workflow = await hf.documents.begin(document.id)
        await hf.documents.set_status(workflow.id, "in_progress", total_segments=items)
        segmenting = Segmenting(hf, items)
        hf.meter.reset()
        began = time.perf_counter()
        async with hf.worker([segmenting.graph]):
            run = await hf.start(segmenting.graph, {"workflow": workflow.id}, id="size")
            first = await _first_result(run, items)
            result: Any = await run.result(timeout=SECONDS_MAX)
        seconds = time.perf_counter() - began
        units = hf.meter.report().units
    assert result["succeeded"] == items, result
    return {
        "a_second": items / seconds,
        "writes": (units.write + units.index_write) / items,
        "reads": (units.read + units.index_read) / items,
        "blobs": units.blob_puts,
        "visits": segmenting.visits,
        "first": first,
        "peak_mb": peak_mb(),
    }


async def _first_result(run: Any, items: int) -> float:
    """Return the share of items that had ended when the first result could be read."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            for progress in await run.maps():
                async for entry in run.map(progress.map).items(limit=1):
                    assert entry.failure is None, entry
                    now = await run.map(progress.map).progress()
                    return (now.succeeded + now.failed) / items
            await SystemClock().sleep(0.02)


def main(role: str, *args: str) -> None:
    """Carry out one role of the benchmark."""
    if role == "wait":
        asyncio.run(_work(*args))
    else:
        folder, items = args
        print(json.dumps(asyncio.run(_size(folder, int(items)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
