"""The virtual loop: time that jumps, an order that the seed decides, and runs that always end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest

from tests.simulation.loop import OWNER, Deadlock, Owner, RanAway, VirtualLoop, run


async def _wait(seconds: float) -> None:
    """Wait as code under test may, by the loop's own timers."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(seconds, done.set_result, None)
    await done


def _order_of_ten(seed: int, *, shuffle: bool = True) -> list[int]:
    seen: list[int] = []

    async def step(number: int) -> None:
        seen.append(number)

    async def main() -> None:
        await asyncio.gather(*(step(number) for number in range(10)))

    run(main(), seed, shuffle=shuffle)
    return seen


def test_time_jumps_to_the_next_timer() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        times = [loop.time()]
        await _wait(86_400)
        times.append(loop.time())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await loop.create_future()
        times.append(loop.time())
        return times

    assert run(main()) == [0, 86_400, 86_410]


def test_timers_come_in_the_order_of_their_times() -> None:
    async def main() -> list[int]:
        seen: list[int] = []

        async def later(seconds: int) -> None:
            await _wait(seconds)
            seen.append(seconds)

        await asyncio.gather(*(later(seconds) for seconds in (5, 1, 4, 2, 3)))
        return seen

    assert run(main(), 7) == [1, 2, 3, 4, 5]


def test_the_seed_decides_the_order_of_ready_callbacks() -> None:
    orders = {seed: _order_of_ten(seed) for seed in range(20)}
    assert len({tuple(order) for order in orders.values()}) > 15
    assert orders == {seed: _order_of_ten(seed) for seed in range(20)}


def test_without_shuffling_the_order_is_that_of_a_real_loop() -> None:
    assert _order_of_ten(3, shuffle=False) == list(range(10))


def test_a_deadlock_names_who_waits_where() -> None:
    async def waits_for_godot() -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        await asyncio.create_task(waits_for_godot(), name="vladimir")

    with pytest.raises(Deadlock, match=r"(?s)2 tasks wait.*vladimir: .*waits_for_godot \(test_lo"):
        run(main())


def test_a_deadlock_tells_whose_tasks_are_held_back() -> None:
    async def main() -> None:
        owner = Owner("w1")
        owner.paused = True
        loop = asyncio.get_running_loop()
        token = OWNER.set(owner)
        held = loop.create_task(_wait(1))
        OWNER.reset(token)
        await held

    with pytest.raises(Deadlock, match="task-2 of w1, held back"):
        run(main())


def test_what_never_ends_runs_away() -> None:
    async def main() -> None:
        for _ in itertools.count():
            await _wait(1)

    with pytest.raises(RanAway, match=r"after 1,000 callbacks at 500\."):
        run(main(), callbacks_max=1000)


def test_a_paused_owner_runs_nothing_until_it_is_released() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        owner = Owner("w1")
        seen: list[float] = []

        async def ticks() -> None:
            for _ in range(3):
                await _wait(1)
                seen.append(loop.time())

        token = OWNER.set(owner)
        ticking = loop.create_task(ticks())
        OWNER.reset(token)
        await _wait(1.5)
        owner.paused = True
        await _wait(10)
        loop.release(owner)
        await ticking
        return seen

    assert run(main()) == [1, 11.5, 12.5]


def test_threads_are_calls_made_at_once() -> None:
    async def main() -> tuple[int, float]:
        return await asyncio.to_thread(sum, [1, 2]), asyncio.get_running_loop().time()

    assert run(main()) == (3, 0)


def test_what_is_left_is_cancelled_quietly() -> None:
    ended: list[str] = []

    async def waits(name: str) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            # A farewell that waits in its turn, and one that fails, keep nobody.
            ended.append(name)
            await _wait(1)

    async def stubborn() -> None:
        for _ in range(5):
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                ended.append("again")
        raise ValueError("after the end")

    async def numbers() -> AsyncIterator[int]:
        try:
            for number in itertools.count():
                yield number
        finally:
            ended.append("numbers")

    async def main() -> str:
        for name in "ab":
            asyncio.create_task(waits(name))  # noqa: RUF006
        asyncio.create_task(stubborn())  # noqa: RUF006
        async for number in numbers():
            await _wait(1)
            if number == 3:
                break
        return "done"

    assert run(main()) == "done"
    assert sorted(ended) == ["a", "again", "again", "again", "again", "again", "b", "numbers"]


def test_an_error_that_nobody_looks_at_fails_the_run() -> None:
    async def fails() -> None:
        raise ValueError("unseen")

    async def main() -> None:
        asyncio.create_task(fails())  # noqa: RUF006
        await _wait(1000)

    with pytest.raises(ValueError, match="unseen"):
        run(main())


def test_an_error_that_a_crashed_process_did_not_look_at_fails_nothing() -> None:
    """The process died before its other tasks could look at the one that failed."""

    async def fails() -> None:
        raise ValueError("unseen")

    async def main() -> None:
        owner = Owner("w1")
        token = OWNER.set(owner)
        failing = asyncio.create_task(fails())
        OWNER.reset(token)
        await asyncio.wait([failing])
        owner.paused = True

    run(main())


def test_an_error_of_a_callback_fails_the_run_at_once() -> None:
    def broken() -> None:
        raise AssertionError("an invariant")

    async def main() -> None:
        asyncio.get_running_loop().call_later(1, broken)
        await _wait(1000)
        raise RuntimeError("too late")

    with pytest.raises(AssertionError, match="an invariant"):
        run(main())
