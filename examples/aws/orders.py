"""An order that charges a card, waits for an approval and ships."""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdfast import Context, Graph, days, signal


@dataclass
class Order:
    number: str
    cents: int
    receipt: str = ""
    shipped: bool = False


graph = Graph("order", Order)
APPROVED = signal("approved", bool)


async def charge(number: str, cents: int, *, idempotency_key: str) -> str:
    """Stand for a payment service, which charges once for each key."""
    print(f"charging {number}: {cents} ({idempotency_key})", flush=True)
    return f"receipt of {number}"


@graph.node
async def pay(order: Order, ctx: Context) -> Order:
    return replace(order, receipt=await ctx.call(charge, order.number, order.cents))


@graph.node
async def approve(order: Order, ctx: Context) -> Order:
    return replace(order, shipped=await ctx.wait(APPROVED, max_wait=days(3)))


graph.route(pay, approve)
