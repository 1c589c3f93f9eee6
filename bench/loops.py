"""Long loops on SQLite: the memory of a worker in one, and how soon a fresh process resumes it.

A turn is two nodes and one record. The long loop takes some minutes; with ``LOOP_TURNS=20000`` in
the environment it is shorter.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from bench.figures import Figure
from bench.memory import peak_mb
from holdfast import Graph, Holdfast, signal
from holdfast.clock import SystemClock

MEMORY = Path("/dev/shm")
FOLDER = MEMORY if MEMORY.is_dir() else Path(__file__).parents[1] / ".cache"
TURNS_SHORT = 1_000
TURNS_LONG = int(os.environ.get("LOOP_TURNS", "1000000"))
RESUMES = 30
SECONDS_MAX = 3600
GROWTH_MB_MAX = 32
"""What the page cache of SQLite and a full garbage collection account for; a record kept would be
hundreds of bytes, a million times."""


def measure() -> list[Figure]:
    # In memory where there is room: a million turns one after the other are a million fsyncs, and
    # what is measured here are reading and memory.
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix="bench-") as folder:
        short, long = (_turns(folder, turns) for turns in (TURNS_SHORT, TURNS_LONG))
    return [
        Figure(
            f"resume after {TURNS_LONG:,} turns / after {TURNS_SHORT:,}",
            long["resume_ms"] / short["resume_ms"],
            at_most=2,
        ),
        Figure(
            f"MB that a worker grew from turn {TURNS_SHORT:,} to {TURNS_LONG:,}",
            long["growth_mb"],
            at_most=GROWTH_MB_MAX,
        ),
    ]


def _turns(folder: str, turns: int) -> dict[str, float]:
    """Run a loop in one process, and resume it in another."""
    ran, resumed = (_told(phase, folder, turns) for phase in ("run", "resume"))
    told = ran | resumed
    print(
        f"  {turns:>9,} turns: {told['turns_a_second']:>6,.0f} a second, "
        f"grew by {told['growth_mb']:.1f} MB, journal {told['journal_mb']:.1f} MB, "
        f"resumed in {told['resume_ms']:.2f} ms (at first {told['first_ms']:.1f}), "
        f"reading {told['read_units']:g} units"
    )
    return told


def _told(phase: str, folder: str, turns: int) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.loops", phase, folder, str(turns)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the loop failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


class Loop:
    """The graph, and what its nodes see of time and memory."""

    def __init__(self, turns: int) -> None:
        self.asking = asyncio.Event()
        self.entered = 0.0
        self.early_mb = 0.0
        self.graph = graph = Graph("loop", dict)

        @graph.node(pausable="no")
        async def look(state: Any) -> Any:
            return {"odd": state["turn"] % 2}

        @graph.node
        async def count(state: Any) -> Any:
            if state["turn"] == TURNS_SHORT - 1:
                self.early_mb = peak_mb()
            return {"turn": state["turn"] + 1}

        @graph.node
        async def ask(state: Any, ctx: Any) -> Any:
            self.entered = time.perf_counter()
            self.asking.set()
            return {"asked": state["asked"] + await ctx.wait(signal("go"))}

        graph.route(look, count)
        graph.choose(count, lambda state: ask if state["turn"] >= turns else look, to=[ask, look])
        graph.choose(ask, lambda state: ask, to=[ask])

    async def paused(self, hf: Holdfast) -> None:
        """Return when the run waits again."""
        await self.asking.wait()
        self.asking.clear()
        while (await hf.run("loop").get()).status != "waiting":
            await SystemClock().sleep(0.002)


async def _run(url: str, turns: int) -> dict[str, float]:
    loop = Loop(turns)
    async with Holdfast(url) as hf, hf.worker([loop.graph]):
        began = time.perf_counter()
        await hf.start(loop.graph, {"turn": 0, "asked": 0}, id="loop")
        await loop.paused(hf)
        seconds = time.perf_counter() - began
        run = await hf.run("loop").get()
    return {
        "turns_a_second": turns / seconds,
        "growth_mb": peak_mb() - loop.early_mb,
        "journal_mb": run.journal_bytes / 2**20,
    }


async def _resume(url: str, turns: int) -> dict[str, float]:
    """Measure from the signal to the node's first line: woken, claimed, read and folded."""
    loop, taken = Loop(turns), list[float]()
    async with Holdfast(url) as hf, hf.worker([loop.graph]):
        hf.meter.reset()
        for number in range(RESUMES):
            began = time.perf_counter()
            await hf.run("loop").signal("go", number)
            await loop.asking.wait()
            taken.append((loop.entered - began) * 1000)
            if number == 0:
                reads = hf.meter.report().by_purpose()["journal"].reads
            # It answers itself, and asks again: that is the pause to wait for.
            loop.asking.clear()
            await loop.paused(hf)
    return {"resume_ms": median(taken), "first_ms": taken[0], "read_units": reads}


def main(phase: str, folder: str, turns: str) -> None:
    url = f"sqlite:///{folder}/{turns}.db"
    work = _run if phase == "run" else _resume
    print(json.dumps(asyncio.run(work(url, int(turns)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
