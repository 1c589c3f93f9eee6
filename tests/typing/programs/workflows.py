"""Workflows as type checkers see them: the signature gives the types of input and result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

from holdfast import Context, Holdfast, Workflow, workflow


@dataclass
class Order:
    number: int


@dataclass
class Receipt:
    number: int


@workflow
async def both(order: Order, ctx: Context) -> Receipt:
    return Receipt(order.number)


@workflow
async def input_only(order: Order) -> Receipt:
    return Receipt(order.number)


@workflow
async def context_only(ctx: Context) -> int:
    return 1


@workflow
async def neither() -> str:
    return ""


@workflow
def plain_both(order: Order, ctx: Any) -> Receipt:
    return Receipt(order.number)


@workflow
def plain_input(order: str) -> list[Receipt]:
    return []


@workflow
def plain_neither() -> None:
    return None


@workflow(name="named", version=2)
async def named(order: Order, ctx: Context) -> Receipt:
    return Receipt(order.number)


@workflow(version=2)
async def named_context(ctx: Context) -> int:
    return 1


@workflow(version=2)
def named_plain(order: Order) -> Receipt:
    return Receipt(order.number)


assert_type(both, Workflow[Order, Receipt])
assert_type(input_only, Workflow[Order, Receipt])
assert_type(context_only, Workflow[None, int])
assert_type(neither, Workflow[None, str])
assert_type(plain_both, Workflow[Order, Receipt])
assert_type(plain_input, Workflow[str, list[Receipt]])
assert_type(plain_neither, Workflow[None, None])
assert_type(named, Workflow[Order, Receipt])
assert_type(named_context, Workflow[None, int])
assert_type(named_plain, Workflow[Order, Receipt])

other: Workflow[str, Receipt] = both  # wrong: the input of another type


async def start(hf: Holdfast) -> None:
    run = await hf.start(both, Order(4))
    assert_type(await run.result(), Receipt)
    assert_type(await (await hf.start(context_only)).result(), int)
    await hf.start(both, Receipt(4))  # wrong: not the input
    await hf.start(plain_input, 4)  # wrong: not a text
    assert_type(await hf.run("a", graph=both).result(), Receipt)


@workflow
async def parent(order: Order, ctx: Context) -> Receipt:
    child = await ctx.start(both, order)
    assert_type(await child.result(), Receipt)
    await ctx.run(both, 4)  # wrong: not an order
    return await ctx.run(both, order)


workflow(version="2")  # wrong: not a number
workflow(expire=3)  # wrong: no such option
