"""What a flood of the largest signals to one run does to the only worker, and to other tenants.

The worker, the sender and whoever measures are processes of their own.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any, TypedDict

from bench.figures import Figure
from bench.memory import peak_mb
from holdfast import Graph, Holdfast, PayloadLimits, signal
from holdfast.clock import SystemClock
from holdfast.errors import InboxFull

ROOT = Path(__file__).parents[1]
VICTIM = "victim"
FLOOD_TENANT = "flood"
OTHER_TENANT = "other"
SENDERS = 32
RUNS = 40
LEASE_SECONDS = 10.0
MB_MAX = 200
DELAY_MAX = 1.0
SIGNAL_BYTES = PayloadLimits().signal_bytes_max
# The first has as many bytes as a signal may have, and compresses to almost nothing; the second has
# as many elements, and takes as much memory as an allowed signal can.
SHAPES: dict[str, Any] = {
    "text": "a" * (SIGNAL_BYTES - 16),
    "lists": [[["ab", "cd"], 300, "ef", "gh", "ij"]] * (SIGNAL_BYTES // 64 - 1),
}


class State(TypedDict, total=False):
    """What the measured runs carry along."""

    taken: int


victim = Graph("victim", State)
short = Graph("short", State)


@victim.node
async def take(state: State, ctx: Any) -> State:
    """Take one signal of those that come; the others are never awaited."""
    await ctx.wait(signal("awaited"))
    return {"taken": state.get("taken", 0) + 1}


victim.route(take, take)


@short.node
async def work(state: State) -> None:
    """Do nothing."""


def measure() -> list[Figure]:
    """Measure everything, print it, and return what it must reach."""
    alone, _ = asyncio.run(_measured(None))
    _show("no flood", alone)
    figures: list[Figure] = []
    for shape in SHAPES:
        taken, report = asyncio.run(_measured(shape))
        _show(f"a flood of {shape}", taken)
        print(f"  {report}")
        figures += [
            Figure(f"worker's MB, most, flood of {shape}", report["peak_mb"], at_most=MB_MAX),
            Figure(f"leases lost, flood of {shape}", report["lost"], at_most=0),
            Figure(f"signals accepted, flood of {shape}", report["accepted"], at_least=20),
            Figure(
                f"delay in s, most, flood of {shape}",
                max(taken) - median(alone),
                at_most=DELAY_MAX,
            ),
        ]
    return figures


async def _measured(shape: str | None) -> tuple[list[float], dict[str, Any]]:
    """Return how many seconds each run of another tenant took, and what came of the flood."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        url = f"sqlite:///{folder}/flood.db"
        async with Holdfast(url, tenant=OTHER_TENANT) as hf:
            await hf.start(victim, id=VICTIM, tenant=FLOOD_TENANT)
            report: dict[str, Any] = {}
            async with _beside(report, "work", url):
                if shape is None:
                    return [await _seconds(hf) for _ in range(RUNS)], report
                async with _beside(report, "flood", url, shape):
                    taken = [await _seconds(hf) for _ in range(RUNS)]
            return taken, report


async def _seconds(hf: Holdfast) -> float:
    began_ms = SystemClock().now_ms()
    run = await hf.start(short)
    await run.result()
    finished = (await run.history()).entries[-1]
    return finished.at.timestamp() - began_ms / 1000


@asynccontextmanager
async def _beside(report: dict[str, Any], *arguments: str) -> AsyncIterator[None]:
    """Do something in a process of its own meanwhile; take in what that reports."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "bench.flood", *arguments),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    await process.stdout.readline()
    yield
    out, _ = await process.communicate(b"")  # its input ends, and so does it
    report |= json.loads(out)


async def _end_of_input() -> None:
    await asyncio.to_thread(sys.stdin.read)


async def _work(url: str) -> dict[str, Any]:
    """Be the only worker; the lease is short, so that it is lost if anything blocks for long."""
    async with (
        Holdfast(url) as hf,
        hf.worker([victim, short], lease=LEASE_SECONDS, drain=1) as worker,
    ):
        names = {worker.id}
        print("ready", flush=True)
        ended = asyncio.ensure_future(_end_of_input())
        while not ended.done():
            await asyncio.wait({ended}, timeout=0.2)
            names.add(worker.id)
        return {"peak_mb": peak_mb(), "lost": len(names) - 1}


async def _flood(url: str, shape: str) -> dict[str, Any]:
    """Send the largest signals that there may be to one run, as fast as they are taken."""
    sent = {"accepted": 0, "refused": 0}
    ended = asyncio.ensure_future(_end_of_input())
    async with Holdfast(url, tenant=FLOOD_TENANT) as hf:

        async def send(name: str) -> None:
            while not ended.done():
                try:
                    await hf.run(VICTIM).signal(name, SHAPES[shape])
                    sent["accepted"] += 1
                except InboxFull:
                    sent["refused"] += 1
                    await SystemClock().sleep(0.05)

        senders = [
            asyncio.ensure_future(send("noise" if number % 4 == 0 else "awaited"))
            for number in range(SENDERS)
        ]
        print("ready", flush=True)
        await ended
        await asyncio.gather(*senders)
    return {**sent}


def _show(what: str, taken: list[float]) -> None:
    print(f"  {what:<48} p50 {median(taken):6.3f} s   max {max(taken):6.3f} s   of {len(taken)}")


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    with suppress(KeyboardInterrupt):
        print(json.dumps(asyncio.run({"work": _work, "flood": _flood}[role](*arguments))))
