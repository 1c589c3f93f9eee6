"""kill -9 of one of two workers in the middle of many runs: all of them finish."""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import Process
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast import Holdfast
from holdfast.clock import SystemClock, SystemIds
from holdfast.storage import Store
from holdfast.storage import open as open_store
from tests.crash.flows import EFFECTS, TEN, TEN_TRAIL, Effect, effects, ten
from tests.crash.journals import (
    check_history,
    fences_of,
    journal_of,
    visits_of,
    worker_in,
    workers_of,
)
from tests.crash.processes import until, working

CONCURRENCY = 16
LEASE_SECONDS = 2.0
BURIAL_SECONDS = LEASE_SECONDS / 4
"""How often a worker of this lease looks for the dead."""
POLL_SECONDS = 0.1
DEADLINE_SECONDS = 90
STARTS_AT_ONCE = 50
FAIR_SHARE = 0.25
SLOWNESS = 5
"""So much longer than on an idle machine may a recovery take."""


class Fleet(NamedTuple):
    """Two workers and what they work on, one of them about to be killed."""

    url: str
    folder: Path
    victim: Process
    survivor: Process
    runs: list[str]

    def done(self) -> list[Effect]:
        return effects(self.folder)


async def test_kill_9_of_one_of_two_workers_on_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await check_kill(f"sqlite:///{tmp_path}/runs.db", 500, tmp_path / "effects", monkeypatch)


async def test_kill_9_of_one_of_two_workers_on_dynamodb(
    dynamodb_local: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A fifth of the runs: DynamoDB Local takes a few hundred writes a second beside its clients.
    url = f"dynamodb://crash-{SystemIds().new()}?region=us-east-1&endpoint={dynamodb_local}"
    async with open_store(url) as store:
        await store.create()
    await check_kill(url, 100, tmp_path / "effects", monkeypatch)


async def check_kill(url: str, count: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    monkeypatch.setenv(EFFECTS, str(folder))
    options = {
        "concurrency": CONCURRENCY,
        "lease_seconds": LEASE_SECONDS,
        "poll_seconds": POLL_SECONDS,
    }
    runs = [f"run-{number}" for number in range(count)]
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        Holdfast(url) as client,
        working(url, "ten", **options) as victim,
        working(url, "ten", **options) as survivor,
    ):
        fleet = Fleet(url, folder, victim, survivor, runs)
        starting = asyncio.create_task(start_all(client, runs))
        half = count * TEN // 2
        await until(lambda: len(fleet.done()) >= half, victim, survivor)
        victim.kill()
        killed_ms = SystemClock().now_ms()
        assert await victim.wait() == -signal.SIGKILL
        shares = Counter(effect.pid for effect in fleet.done())
        await starting
        for run in runs:
            state = await client.run(run, graph=ten).result()
            assert state == {"trail": TEN_TRAIL}
        async with open_store(url) as store:
            repeated = await check_executions(fleet, store)
            buried_ms, taken_ms = await recovery_of(fleet, store)
        share = shares[victim.pid] / shares.total()
        print(
            f"\nkill -9, {url.partition(':')[0]}, {count} runs: the victim had done {share:.0%} of "
            f"{shares.total()} nodes; {repeated} of {count * TEN} nodes ran again; buried after "
            f"{buried_ms - killed_ms} ms, the last run was taken over after {taken_ms - killed_ms} "
            f"ms (lease {LEASE_SECONDS * 1000:.0f} ms, scan {BURIAL_SECONDS * 1000:.0f} ms, "
            f"poll {POLL_SECONDS * 1000:.0f} ms)"
        )
        assert FAIR_SHARE <= share <= 1 - FAIR_SHARE
        expected_ms = (LEASE_SECONDS + BURIAL_SECONDS + POLL_SECONDS) * 1000
        assert taken_ms - killed_ms <= SLOWNESS * expected_ms


async def start_all(client: Holdfast, runs: list[str]) -> None:
    for begin in range(0, len(runs), STARTS_AT_ONCE):
        some = runs[begin : begin + STARTS_AT_ONCE]
        await asyncio.gather(*(client.start(ten, {}, id=run) for run in some))


async def check_executions(fleet: Fleet, store: Store) -> int:
    """Check that only what the victim had in flight ran twice; return how many nodes that were."""
    done = fleet.done()
    pids: dict[tuple[str, int], list[int]] = {}
    for effect in done:
        pids.setdefault((effect.run, effect.visit), []).append(effect.pid)
    assert pids.keys() == {(run, visit) for run in fleet.runs for visit in range(TEN)}
    last = {effect.run: effect.visit for effect in done if effect.pid == fleet.victim.pid}
    in_flight = set[tuple[str, int]]()
    for run in fleet.runs:
        journal = await journal_of(store, run)
        check_history(journal)
        recorded = visits_of(journal)
        assert sorted(recorded) == list(range(TEN))
        # What the victim began and did not get to write down was in flight; the rest stands.
        fences = fences_of(journal)
        assert len(fences) <= (run in last), journal
        if fences and recorded[last[run]].epoch >= fences[0].epoch:
            in_flight.add((run, last[run]))
    repeated = {what for what, who in pids.items() if len(who) > 1}
    assert repeated == in_flight
    for what in repeated:
        assert sorted(pids[what]) == sorted([fleet.victim.pid, fleet.survivor.pid])
    # It was killed in the middle, with no more in flight than it may have.
    assert 1 <= len(repeated) <= CONCURRENCY
    return len(repeated)


async def recovery_of(fleet: Fleet, store: Store) -> tuple[int, int]:
    """Return when the victim was buried, and when the last of its runs was taken over."""
    (row,) = await workers_of(store, fleet.victim.pid)
    fences = [fence for run in fleet.runs for fence in fences_of(await journal_of(store, run))]
    (heir,) = await workers_of(store, fleet.survivor.pid)
    # The survivor never lost its lease, and took over everything itself.
    assert {fence.worker for fence in fences} == {worker_in(heir)}
    return row["buried_ms"], max(fence.at_ms for fence in fences)
