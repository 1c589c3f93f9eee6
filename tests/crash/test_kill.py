"""kill -9 of one of two workers in the middle of many runs: all of them finish."""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import Process
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from holdfast import Holdfast
from holdfast.clock import SystemClock, SystemIds
from holdfast.storage import Store
from holdfast.storage import open as open_store
from tests.crash.flows import TEN, TEN_TRAIL, Effect, Trail, effects, ten
from tests.crash.journals import (
    Record,
    check_history,
    fences_of,
    journal_of,
    visits_of,
    worker_in,
    workers_of,
)
from tests.crash.processes import until, working

CONCURRENCY = 16
POLL_SECONDS = 0.1
SCANS_A_LEASE = 4
"""How often a worker looks for the dead."""
DEADLINE_SECONDS = 90
STARTS_AT_ONCE = 20
FAIR_SHARE = 0.25
MIDDLE = ([3], [4], [5], [6])
SLOWNESS = 5
"""So much longer than on an idle machine may a recovery take."""


class Load(NamedTuple):
    """How much there is to do, and how soon the dead are missed."""

    runs: int
    work_seconds: float
    """How long a node takes."""
    lease_seconds: float


class Fleet(NamedTuple):
    """Two workers and what they work on, one of them about to be killed."""

    folder: Path
    victim: Process
    survivor: Process
    runs: list[str]

    def done(self) -> list[Effect]:
        return effects(self.folder)

    def half_done(self) -> bool:
        """Return whether half of the nodes ran, and the victim is in the middle of some runs."""
        done = self.done()
        its_last = [effect.visit for effect in done if effect.pid == self.victim.pid][-1:]
        return len(done) >= len(self.runs) * TEN // 2 and its_last in MIDDLE


async def test_kill_9_of_one_of_two_workers_on_a_file(tmp_path: Path, folder: Path) -> None:
    load = Load(runs=500, work_seconds=0.01, lease_seconds=2)
    await check_kill(f"sqlite:///{tmp_path}/runs.db", load, folder)


async def test_kill_9_of_one_of_two_workers_on_dynamodb(dynamodb_local: str, folder: Path) -> None:
    # Fewer runs, since DynamoDB Local takes a few hundred writes a second beside its clients;
    # longer nodes, or most of what is in flight would be writes, and those it carries out even
    # after the kill; a longer lease, since it answers late while it is new.
    load = Load(runs=100, work_seconds=0.1, lease_seconds=8)
    url = f"dynamodb://crash-{SystemIds().new()}?region=us-east-1&endpoint={dynamodb_local}"
    async with open_store(url) as store:
        await store.create()
    await check_kill(url, load, folder)


async def check_kill(url: str, load: Load, folder: Path) -> None:
    options = {
        "concurrency": CONCURRENCY,
        "lease": load.lease_seconds,
        "poll": POLL_SECONDS,
    }
    work: Trail = {"work_seconds": load.work_seconds}
    runs = [f"run-{number}" for number in range(load.runs)]
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        Holdfast(url) as client,
        working(url, "ten", **options) as victim,
        working(url, "ten", **options) as survivor,
    ):
        fleet = Fleet(folder, victim, survivor, runs)
        starting = asyncio.create_task(start_all(client, runs, work))
        await until(fleet.half_done, victim, survivor)
        victim.kill()
        killed_ms = SystemClock().now_ms()
        assert await victim.wait() == -signal.SIGKILL
        shares = Counter(effect.pid for effect in fleet.done())
        await starting
        for run in runs:
            state = await client.run(run, graph=ten).result()
            assert state == {**work, "trail": TEN_TRAIL}
        async with open_store(url) as store:
            journals = {run: await journal_of(store, run) for run in runs}
            repeated = check_executions(fleet, journals)
            buried_ms = await burial_of(fleet, store, journals)
    taken_ms = max(fence.at_ms for journal in journals.values() for fence in fences_of(journal))
    share = shares[victim.pid] / shares.total()
    scan_seconds = load.lease_seconds / SCANS_A_LEASE
    print(
        f"\nkill -9, {url.partition(':')[0]}, {load.runs} runs of {TEN} nodes: the victim had done "
        f"{share:.0%} of {shares.total()} nodes; {repeated} ran again; buried after "
        f"{buried_ms - killed_ms} ms, the last run taken over after {taken_ms - killed_ms} ms "
        f"(lease {load.lease_seconds:g} s, scan {scan_seconds:g} s, poll {POLL_SECONDS:g} s)"
    )
    assert FAIR_SHARE <= share <= 1 - FAIR_SHARE
    expected_ms = (load.lease_seconds + scan_seconds + POLL_SECONDS) * 1000
    assert taken_ms - killed_ms <= SLOWNESS * expected_ms


async def start_all(client: Holdfast, runs: list[str], work: Trail) -> None:
    for begin in range(0, len(runs), STARTS_AT_ONCE):
        some = runs[begin : begin + STARTS_AT_ONCE]
        await asyncio.gather(*(client.start(ten, work, id=run) for run in some))


def check_executions(fleet: Fleet, journals: dict[str, list[Record]]) -> int:
    """Check that only what the victim had in flight ran twice; return how many nodes that were."""
    done = fleet.done()
    pids: dict[tuple[str, int], list[int]] = {}
    for effect in done:
        pids.setdefault((effect.run, effect.visit), []).append(effect.pid)
    assert pids.keys() == {(run, visit) for run in fleet.runs for visit in range(TEN)}
    last = {effect.run: effect.visit for effect in done if effect.pid == fleet.victim.pid}
    in_flight = set[tuple[str, int]]()
    for run, journal in journals.items():
        check_history(journal)
        recorded = visits_of(journal)
        assert sorted(recorded) == list(range(TEN))
        fences = fences_of(journal)
        assert len(fences) <= 1, journal
        # What the victim began and did not get to write down was in flight; the rest stands.
        if fences and run in last and recorded[last[run]].epoch >= fences[0].epoch:
            in_flight.add((run, last[run]))
    repeated = {what for what, who in pids.items() if len(who) > 1}
    assert repeated == in_flight
    for what in repeated:
        assert sorted(pids[what]) == sorted([fleet.victim.pid, fleet.survivor.pid])
    # It was killed in the middle, with no more in flight than it may have. Perhaps with nothing:
    # between a commit and the nodes that follow it.
    taken_over = [run for run, journal in journals.items() if fences_of(journal)]
    assert len(repeated) <= len(taken_over)
    assert 1 <= len(taken_over) <= CONCURRENCY
    return len(repeated)


async def burial_of(fleet: Fleet, store: Store, journals: dict[str, list[Record]]) -> int:
    """Return when the victim was buried; check that the survivor took over all that it held."""
    (buried,) = await workers_of(store, fleet.victim.pid)
    (heir,) = await workers_of(store, fleet.survivor.pid)  # one: it never lost its own lease
    heirs = {fence.worker for journal in journals.values() for fence in fences_of(journal)}
    assert heirs == {worker_in(heir)}
    return buried["buried_ms"]
