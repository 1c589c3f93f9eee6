"""Callbacks in tests of one node: no server is needed, and the test sees what was made."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from holdfast import Context, Graph, signal
from holdfast.errors import UnknownSignal
from holdfast.testing import FakeContext


@dataclass
class Order:
    address: str = ""
    paid: int = 0


graph = Graph("orders", Order, signals=[signal("payment", int)])


@graph.node
async def pay(order: Order, ctx: Context) -> Order:
    address = await ctx.callback("payment")
    return replace(order, address=address, paid=await ctx.wait(signal("payment", int)))


async def test_a_fake_context_makes_addresses() -> None:
    ctx = FakeContext(signals={"payment": 5})
    done = await graph.run_node(pay, Order(), ctx=ctx)
    assert done.paid == 5
    assert done.address == "https://holdfast.invalid/v1/callbacks/payment-1"
    assert ctx.callbacks == ["payment"]


async def test_a_fake_context_knows_the_declared_signals() -> None:
    other = Graph("other", Order, signals=[signal("payment", int)])

    @other.node
    async def ask(order: Order, ctx: Context) -> Order:
        await ctx.callback("unknown")
        return order

    with pytest.raises(UnknownSignal, match="declares the signals payment"):
        await other.run_node(ask, Order(), ctx=FakeContext())
