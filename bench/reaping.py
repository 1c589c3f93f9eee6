"""How long a run lies whose worker was killed, with none and with 2,000 workers dead before it.

One worker lives all the time. It has reaped the dead ones, and sweeps their lists again: with that
many, and leases this short, as many in each lease as it ever does. A second worker begins a run and
is killed inside its node, right after it renewed its lease. ``python -m bench.reaping ROLE URL`` is
one of the two.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.figures import Figure, ratio, show
from holdfast import Graph, Holdfast
from holdfast.clock import SystemClock, SystemIds
from holdfast.records import worker as rows
from holdfast.records.index_keys import WORKERS
from holdfast.records.keys import worker_key
from holdfast.records.reaping import SWEEPS_MAX
from holdfast.storage import Store
from holdfast.storage import open as open_store
from tests.servers import dynamodb_local

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache"
DEAD = 2_000
ROUNDS = 7
LEASE_SECONDS = 3.0
DAY_MS = 24 * 3600 * 1000
WAIT_SECONDS_MAX = 300
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}

graph = Graph("victim", dict)


@graph.node
async def work(state: Any) -> Any:
    """Take forever where it is to be killed, no time elsewhere."""
    if os.environ.get("BENCH_ROLE") == "victim":
        await asyncio.Event().wait()


def measure() -> list[Figure]:
    """Measure everything, print it, and return what it must reach."""
    CACHE.mkdir(exist_ok=True)
    os.environ |= CREDENTIALS
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="bench-") as folder:
        urls = {
            "none dead": f"sqlite:///{folder}/none.db",
            f"{DEAD:,} dead": f"sqlite:///{folder}/many.db",
        }
        figures += asyncio.run(_measured("SQLite", urls))
    with dynamodb_local.serve() as server:
        at = f"region=us-east-1&endpoint={server.endpoint}"
        urls = {"none dead": f"dynamodb://none?{at}", f"{DEAD:,} dead": f"dynamodb://many?{at}"}
        figures += asyncio.run(_measured("DynamoDB Local", urls))
    return figures


async def _measured(store: str, urls: dict[str, str]) -> list[Figure]:
    none, many = urls
    for url in urls.values():
        async with Holdfast(url) as hf:
            await hf.create()
    await _plant(urls[many])
    told: dict[str, list[dict[str, float]]] = {}
    rounds: list[dict[str, float]] = []
    async with (
        _survivor(urls[none], told.setdefault(none, [])),
        _survivor(urls[many], told.setdefault(many, [])),
    ):
        began = time.perf_counter()
        await _reaped(urls[many])
        seconds = time.perf_counter() - began
        print(f"  {store}: {DEAD:,} dead workers reaped for the first time in {seconds:.1f} s")
        await SystemClock().sleep(2 * LEASE_SECONDS)
        for each in told.values():
            each.clear()
        while len(rounds) < ROUNDS:
            rounds += [{name: await _taken_over(url) for name, url in urls.items()}]
    show(rounds, f"s from the kill to the end, lease {LEASE_SECONDS:g} s ({store})", digits=2)
    for name, leases in told.items():
        for kind in ("read", "write"):
            most = max(lease[kind] for lease in leases)
            mean = sum(lease[kind] for lease in leases) / len(leases)
            print(
                f"  {name}: {kind} units spent on reaping in a lease: {mean:.1f}, most {most:.1f}"
            )
    figures = [
        Figure(f"take-over, {DEAD:,} dead / none ({store})", ratio(rounds, many, none), at_most=1.2)
    ]
    if urls[many].startswith("sqlite"):
        # DynamoDB Local counts nothing for a query that finds nothing; DynamoDB half a unit.
        most = max(lease["read"] for lease in told[many])
        what = f"read units on reaping in a lease / half of {SWEEPS_MAX} sweeps ({store})"
        figures.append(Figure(what, most / (SWEEPS_MAX / 2), at_most=1.2))
    return figures


async def _plant(url: str) -> None:
    """Write the rows of workers that died within the last day; nobody has reaped them."""
    now, ids = SystemClock().now_ms(), SystemIds()
    lease_ms = round(LEASE_SECONDS * 1000)
    async with open_store(url) as store:
        for start in range(0, DEAD, 50):
            writes: list[Awaitable[Any]] = []
            for number in range(start, start + 50):
                until_ms = now - 1000 - number * (DAY_MS // DEAD)
                row = rows.register_write(
                    ids.new(),
                    lease_ms=lease_ms,
                    expires_ms=until_ms,
                    now_ms=until_ms - lease_ms,
                    details={"host": "bench", "pid": number},
                    token=ids.new(),
                )
                writes.append(store.table.write(row))
            await asyncio.gather(*writes)


async def _reaped(url: str) -> None:
    """Return when only the worker that lives has a lease."""
    async with asyncio.timeout(WAIT_SECONDS_MAX), open_store(url) as store:
        while len((await store.table.query(WORKERS, index="GSI1")).items) > 1:
            await SystemClock().sleep(0.2)


async def _taken_over(url: str) -> float:
    """Kill a worker inside a node; return how many seconds later its run has finished."""
    victim = await _process("victim", url)
    assert victim.stdout is not None
    run, worker = (await victim.stdout.readline()).decode().split()
    async with open_store(url) as store:
        await _renewed(store, worker)
    victim.send_signal(signal.SIGKILL)
    began = time.perf_counter()
    await victim.wait()
    async with Holdfast(url) as hf:
        await hf.run(run).result(timeout=WAIT_SECONDS_MAX)
    return time.perf_counter() - began


async def _renewed(store: Store, worker: str) -> None:
    """Return when a worker has renewed its lease: so that all of them have as much left of it."""
    first = await store.table.get(worker_key(worker))
    while await store.table.get(worker_key(worker)) == first:
        await SystemClock().sleep(0.01)


@asynccontextmanager
async def _survivor(url: str, told: list[dict[str, float]]) -> AsyncGenerator[None]:
    """Have a worker that lives, and that tells what it spends on reaping in each lease."""
    process = await _process("survivor", url)
    assert process.stdout is not None
    lines = process.stdout
    await lines.readline()

    async def listen() -> None:
        while line := await lines.readline():
            told.append(json.loads(line))

    listening = asyncio.create_task(listen())
    try:
        yield
    finally:
        process.kill()
        await process.wait()
        await listening


async def _process(role: str, url: str) -> Process:
    environment = {**os.environ, "BENCH_ROLE": role}
    command = (sys.executable, "-m", "bench.reaping", role, url)
    return await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=environment, stdout=PIPE)


async def _survive(url: str) -> None:
    async with Holdfast(url) as hf, hf.worker([graph], lease=LEASE_SECONDS):
        print("lives", flush=True)
        while True:
            hf.meter.reset()
            await SystemClock().sleep(LEASE_SECONDS)
            units = hf.meter.report().by_purpose().get("reaping")
            reads, writes = (0.0, 0.0) if units is None else (units.reads, units.writes)
            print(json.dumps({"read": reads, "write": writes}), flush=True)


async def _fall_victim(url: str) -> None:
    async with Holdfast(url) as hf, hf.worker([graph], lease=LEASE_SECONDS) as worker:
        run = await hf.start(graph)
        print(run.id, worker.id, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run({"survivor": _survive, "victim": _fall_victim}[sys.argv[1]](sys.argv[2]))
