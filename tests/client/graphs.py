"""Graphs that the tests of the client run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypedDict

from holdfast import Context, Graph, hours, signal, workflow

APPROVED = signal("approved", bool)


@dataclass
class Order:
    item: str
    cents: int = 0
    approved: bool = False
    at: datetime | None = None
    scan: bytes = b""


orders = Graph("orders", Order)


@orders.node
async def price(order: Order) -> Order:
    return replace(order, cents=100)


@orders.node
async def approve(order: Order, ctx: Context) -> Order:
    answer = await ctx.wait(APPROVED, max_wait=hours(2), about={"item": order.item})
    return replace(order, approved=answer)


orders.route(price, approve)


@dataclass
class Receipt:
    number: int
    paid_at: datetime


@workflow
async def paying(order: Order) -> Receipt:
    return Receipt(order.cents + 1, order.at or datetime.fromtimestamp(0))


@workflow
async def greeting(ctx: Context) -> str:
    return "hello"


class Mood(TypedDict, total=False):
    mood: str


failing = Graph("failing", Mood)


@failing.node
async def fail(state: Mood) -> Mood:
    if state["mood"] == "bad":
        raise ValueError("not today")
    return state


GRAPHS = [orders, paying, greeting, failing]
