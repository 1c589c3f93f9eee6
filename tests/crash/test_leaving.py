"""SIGTERM while nodes of a minute are under way: the worker is gone soon, and another goes on."""

from __future__ import annotations

import asyncio
import time
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Graph, Holdfast
from holdfast.clock import SystemClock
from holdfast.storage import open as open_store
from tests.crash import flows
from tests.crash.flows import LET_GO, LONG_TRAIL, effects
from tests.crash.journals import check_history, fences_of, head_of, journal_of, workers_of
from tests.crash.processes import ended, running, until, working

RUNS = 6
DRAIN_SECONDS = 1
FEW_SECONDS = 10
"""What a busy machine may add to the drain; a node would stay for a minute."""
DEADLINE_SECONDS = 90
# No lease lapses in this test: what is gone on with was released.
LEASE_SECONDS = 600

Started = Callable[[str, str], AbstractAsyncContextManager[Process]]


@asynccontextmanager
async def as_a_command(url: str, graph: str) -> AsyncIterator[Process]:
    options = {
        "--url": url,
        "--concurrency": RUNS,
        "--lease": f"{LEASE_SECONDS}s",
        "--drain": f"{DRAIN_SECONDS}s",
        "--poll": "50ms",
    }
    given = [str(part) for option in options.items() for part in option]
    target = f"tests.crash.flows:{graph}"
    async with running("-m", "holdfast", "worker", target, *given) as process:
        yield process


def as_a_script(url: str, graph: str) -> AbstractAsyncContextManager[Process]:
    options: dict[str, Any] = {
        "concurrency": RUNS,
        "lease": LEASE_SECONDS,
        "drain": DRAIN_SECONDS,
        "poll": 0.05,
    }
    return working(url, graph, **options)


@pytest.mark.parametrize("graph", [flows.asleep, flows.threaded], ids=lambda graph: graph.name)
@pytest.mark.parametrize("started", [as_a_command, as_a_script], ids=["command", "serve"])
async def test_a_worker_is_gone_in_time_and_another_goes_on(
    tmp_path: Path, folder: Path, graph: Graph, started: Started
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    runs = [f"run-{number}" for number in range(RUNS)]
    async with asyncio.timeout(DEADLINE_SECONDS), Holdfast(url) as client, open_store(url) as store:
        for run in runs:
            await client.start(graph, {}, id=run)
        async with started(url, graph.name) as first:
            await until(lambda: staying(folder) == set(runs), first)
            began = time.monotonic()
            first.terminate()
            async with asyncio.timeout(DRAIN_SECONDS + FEW_SECONDS):
                code, _ = await ended(first)
            took = time.monotonic() - began
            print(f"\nSIGTERM, {graph.name}: gone after {took:.2f} s, drain {DRAIN_SECONDS} s")
            assert code == 0
            assert took >= DRAIN_SECONDS
        assert await workers_of(store, first.pid) == []
        now = SystemClock().now_ms()
        for run in runs:
            head = await head_of(store, run)
            assert (head["status"], head["reason"]) == ("running", "draining")
            assert head.keys().isdisjoint({"owner", "torn"})
            assert head["GSI1PK"].startswith(f"DUE#{graph.name}#")
            assert int(head["GSI1SK"].partition("#")[0]) <= now
        async with working(url, graph.name, env={LET_GO: "1"}, lease=LEASE_SECONDS):
            for run in runs:
                assert await client.run(run).result() == {"trail": LONG_TRAIL}
                journal = await journal_of(store, run)
                check_history(journal)
                assert fences_of(journal) == []  # it was let go of, not taken away
    done = Counter((effect.run, effect.node) for effect in effects(folder))
    times = {"before": 1, "stays": 2, "after": 1}
    assert done == {(run, node): times[node] for run in runs for node in LONG_TRAIL}


def staying(folder: Path) -> set[str]:
    """Return the runs that have come to the node that takes a minute."""
    return {effect.run for effect in effects(folder) if effect.node == "stays"}
