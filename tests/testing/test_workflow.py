"""Workflows in tests: the function is called with a fake context, or its run with the kit."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import BlockingContext, Context, RunFilter, days, signal, timer, workflow
from holdfast.errors import InvalidInput, InvalidState, RunFailed
from holdfast.testing import FakeContext, MadeCall, NotProvided, StartedChild, TestKit, raises

APPROVED = signal("approved", bool)


@dataclass
class Order:
    number: int
    total: float = 0.0


@dataclass
class Receipt:
    order: int
    payment: str


async def charge(number: int, total: float) -> str:
    return f"{number}: {total}"


@workflow
async def pay(order: Order, ctx: Context) -> Receipt:
    if not await ctx.wait(APPROVED, max_wait=days(5)):
        raise ValueError("not approved")
    return Receipt(order.number, await ctx.call(charge, order.number, order.total))


@workflow
async def count(ctx: Context) -> int:
    return 3


@workflow
async def pay_all(orders: list[Order], ctx: Context) -> list[Receipt]:
    return [await ctx.run(pay, order) for order in orders]


@workflow
def pay_plainly(order: Order, ctx: BlockingContext) -> Receipt:
    return ctx.run(pay, order)


def paid(order: Order) -> Receipt:
    return Receipt(order.number, "paid")


async def test_a_workflow_is_called_with_a_fake_context() -> None:
    ctx = FakeContext(calls={charge: "p-1"}, signals={"approved": [True]})
    assert await pay(Order(7, 9.0), ctx) == Receipt(7, "p-1")
    assert ctx.calls == [MadeCall("charge", (7, 9.0))]
    with pytest.raises(ValueError, match="not approved"):
        await pay(Order(7), FakeContext(signals={"approved": [False]}))
    with pytest.raises(NotProvided, match="'charge'"):
        await pay(Order(7), FakeContext(signals={"approved": [True]}))


async def test_a_fake_child_of_a_workflow_gives_the_result_of_its_function() -> None:
    ctx = FakeContext(children={pay: paid})
    assert await pay_all([Order(1), Order(2)], ctx) == [Receipt(1, "paid"), Receipt(2, "paid")]
    assert ctx.children[1] == StartedChild("pay", Order(2), "child-2")
    for given in (Receipt(5, "x"), {"order": 5, "payment": "x"}):
        assert await pay_all([Order(1)], FakeContext(children={"pay": given})) == [Receipt(5, "x")]
    with pytest.raises(RunFailed, match="ValueError: no"):
        await pay_all([Order(1)], FakeContext(children={pay: raises(ValueError("no"))}))
    with pytest.raises(InvalidState, match="does not match its type"):
        await pay_all([Order(1)], FakeContext(children={pay: 5}))
    wrong: Any = "an order"
    with pytest.raises(InvalidInput):
        await pay_all([wrong], FakeContext(children={pay: paid}))


async def test_a_fake_child_without_an_input_and_one_of_several() -> None:
    async def function(ctx: Context) -> list[Any]:
        started = await ctx.start(pay, Order(1))
        answer = await ctx.wait_any(started, timer(5))
        return [answer.index, answer.payload, await ctx.run(count)]

    ctx = FakeContext(children={pay: paid, count: 4})
    assert await function(ctx) == [0, Receipt(1, "paid"), 4]


async def test_a_child_of_an_earlier_node_that_is_a_workflow() -> None:
    async def typed(ctx: Context) -> Receipt:
        return await ctx.child("before", pay).result()

    async def first(ctx: Context) -> Any:
        return (await ctx.wait_any(ctx.child("before", pay), timer(5))).payload

    async def untyped(ctx: Context) -> Any:
        await ctx.start(pay, Order(1), id="before")
        return await ctx.child("before").result()

    provided: dict[Any, Any] = {"before": Receipt(1, "x")}
    assert await typed(FakeContext(children=provided)) == Receipt(1, "x")
    assert await first(FakeContext(children=provided)) == Receipt(1, "x")
    # As in a run: without the program, a result has its stored form.
    assert await untyped(FakeContext(children=provided)) == {"order": 1, "payment": "x"}


async def test_the_kit_runs_a_workflow_and_its_children(holdfast_kit: TestKit) -> None:
    kit = holdfast_kit.serves(pay, pay_all, pay_plainly)
    run = await kit.hf.start(pay_all, [Order(1, 5.0)], id="all")
    plain = await kit.hf.start(pay_plainly, Order(2, 6.0), id="plain")
    await kit.settled()
    await kit.skip(days(3))
    children = (await kit.hf.list(RunFilter(graph="pay"))).runs
    await asyncio.gather(*(kit.hf.run(each.id).signal(APPROVED, True) for each in children))
    await kit.settled()
    assert await run.result() == [Receipt(1, "1: 5.0")]
    assert await plain.result() == Receipt(2, "2: 6.0")
    late = await kit.hf.start(pay, Order(3))
    await kit.skip(days(5))
    assert (await late.get()).status == "failed"
