"""Clocks that stand still, ids that stay in order."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import uuid

import pytest

from holdfast.clock import (
    Clock,
    Ids,
    ManualClock,
    SeededIds,
    SystemClock,
    SystemIds,
    _IdSequence,
)


def test_the_system_clock_goes_on() -> None:
    clock: Clock = SystemClock()
    before = clock.monotonic()
    assert clock.now_ms() > 1_700_000_000_000
    assert clock.monotonic() >= before


async def test_a_manual_clock_wakes_sleepers_in_their_order() -> None:
    clock = ManualClock(now_ms=5_000)
    woken: list[str] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(name)

    tasks = [asyncio.create_task(sleeper(*one)) for one in (("c", 3), ("a", 1), ("b", 1))]
    await turn()
    clock.advance(0.999)
    await turn()
    assert woken == []
    clock.advance(0.001)
    await turn()
    assert woken == ["a", "b"]
    clock.advance(10)
    await asyncio.gather(*tasks)
    assert woken == ["a", "b", "c"]
    assert (clock.now_ms(), clock.monotonic()) == (16_000, 11.0)


async def test_a_cancelled_sleeper_does_not_disturb_the_clock() -> None:
    clock = ManualClock()
    task = asyncio.create_task(clock.sleep(1))
    await turn()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    clock.advance(2)


async def test_to_sleep_for_no_time_is_to_let_others_run() -> None:
    clock = ManualClock()
    async with asyncio.timeout(10):
        await clock.sleep(0)
        await clock.sleep(-1)
    assert clock.monotonic() == 0


async def turn() -> None:
    """Let everything run that can run now."""
    for _ in range(3):
        ready = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(ready.set_result, None)
        await ready


class BackwardsClock(ManualClock):
    def set_back(self) -> None:
        self._now_ms -= 60_000


@pytest.mark.parametrize(
    "ids", [SystemIds(), SeededIds(1, ManualClock())], ids=["system", "seeded"]
)
def test_ids_are_uuids_of_version_7_in_their_order(ids: Ids) -> None:
    made = [ids.new() for _ in range(2000)]
    assert made == sorted(set(made))
    assert {(uuid.UUID(text).version, uuid.UUID(text).variant) for text in made} == {
        (7, uuid.RFC_4122)
    }
    assert all(0 <= ids.random() < 1 for _ in range(100))


def test_ids_carry_the_time() -> None:
    clock = ManualClock(now_ms=1_234_567_890_123)
    for ids in (SystemIds(clock), SeededIds(1, clock)):
        assert int(ids.new().replace("-", "")[:12], 16) == 1_234_567_890_123


def test_ids_stay_in_order_when_the_clock_is_set_back() -> None:
    clock = BackwardsClock()
    for ids in (SystemIds(clock), SeededIds(1, clock)):
        first = ids.new()
        clock.set_back()
        assert ids.new() > first


def test_ids_of_one_process_are_in_their_order_though_several_parts_make_them() -> None:
    one, other = SystemIds(), SystemIds(SystemClock())
    made = [ids.new() for _ in range(2000) for ids in (one, other)]
    assert made == sorted(set(made))


def test_ids_of_two_processes_are_in_the_order_of_their_clocks_within_a_millisecond() -> None:
    """Two on one machine see the same clock, which tells less than a microsecond."""
    now_ns = 1_234_567_890_123_000_000
    one, other = _IdSequence(lambda: now_ns), _IdSequence(lambda: now_ns)
    made: list[str] = []
    for _ in range(400):
        for sequence in (one, other):
            now_ns += 1_000
            made.append(sequence.new())
    assert made == sorted(set(made))
    assert {text[:13] for text in made} == {made[0][:13]}  # all in one millisecond


def test_ids_of_a_fork_are_its_own() -> None:
    ids = SystemIds(ManualClock())
    ids.new()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, ids.new().encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as told:
        assert told.read() not in ("", ids.new())


def test_ids_of_several_threads_are_distinct() -> None:
    ids = SystemIds()
    made: list[str] = []
    threads = [
        threading.Thread(target=lambda: made.extend(ids.new() for _ in range(2000)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 8000


def test_the_same_seed_gives_the_same_ids() -> None:
    one, two, other = (SeededIds(seed, ManualClock()) for seed in (1, 1, 2))
    drawn = [(ids.new(), ids.random(), ids.new()) for ids in (one, two, other)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


def test_an_id_does_not_help_to_guess_the_next_one() -> None:
    """At a clock that stands still, only the last of the ticks tells two ids apart, and 62 bits."""
    ids = SystemIds(ManualClock())
    made = [uuid.UUID(ids.new()).int for _ in range(4096)]
    assert made == sorted(made)
    drawn = [number & ((1 << 62) - 1) for number in made]
    assert len(set(drawn)) == len(made)
    steps = [(after - before) % (1 << 62) for before, after in itertools.pairwise(drawn)]
    assert len(set(steps)) == len(steps)
    # Each of the 62 bits is set in about half of them: 2048, give or take ten deviations of 32.
    for bit in range(62):
        assert 1700 < sum(number >> bit & 1 for number in drawn) < 2400
    # They are ordered by time: one tick each, so that 4,096 of them take one millisecond.
    assert (made[-1] >> 80) - (made[0] >> 80) <= 1


def test_a_clock_that_goes_on_catches_up_with_the_ids() -> None:
    now_ns = 1_234_567_890_123_000_000
    sequence = _IdSequence(lambda: now_ns)
    for _ in range(100):
        sequence.new()
    now_ns += 1_000_000
    assert int(sequence.new().replace("-", "")[:12], 16) == 1_234_567_890_124


def test_a_key_is_32_random_bytes() -> None:
    ids = SystemIds(ManualClock())
    keys = {ids.key() for _ in range(100)}
    assert {len(key) for key in keys} == {32}
    assert len(keys) == 100
    one, two = SeededIds(1, ManualClock()), SeededIds(1, ManualClock())
    assert one.key() == two.key()
