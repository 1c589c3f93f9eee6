"""SIGSTOP of a worker until others have taken over, then SIGCONT: it harms nothing, and goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from asyncio.subprocess import Process
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.storage import Store
from holdfast.storage import open as open_store
from tests.crash.flows import GATED_TRAIL, effects, gated
from tests.crash.journals import (
    Record,
    check_history,
    fences_of,
    journal_of,
    worker_in,
    workers_of,
)
from tests.crash.processes import ended, until, working

RUNS = 4
LEASE_SECONDS = 2.0
DEADLINE_SECONDS = 90


@pytest.mark.parametrize("stopped_clock", [False, True], ids=["clock goes on", "clock stops"])
async def test_a_worker_that_was_stopped_beyond_its_lease(
    tmp_path: Path, folder: Path, stopped_clock: bool
) -> None:
    """With a clock that goes on it drops what it held; with one that stops, it meets the fences."""
    file = tmp_path / "runs.db"
    url = f"sqlite:///{file}"
    runs, later = ([f"{kind}-{number}" for number in range(RUNS)] for kind in ("run", "later"))
    options = {"concurrency": RUNS, "lease": LEASE_SECONDS, "poll": 0.05}
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        Holdfast(url) as client,
        open_store(url) as store,
        working(url, "gated", stopped_clock=stopped_clock, **options) as first,
    ):
        for run in runs:
            await client.start(gated, {}, id=run)
        await until(lambda: at_the_gate(folder, first) == set(runs), first)
        stop_between_writes(first, file)
        (old,) = await workers_of(store, first.pid)
        async with working(url, "gated", **options) as second:
            await until(lambda: at_the_gate(folder, second) == set(runs), first, second)
            before = await journals_of(store, runs)
            # The first wakes up with its gate open: everything that it held wants to go on.
            await open_gate(first)
            first.send_signal(signal.SIGCONT)
            await until(lambda: has_new_name(store, first, old), first, second)
            assert await journals_of(store, runs) == before
            # The second is full, so further runs are the first's.
            for run in later:
                await client.start(gated, {}, id=run)
            for run in later:
                assert await client.run(run).result() == {"trail": GATED_TRAIL}
            assert await journals_of(store, runs) == before
            await open_gate(second)
            for run in runs:
                assert await client.run(run).result() == {"trail": GATED_TRAIL}
            second.terminate()
            assert (await ended(second))[0] == 0
        first.terminate()
        assert (await ended(first))[0] == 0
        for journal in (await journals_of(store, runs)).values():
            check_history(journal)
            assert len(fences_of(journal)) == 1
    done = Counter((effect.run, effect.node, effect.pid) for effect in effects(folder))
    expected = {(run, node, second.pid): 1 for run in runs for node in GATED_TRAIL[1:]}
    # Past its lease a worker performs nothing, as far as it knows.
    performed = GATED_TRAIL[: 3 if stopped_clock else 2]
    expected |= {(run, node, first.pid): 1 for run in runs for node in performed}
    expected |= {(run, node, first.pid): 1 for run in later for node in GATED_TRAIL}
    assert done == expected


def at_the_gate(folder: Path, process: Process) -> set[str]:
    """Return the runs that stand in front of the gate of a process."""
    return {e.run for e in effects(folder) if e.node == "gate" and e.pid == process.pid}


def stop_between_writes(process: Process, file: Path) -> None:
    """Stop a process, but not while it holds the file's lock: nobody could write any more."""
    with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as connection:
        while True:
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                process.send_signal(signal.SIGCONT)
            else:
                connection.execute("ROLLBACK")
                return


async def open_gate(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    await process.stdin.drain()


async def has_new_name(store: Store, process: Process, old: dict[str, Any]) -> bool:
    """Return whether the process is another worker by now."""
    newest = (await workers_of(store, process.pid))[-1]
    return worker_in(newest) != worker_in(old)


async def journals_of(store: Store, runs: list[str]) -> dict[str, list[Record]]:
    return {run: await journal_of(store, run) for run in runs}
