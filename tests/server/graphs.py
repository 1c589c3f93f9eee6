"""Graphs that the tests of the service run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdfast import Context, Graph, signal

APPROVED = signal("approved", bool)


@dataclass
class Order:
    item: str
    cents: int = 0
    approved: bool = False


orders = Graph("orders", Order)


@orders.node
async def price(order: Order) -> Order:
    return replace(order, cents=100)


@orders.node
async def approve(order: Order, ctx: Context) -> Order:
    return replace(order, approved=await ctx.wait(APPROVED))


orders.route(price, approve)

GRAPHS = [orders]
