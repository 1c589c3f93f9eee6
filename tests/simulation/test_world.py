"""The world as a whole: it can be replayed, everything goes wrong in it, and it is observed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast.storage.item import Item
from holdfast.storage.layout import Key
from holdfast.storage.operations import Reply, WriteItem, WriteOperation
from holdfast.storage.writes import Absent, Delete, Equals, Put
from tests.simulation.clock import EPOCH_MS
from tests.simulation.counters import counted
from tests.simulation.faults import FaultPlan, calm, hostile
from tests.simulation.loop import Deadlock
from tests.simulation.process import Process
from tests.simulation.truth import Step
from tests.simulation.world import TTL_SWEEPER, World, simulate

KEY = Key("p", "s")
ITEM: Item = {"PK": "p", "SK": "s", "n": 1}
ROOT = Path(__file__).parents[2]

KINDS = {
    "blob_lost_answer",
    "blob_unreachable",
    "cancelled_transaction",
    "crash",
    "duplicate_write",
    "duplicate_write_refused",
    "late_write",
    "late_write_refused",
    "lost_answer",
    "lost_answer_settled",
    "restart",
    "slow",
    "stale_index",
    "stale_read",
    "stall",
    "throttled",
    "ttl_deletion",
    "unapplied_unknown",
    "unreachable",
}


# --- replaying ------------------------------------------------------------------------------------


def test_the_same_seed_replays_exactly_and_another_does_not() -> None:
    first = counted(1)
    assert 200 < sum(first.operations.values()) < 2000
    assert first.trace.lines() == counted(1).trace.lines()
    digests = {counted(seed).trace.digest() for seed in range(1, 6)}
    assert first.trace.digest() in digests
    assert len(digests) == 5


def test_a_replay_does_not_depend_on_the_process_that_runs_it() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-m", "tests.simulation.counters", "7"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert digests == {counted(7).trace.digest() + "\n"}


def test_every_kind_of_fault_fires() -> None:
    faults: Counter[str] = Counter()
    for seed in range(12):
        faults += counted(seed, hostile().evolve(crash=0.005, stall=0.005)).faults
    assert {kind for kind in KINDS if not faults[kind]} == set()
    assert set(faults) <= KINDS


def test_nothing_goes_wrong_in_a_calm_world() -> None:
    world = counted(3, calm())
    assert world.faults == {}
    assert sum(world.operations.values()) > 200


@pytest.mark.parametrize("metered", [True, False])
def test_operations_tell_their_units_only_where_asked_to(metered: bool) -> None:
    async def scenario(world: World) -> float:
        process = world.process("w")
        await process.table.write(Put(ITEM))
        await process.table.get(KEY)
        return process.meter.report().units.writes

    assert simulate(scenario, 1, metered=metered) == metered


def test_each_rate_is_that_of_a_fault() -> None:
    for kind in KINDS - {"restart"}:
        rate = kind.removesuffix("_refused").removesuffix("_settled")
        assert getattr(calm(), rate) == 0
        assert getattr(hostile(), rate) > 0


# --- observing ------------------------------------------------------------------------------------


def test_an_observer_is_told_of_each_applied_write_at_once() -> None:
    told: list[tuple[str, WriteOperation, list[Step], Item | None]] = []

    async def scenario(world: World) -> None:
        def observe(
            at_ms: int, process: str, operation: WriteOperation, answer: Reply, steps: list[Step]
        ) -> None:
            assert at_ms == world.now_ms()
            assert answer.error is None
            told.append((process, operation, steps, world.item(KEY)))

        world.on_applied(observe)
        table = world.process("w").table
        await table.write(Put(ITEM))
        with pytest.raises(Exception, match="does not hold"):
            await table.write(Put(ITEM, Absent("PK")))
        await table.transact([Put({**ITEM, "n": 2}, Equals("n", 1)), Delete(Key("p", "x"))])

    simulate(scenario, 1)
    (first, second) = told
    assert (first[0], first[2], first[3]) == ("w", [(KEY, None, ITEM)], ITEM)
    assert isinstance(first[1], WriteItem)
    changed = {**ITEM, "n": 2}
    assert second[2] == [(KEY, ITEM, changed), (Key("p", "x"), None, None)]
    assert second[3] == changed


def test_what_an_observer_raises_ends_the_run_and_tells_the_seed() -> None:
    def broken(*_: Any) -> None:
        raise AssertionError("P2 does not hold")

    async def scenario(world: World) -> None:
        world.on_applied(broken)
        process = world.process("w")
        process.spawn(process.table.write(Put(ITEM)))
        await process.clock.sleep(1000)
        raise RuntimeError("too late")

    with pytest.raises(AssertionError, match="P2") as raised:
        simulate(scenario, 42)
    notes = "\n".join(raised.value.__notes__)
    assert "seed 42" in notes
    assert "put p/s" in notes


def test_a_deadlock_names_the_process() -> None:
    async def scenario(world: World) -> None:
        process = world.process("w")

        async def waits() -> None:
            await world.loop.create_future()

        await process.run(waits())

    with pytest.raises(Deadlock, match=r"of w: .*waits"):
        simulate(scenario, 1)


def test_the_trace_tells_the_story_of_an_item() -> None:
    async def scenario(world: World) -> World:
        await world.process("w").table.write(Put(ITEM))
        return world

    world = simulate(scenario, 1)
    story = [line.split()[1:] for line in world.trace.about("p/s").splitlines()]
    assert [line[:2] for line in story] == [["w", "asks"], ["w", "applied"], ["w", "gets"]]
    assert len(world.trace.tail(2).splitlines()) == 2


# --- expiry ---------------------------------------------------------------------------------------


def _expiring(seed: int, plan: FaultPlan) -> list[tuple[str, float]]:
    """Write ten items that expire after a minute; return which went when, in order."""
    ttl = EPOCH_MS // 1000 + 60
    gone: list[tuple[str, float]] = []

    async def scenario(world: World) -> None:
        def observe(
            at_ms: int, process: str, operation: WriteOperation, answer: Reply, steps: list[Step]
        ) -> None:
            if process == TTL_SWEEPER:
                gone.extend((key.sk, (at_ms - EPOCH_MS) / 1000) for key, _, _ in steps)

        world.on_applied(observe)
        process = world.process("w")
        for n in range(10):
            await process.table.write(Put({"PK": "p", "SK": str(n), "ttl": ttl}))
        # Of two, the time is put off, and of one taken away.
        await process.table.write(Put({"PK": "p", "SK": "7", "ttl": ttl + 10**6}))
        await process.table.write(Put({"PK": "p", "SK": "8"}))
        for minute in range(49 * 60):
            for _ in range(12 if minute < 3 else 1):
                await process.clock.sleep(5 if minute < 3 else 60)
                await process.table.get(KEY)
        page = await process.table.read_changes()
        assert [change.key.sk for change in page.changes if change.expired] == [
            sk for sk, _ in gone
        ]

    simulate(scenario, seed, plan)
    return gone


def test_what_has_expired_is_deleted_later_in_any_order() -> None:
    orders = [_expiring(seed, calm().evolve(ttl_deletion=1)) for seed in range(3)]
    for gone in orders:
        assert {sk for sk, _ in gone} == set("01234569")
        assert all(60 < seconds < 48 * 3600 + 120 for _, seconds in gone)
        assert any(seconds > 3600 for _, seconds in gone)
    assert len({tuple(sk for sk, _ in gone) for gone in orders}) == 3


def test_nothing_expires_where_nothing_is_to() -> None:
    assert _expiring(1, calm()) == []


# --- supervision ----------------------------------------------------------------------------------


def test_a_crashed_process_is_started_again_under_a_new_name() -> None:
    started: list[tuple[str, float]] = []

    async def boot(process: Process) -> None:
        started.append((process.name, process.clock.monotonic()))
        await process.clock.sleep(10)
        if len(started) < 3:
            await process.die()

    async def scenario(world: World) -> World:
        worker = world.supervise("w", boot)
        await worker.ended
        assert worker.starts == 3
        return world

    world = simulate(scenario, 5)
    assert [name for name, _ in started] == ["w", "w.2", "w.3"]
    assert started[1][1] > 10
    assert world.faults == {"crash": 2, "restart": 2}


@pytest.mark.parametrize("crash_first", [True, False])
def test_a_stopped_supervisor_starts_nothing_again(crash_first: bool) -> None:
    async def boot(process: Process) -> None:
        await process.clock.sleep(1000)

    async def scenario(world: World) -> int:
        worker = world.supervise("w", boot)
        await world.process("main").clock.sleep(1)
        if crash_first:
            worker.process.crash()
            await world.process("main").clock.sleep(0)
        worker.stop()
        worker.process.crash()
        await worker.ended
        await world.process("main").clock.sleep(100)
        return worker.starts

    assert simulate(scenario, 1) == 1


def test_a_process_that_fails_fails_the_run() -> None:
    async def boot(process: Process) -> None:
        await process.clock.sleep(1)
        raise ValueError("a bug")

    async def scenario(world: World) -> None:
        world.supervise("w", boot)
        await world.process("main").clock.sleep(1000)

    with pytest.raises(ValueError, match="a bug") as raised:
        simulate(scenario, 1)
    assert "w failed" in raised.value.__notes__
