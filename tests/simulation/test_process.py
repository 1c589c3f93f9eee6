"""Processes: each has its own clock, and stops as a real one does."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.errors import StoreClosed
from holdfast.storage.layout import Key
from holdfast.storage.writes import Put
from tests.simulation.clock import EPOCH_MS
from tests.simulation.faults import calm
from tests.simulation.process import Crashed, Process
from tests.simulation.world import World, simulate

KEY = Key("p", "s")
ITEM = {"PK": "p", "SK": "s", "n": 1}


async def _wait(world: World, seconds: float) -> None:
    await world.process("test").clock.sleep(seconds)


# --- clocks and ids -------------------------------------------------------------------------------


def test_a_clock_may_be_off_by_a_constant_and_its_seconds_are_true() -> None:
    async def scenario(world: World) -> None:
        processes = [world.process(f"w{number}") for number in range(60)]
        skews: list[float] = []
        for _ in range(2):
            skews = [(each.clock.now_ms() - world.now_ms()) / 1000 for each in processes]
            expected = [each.clock.skew_seconds for each in processes]
            assert skews == pytest.approx(expected, abs=0.0011)
            assert {each.clock.monotonic() for each in processes} == {world.loop.time()}
            await _wait(world, 1000)
        assert 10 < skews.count(0) < 30
        assert min(skews) < -1
        assert max(skews) > 1
        assert all(-2 <= skew <= 2 for skew in skews)

    simulate(scenario, 1, calm().evolve(skew_seconds_max=2))


def test_a_sleep_takes_its_time_and_may_take_a_little_longer() -> None:
    async def scenario(world: World) -> list[float]:
        process = world.process("w")
        taken: list[float] = []
        for _ in range(10):
            begun = process.clock.monotonic()
            await process.clock.sleep(60)
            taken.append(process.clock.monotonic() - begun)
        assert process.clock.now_ms() >= EPOCH_MS + 600_000
        return taken

    assert simulate(scenario, 1) == pytest.approx([60] * 10)
    for seconds in simulate(scenario, 1, calm().evolve(overshoot_seconds_max=0.002)):
        assert 60 < seconds < 60.0021


def test_processes_make_different_ids_also_after_a_restart() -> None:
    async def scenario(world: World) -> list[str]:
        processes = [world.process("a"), world.process("b"), world.process("a")]
        return [process.ids.new() for process in processes for _ in range(3)]

    made = simulate(scenario, 1)
    assert len(set(made)) == 9
    assert made == simulate(scenario, 1)
    assert made != simulate(scenario, 2)


# --- tasks ----------------------------------------------------------------------------------------


def test_a_task_comes_to_its_result_or_its_error() -> None:
    async def works() -> int:
        return 1

    async def fails() -> None:
        raise ValueError("its own")

    async def scenario(world: World) -> None:
        process = world.process("w")
        assert await process.run(works()) == 1
        with pytest.raises(ValueError, match="its own"):
            await process.run(fails())

    simulate(scenario, 1)


def test_to_cancel_the_future_is_to_cancel_the_task() -> None:
    async def scenario(world: World) -> list[str]:
        process = world.process("w")
        seen: list[str] = []

        async def work() -> None:
            try:
                await process.clock.sleep(1000)
            except asyncio.CancelledError:
                await process.table.write(Put(ITEM))
                seen.append("cancelled")

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await process.run(work())
        await _wait(world, 1)
        assert world.item(KEY) == ITEM
        return seen

    assert simulate(scenario, 1) == ["cancelled"]


def test_a_closed_store_is_closed() -> None:
    async def scenario(world: World) -> None:
        process, other = world.process("w"), world.process("v")
        await process.store.create()
        await process.store.close()
        with pytest.raises(StoreClosed):
            await process.table.get(KEY)
        with pytest.raises(StoreClosed):
            await process.store.blobs.put(b"x")
        assert await other.table.get(KEY) is None

    simulate(scenario, 1)


# --- crashes --------------------------------------------------------------------------------------


def test_nothing_of_a_crashed_process_reaches_the_world_even_in_finally() -> None:
    async def scenario(world: World) -> None:
        process = world.process("w")
        seen: list[str] = []

        async def child() -> None:
            try:
                while True:
                    await process.clock.sleep(0.5)
                    seen.append("tick")
            finally:
                seen.append("finally of a child")
                await process.table.write(Put(ITEM))

        async def work() -> None:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(child())
                    await process.table.get(KEY)
                    await process.clock.sleep(1000)
            except BaseException:
                seen.append("except")
                await process.store.blobs.put(b"bytes", key="blob")
                raise
            finally:
                seen.append("finally")
                await process.table.write(Put(ITEM))

        working = process.spawn(work())
        await _wait(world, 10)
        assert set(seen) == {"tick"}
        seen.clear()
        told.append((world, seen, world.operations.total()))
        process.crash()
        with pytest.raises(Crashed):
            await working
        await _wait(world, 5000)
        assert seen == []

    told: list[tuple[World, list[str], int]] = []
    simulate(scenario, 1)
    ((world, seen, asked),) = told
    # When all is over its frames are unwound, and still nothing of it comes through.
    assert set(seen) == {"finally of a child", "except", "finally"}
    assert world.operations.total() == asked
    assert world.truth.items() == []
    assert world.blobs.contents == {}
    assert world.faults == {"crash": 1}


def test_what_a_process_does_after_it_crashed_itself_does_not_count() -> None:
    async def scenario(world: World) -> None:
        process = world.process("w")

        async def work() -> None:
            process.crash()
            await process.table.write(Put(ITEM))

        with pytest.raises(Crashed):
            await process.run(work())
        await _wait(world, 100)
        assert world.items() == []
        assert not world.operations

    simulate(scenario, 1)


def test_what_is_left_when_all_is_over_leaves_no_trace() -> None:
    worlds: list[World] = []

    async def scenario(world: World) -> int:
        worlds.append(world)
        process = world.process("w")

        async def work() -> None:
            try:
                await process.clock.sleep(1000)
            finally:
                await process.table.write(Put(ITEM))

        process.spawn(work())
        await _wait(world, 1)
        return len(world.trace)

    assert simulate(scenario, 1) == len(worlds[0].trace)
    assert worlds[0].truth.items() == []


def test_what_was_sent_before_a_crash_may_or_may_not_arrive() -> None:
    async def scenario(world: World) -> bool:
        process = world.process("w")
        writing = process.spawn(process.table.write(Put(ITEM)))
        while not world.operations:
            await _wait(world, 0)
        process.crash()
        assert world.item(KEY) is None
        await _wait(world, 100)
        assert isinstance(writing.exception(), Crashed)
        return world.item(KEY) is not None

    arrived = [simulate(scenario, seed) for seed in range(40)]
    assert 8 < sum(arrived) < 32


def test_what_was_answered_before_a_crash_stands() -> None:
    async def scenario(world: World) -> World:
        process = world.process("w")
        await process.run(process.table.write(Put(ITEM)))
        process.crash()
        assert world.item(KEY) == ITEM
        return world

    assert "lost with its sender" not in simulate(scenario, 1).trace.tail()


def test_a_process_dies_on_the_spot() -> None:
    async def scenario(world: World) -> list[str]:
        process = world.process("w")
        seen: list[str] = []

        async def work() -> None:
            seen.append("before")
            await process.die()
            seen.append("behind")

        with pytest.raises(Crashed):
            await process.run(work())
        with pytest.raises(Crashed):
            await process.run(work())
        return seen

    assert simulate(scenario, 1) == ["before"]


def test_whoever_uses_a_crashed_process_from_outside_is_told() -> None:
    async def scenario(world: World) -> None:
        process = world.process("w")
        world.at(5, process.crash)
        with pytest.raises(Crashed):
            await process.clock.sleep(10)
        assert world.loop.time() == 5
        for use in (
            process.table.get(KEY),
            process.clock.sleep(1),
            process.store.blobs.put(b"x"),
            process.table.read_changes(),
        ):
            with pytest.raises(Crashed):
                await use
        process.stall(1)
        assert not process.stalled

    simulate(scenario, 1)


def test_a_crash_is_drawn_at_any_await() -> None:
    async def scenario(world: World) -> list[float]:
        moments: list[float] = []

        async def sleeps(process: Process) -> None:
            await process.clock.sleep(100)

        for number in range(20):
            process = world.process(f"w{number}")
            begun = world.loop.time()
            with pytest.raises(Crashed):
                await process.run(sleeps(process))
            moments.append(world.loop.time() - begun)
        assert world.faults["crash"] == 20
        return moments

    moments = simulate(scenario, 1, calm().evolve(crash=1))
    assert all(0 <= moment <= 100 for moment in moments)
    assert min(moments) < 30
    assert max(moments) > 70


# --- stalls ---------------------------------------------------------------------------------------


def test_a_stalled_process_gets_its_answer_only_after_the_stall() -> None:
    async def scenario(world: World) -> None:
        process = world.process("w")
        seen: list[float] = []

        async def write() -> None:
            await process.table.write(Put(ITEM))
            seen.append(process.clock.monotonic())

        async def tick() -> None:
            # By asyncio's own timers, which stand still as well.
            try:
                async with asyncio.timeout(20):
                    await world.loop.create_future()
            except TimeoutError:
                seen.append(process.clock.monotonic())

        both = [process.spawn(write()), process.spawn(tick())]
        while not world.operations:
            await _wait(world, 0)
        process.stall(100)
        assert process.stalled
        await _wait(world, 50)
        assert world.item(KEY) == ITEM
        assert seen == []
        await asyncio.gather(*both)
        assert seen == pytest.approx([100, 100], abs=0.001)
        assert not process.stalled
        assert world.faults == {"stall": 1}

    simulate(scenario, 1)


@pytest.mark.parametrize("stalls", [(50, 10), (10, 50)])
def test_of_two_stalls_the_longer_counts_and_no_stall_outlives_a_crash(
    stalls: tuple[float, float],
) -> None:
    async def scenario(world: World) -> list[str]:
        process, other = world.process("w"), world.process("v")
        seen: list[str] = []

        async def sleep(process: Process) -> float:
            await process.clock.sleep(1)
            seen.append(process.name)
            return process.clock.monotonic()

        sleeping, lost = process.spawn(sleep(process)), other.spawn(sleep(other))
        await _wait(world, 0.5)
        for seconds in stalls:
            process.stall(seconds)
            other.stall(seconds)
        await _wait(world, 20)
        other.crash()
        assert await sleeping == 50.5
        await _wait(world, 100)
        assert isinstance(lost.exception(), Crashed)
        return seen

    assert simulate(scenario, 1) == ["w"]


def test_whoever_uses_a_stalled_process_from_outside_waits_as_well() -> None:
    async def scenario(world: World) -> None:
        process = world.process("w")
        process.stall(50)
        await process.table.get(KEY)
        assert world.loop.time() == 50
        process.stall(50)
        await process.clock.sleep(1)
        assert world.loop.time() == 100

    simulate(scenario, 1)


def test_a_stall_is_drawn_at_any_await() -> None:
    async def scenario(world: World) -> list[float]:
        process = world.process("w")
        taken: list[float] = []

        async def ask() -> None:
            for _ in range(50):
                begun = process.clock.monotonic()
                await process.table.get(KEY)
                taken.append(process.clock.monotonic() - begun)

        await process.run(ask())
        assert world.faults["stall"] == 50
        return taken

    taken = simulate(scenario, 1, calm().evolve(stall=1, stall_seconds_max=90))
    assert all(seconds < 91 for seconds in taken)
    assert max(taken) > 60
    assert min(taken) < 5
