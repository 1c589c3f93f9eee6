"""A node that runs again and takes another way: a warning names the call that it left out."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Context, Holdfast, Retry, signal, workflow
from tests.engine.support import House


def first(number: int) -> int:
    return number


def second(number: int) -> int:
    return number


async def outer(ctx: Context) -> int:
    return await ctx.call(first, 1)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = (each for each in caplog.records if each.name == "holdfast.calls")
    return [each.getMessage() for each in found if "ran again" in each.getMessage()]


async def ran(house: House, hf: Holdfast, program: Any) -> None:
    async with house.worker(hf, program) as worker:
        run = await hf.start(program, id="doc-42")
        await house.quiet(worker)
        await run.signal("go")
        await run.result(timeout=60)


@pytest.mark.parametrize("key", [None, "my key"])
async def test_another_branch_is_warned_of(
    house: House, hf: Holdfast, caplog: pytest.LogCaptureFixture, key: str | None
) -> None:
    times: list[int] = []

    @workflow
    async def approve(ctx: Context) -> int:
        times.append(1)
        if len(times) == 1:
            await ctx.with_options(key=key).call(first, 1)
        else:
            await ctx.call(second, 1)
        await ctx.wait(signal("go"))
        return 1

    await ran(house, hf, approve)
    (warning,) = told(caplog)
    call = "first#1" if key is None else "=my key"
    assert f"default: node 'approve' made '{call}' before, and did not when it ran" in warning


async def test_many_calls_are_named_in_short(
    house: House, hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    times: list[int] = []

    @workflow
    async def approve(ctx: Context) -> int:
        times.append(1)
        for number in range(5 if len(times) == 1 else 0):
            await ctx.call(first, number)
        await ctx.wait(signal("go"))
        return 1

    await ran(house, hf, approve)
    assert "made 'first#1', 'first#2', 'first#3' and 2 more before" in told(caplog)[0]


async def test_a_node_that_asks_the_same_is_not_warned_of(
    house: House, hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    """Also with calls inside of calls, with keys, and after a failed attempt."""
    times: list[int] = []

    @workflow(retry=Retry(attempts=3, backoff=0))
    async def approve(ctx: Context) -> int:
        times.append(1)
        await ctx.call(outer)
        await ctx.with_options(key="k").call(second, 1)
        if len(times) == 1:
            raise ValueError("in the middle")
        await ctx.wait(signal("go"))
        await ctx.call(first, 2)
        return 1

    await ran(house, hf, approve)
    assert len(times) == 3
    assert told(caplog) == []
