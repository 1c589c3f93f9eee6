"""What a workflow of ten calls costs, in write units: no more than ten nodes of the same values."""

from __future__ import annotations

from typing import Any

from holdfast import Context, signal, workflow
from tests.engine.support import RUN_PURPOSES, House, calls_of, run_units
from tests.engine.test_units import INPUT, noise, ordinary, ordinary_state


def step(number: int) -> dict[str, Any]:
    return ordinary(number)


def noisy_step(number: int) -> dict[str, Any]:
    return noise(number)


@workflow
async def ten(document: dict[str, str], ctx: Context) -> int:
    return len([await ctx.call(step, number) for number in range(10)])


@workflow
async def ten_of_noise(document: dict[str, str], ctx: Context) -> int:
    return len([await ctx.call(noisy_step, number) for number in range(10)])


@workflow
async def ten_with_everything(document: dict[str, str], ctx: Context) -> dict[str, Any]:
    steps = [await ctx.call(step, number) for number in range(10)]
    return document | {name: value for each in steps for name, value in each.items()}


@workflow
async def ten_with_a_pause(document: dict[str, str], ctx: Context) -> bool:
    for number in range(4):
        await ctx.call(step, number)
    approved = bool(await ctx.wait(signal("decision")))
    for number in range(4, 10):
        await ctx.call(step, number)
    return approved


async def units(house: House, flow: Any) -> tuple[float, Any, Any]:
    hf = house.open()
    async with house.worker(hf, flow) as worker:
        hf.meter.reset()
        run = await hf.start(flow, INPUT, id="doc-42")
        await house.quiet(worker)
    return run_units(hf), calls_of(hf, *RUN_PURPOSES), await run.result(timeout=60)


async def test_ten_calls_cost_no_more_than_ten_nodes(either: House) -> None:
    cost, calls, result = await units(either, ten)
    # made 3, ten records 10, ended 3: each call's result is durable before the next call begins,
    # and the last one shares its record with the end
    assert cost == 16
    assert calls == {("head", "write"): 2, ("journal", "write"): 10}
    assert result == 10


async def test_ten_calls_that_do_not_compress_cost_no_more_than_ten_nodes(either: House) -> None:
    cost, _, result = await units(either, ten_of_noise)
    assert cost == 26
    assert result == 10


async def test_a_result_of_all_values_costs_its_own_size_besides(either: House) -> None:
    cost, _, result = await units(either, ten_with_everything)
    assert cost == 17
    assert result == INPUT | ordinary_state()


async def test_ten_calls_with_a_pause_cost_one_unit_more_than_ten_nodes(either: House) -> None:
    hf = either.open()
    async with either.worker(hf, ten_with_a_pause) as worker:
        hf.meter.reset()
        run = await hf.start(ten_with_a_pause, INPUT, id="doc-42")
        await either.quiet(worker)
        await run.signal("decision", True)
        assert await run.result(timeout=60) is True
    # as ten nodes with a pause, 25; besides one record: that the signal was taken is durable before
    # the next call, which may depend on it
    assert run_units(hf) == 26
