"""Ten processes share a limit of 100 calls a second; the callee, a process of its own, times them.

Three of the ten are killed in the middle, with slots in their hands. ``python -m bench.quota``
with a role is one of the processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import pairwise
from math import nan
from pathlib import Path
from statistics import quantiles
from typing import Any

from bench.figures import Figure
from holdfast.clock import SystemClock, SystemIds
from holdfast.engine.effects.quotas import PermitDelay, QuotaLimiter
from holdfast.engine.kernel.kernel import Kernel
from holdfast.model.quota import Quota
from holdfast.records.quota import level_of, quota_item_key
from holdfast.storage import Store
from holdfast.storage import open as open_store

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache"
TENANT = "bench"
LIMIT = 100
QUOTA = Quota("callee", requests=LIMIT, per=1, concurrency=LIMIT)
WORKERS = 10
KILLED = 3
CALLERS = 30
"""So many in each process want to call, all the time."""
CALL_SECONDS = 0.2
LEASE_SECONDS = 3.0
SPREAD_SECONDS = 3.0
"""Callers begin one by one, lest all of one process stand in the line together."""
SECONDS = 15.0


def measure() -> list[Figure]:
    """Measure everything, print it, and return what it must reach."""
    CACHE.mkdir(exist_ok=True)
    print(f"  load before: {os.getloadavg()[0]:.1f}, on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="bench-") as folder:
        outcome = asyncio.run(_measured(f"sqlite:///{folder}/quota.db"))
    arrivals, began, ended = outcome["arrivals"], outcome["began"], outcome["ended"]
    during = [at for at in arrivals if began <= at < ended]
    used = len(during) / (ended - began) / LIMIT
    most = most_in_a_window(arrivals, 1.0)
    gaps = [after - before for before, after in pairwise(during)]
    said = outcome["said"]
    admitted = _each(said, "admitted")
    print(
        f"  {len(during)} calls in {ended - began:.1f} s by {WORKERS} processes, {KILLED} of which "
        f"were killed after half of it\n"
        f"  most in any window of a second: {most}; used: {used:.1%} of {LIMIT} a second\n"
        f"  between two arrivals: p50 {quantiles(gaps, n=100)[49] * 1000:.1f} ms, "
        f"p99 {quantiles(gaps, n=100)[98] * 1000:.1f} ms\n"
        f"  writes an admission, told to come back and contention included: "
        f"{_each(said, 'writes') / admitted:.2f}; "
        f"told to come back {_each(said, 'told') / admitted:.2f} times\n"
        f"  too late for their moment: {_each(said, 'late') / admitted:.1%}\n"
        f"  slots that the dead held: {outcome['dead hold']}; still held after their lease of "
        f"{LEASE_SECONDS:g} s, or by those who left: {outcome['leaked']}"
    )
    leaked = outcome["leaked"] if outcome["dead hold"] else nan
    return [
        Figure("most calls in any window of a second / the limit", most / LIMIT, at_most=1.0),
        Figure("calls / the limit", used, at_least=0.9),
        Figure("slots that were not free after the lease of the dead", leaked, at_most=0),
    ]


def _each(said: list[dict[str, int]], what: str) -> int:
    return sum(one.get(what, 0) for one in said)


def most_in_a_window(arrivals: list[float], seconds: float) -> int:
    """Return how many arrivals the fullest window of that length has; its end is not in it."""
    most = first = 0
    arrivals = sorted(arrivals)
    for last, at in enumerate(arrivals):
        while arrivals[first] <= at - seconds:
            first += 1
        most = max(most, last - first + 1)
    return most


async def _measured(url: str) -> dict[str, Any]:
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(url))
        callee = await stack.enter_async_context(_process("callee"))
        port = await _line(callee)
        workers = [
            await stack.enter_async_context(_process("worker", url, port)) for _ in range(WORKERS)
        ]
        for worker in workers:
            await _line(worker)
        for worker in workers:
            _go_on(worker)
        await clock.sleep(1.5 * SPREAD_SECONDS)
        began = time.monotonic()
        await clock.sleep(SECONDS / 2)
        dead, living = workers[:KILLED], workers[KILLED:]
        for worker in dead:
            worker.kill()
        held = await _slots(store, clock)
        # By then whoever lives has given back what it held.
        await clock.sleep(LEASE_SECONDS / 2)
        dead_hold = held & await _slots(store, clock)
        await clock.sleep(LEASE_SECONDS)
        leaked = dead_hold & await _slots(store, clock)
        await clock.sleep(SECONDS / 2 - 1.5 * LEASE_SECONDS)
        ended = time.monotonic()
        for worker in living:
            _go_on(worker)
        said = [json.loads(await _line(worker)) for worker in living]
        left = await _slots(store, clock)
        _go_on(callee)
        arrivals = json.loads(await _line(callee))
    return {
        "arrivals": arrivals,
        "began": began,
        "ended": ended,
        "said": said,
        "dead hold": len(dead_hold),
        "leaked": len(leaked | left),
    }


async def _slots(store: Store, clock: SystemClock) -> set[str]:
    level = level_of(await store.table.get(quota_item_key(QUOTA, TENANT)))
    return {token for token, slot in level.permits.items() if slot.expires_ms > clock.now_ms()}


@asynccontextmanager
async def _process(*arguments: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "bench.quota", *arguments),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        limit=2**24,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def _line(process: Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


def _go_on(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")


# --- the processes --------------------------------------------------------------------------------


class _Callee(asyncio.Protocol):
    """Notes when each call arrives, by its own clock; a call is one byte."""

    def __init__(self, arrivals: list[float]) -> None:
        self._arrivals = arrivals

    def data_received(self, data: bytes) -> None:
        at = time.monotonic()
        self._arrivals += [at] * len(data)


async def callee() -> None:
    """Say the port, take calls until told to stop, and say when they came."""
    arrivals: list[float] = []
    server = await asyncio.get_running_loop().create_server(
        lambda: _Callee(arrivals), "127.0.0.1", 0
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    server.close()
    print(json.dumps(arrivals), flush=True)


async def worker(url: str, port: int) -> None:
    """Call as often as the quota lets it, until told to stop; say what that took."""
    async with open_store(url) as store:
        clock = SystemClock()
        desk = QuotaLimiter(Kernel(store, clock, SystemIds()), lease_seconds=LEASE_SECONDS)
        _, callee = await asyncio.open_connection("127.0.0.1", port)
        stopped = asyncio.Event()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        calling = [asyncio.create_task(_call(desk, clock, callee, stopped)) for _ in range(CALLERS)]
        await asyncio.to_thread(sys.stdin.readline)
        stopped.set()
        await asyncio.gather(*calling)
        await desk.close()
        callee.close()
        writes = sum(row.calls for row in store.meter.report().rows)
        print(json.dumps({**desk.counts, "writes": writes}), flush=True)


async def _call(
    desk: QuotaLimiter,
    clock: SystemClock,
    callee: asyncio.StreamWriter,
    stopped: asyncio.Event,
) -> None:
    told_ms: int | None = None
    await clock.sleep(SPREAD_SECONDS * SystemIds().random())
    while not stopped.is_set():
        answer = await desk.acquire(QUOTA, TENANT, retry_at_ms=told_ms)
        if isinstance(answer, PermitDelay):
            told_ms = answer.retry_at_ms
            with suppress(TimeoutError):
                seconds = (told_ms - clock.now_ms()) / 1000
                await asyncio.wait_for(stopped.wait(), max(seconds, 0))
            continue
        told_ms = None
        async with answer:
            callee.write(b".")
            await clock.sleep(CALL_SECONDS)


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    asyncio.run(callee() if role == "callee" else worker(rest[0], int(rest[1])))
