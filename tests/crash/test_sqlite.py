"""Two processes on one file, one of them killed with -9: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from pathlib import Path

from holdfast.storage.layout import Key
from holdfast.storage.open import open as open_store
from holdfast.storage.table import Table
from tests.crash.hammer import IN_FLIGHT

ACKNOWLEDGED_BEFORE_THE_KILL = 600
ACKNOWLEDGED_AFTER_THE_KILL = 600
ROOT = Path(__file__).parents[2]


async def started(url: str, name: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.crash.hammer",
        url,
        name,
        cwd=ROOT,
        stdin=PIPE,
        stdout=PIPE,
    )


async def read_lines(process: Process, count: int) -> list[str]:
    assert process.stdout is not None
    lines = [(await process.stdout.readline()).decode() for _ in range(count)]
    assert all(line.endswith("\n") for line in lines), "the process ended early"
    return [line.strip() for line in lines]


async def rest_of(process: Process) -> list[str]:
    """Return what was still in the pipe; a line that was cut by the kill was not said."""
    assert process.stdout is not None
    text = (await process.stdout.read()).decode()
    return [line.strip() for line in text.splitlines(keepends=True) if line.endswith("\n")]


async def whole_pairs(table: Table, name: str) -> set[int]:
    """Return the numbers of the pairs that stand; fail if one stands by half."""
    halves = [item async for item in table.query_all(f"pair-{name}")]
    first, second = halves[0::2], halves[1::2]
    assert [half["SK"][:-1] for half in first] == [half["SK"][:-1] for half in second]
    assert [half["mark"] for half in first] == [half["mark"] for half in second]
    return {int(half["SK"][:6]) for half in first}


async def test_kill_9_of_one_of_two_processes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/crash.db"
    async with asyncio.timeout(120):
        victim = await started(url, "victim")
        survivor = await started(url, "survivor")
        said = {"victim": await read_lines(victim, ACKNOWLEDGED_BEFORE_THE_KILL)}
        async with open_store(url) as store:
            # Seen from outside while both are writing: never half a pair.
            for name in ("victim", "survivor"):
                await whole_pairs(store.table, name)
        os.kill(victim.pid, signal.SIGKILL)
        said["victim"] += await rest_of(victim)
        assert await victim.wait() == -signal.SIGKILL

        # Whoever is left goes on as if nothing had happened.
        said["survivor"] = await read_lines(survivor, ACKNOWLEDGED_AFTER_THE_KILL)
        assert survivor.stdin is not None
        survivor.stdin.close()
        said["survivor"] += await rest_of(survivor)
        assert await survivor.wait() == 0

        async with open_store(url) as store:
            for name, lines in said.items():
                await check(store.table, name, lines)
            pairs = {name: len(await whole_pairs(store.table, name)) for name in said}
            assert all(count > 0 for count in pairs.values()), pairs


async def check(table: Table, name: str, lines: list[str]) -> None:
    acknowledged = {
        kind: {int(line.split()[1]) for line in lines if line.startswith(kind)}
        for kind in ("pair", "put")
    }
    pairs = await whole_pairs(table, name)
    puts = {int(item["SK"]) async for item in table.query_all(f"put-{name}")}
    total = await table.get(Key("sum", name))
    assert total is not None
    added = Counter(lines)["add"]
    # Everything that was said stands; besides it at most what was under way.
    assert acknowledged["pair"] <= pairs
    assert acknowledged["put"] <= puts
    assert len(pairs - acknowledged["pair"]) <= IN_FLIGHT
    assert len(puts - acknowledged["put"]) <= IN_FLIGHT
    assert added <= total["n"] <= added + IN_FLIGHT
