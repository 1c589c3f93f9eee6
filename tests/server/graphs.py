"""Graphs that the tests of the service run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdfast import Context, Graph, signal, tool

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

broken = Graph("broken", Order)


@broken.node
async def break_down(order: Order) -> Order:
    raise ValueError("out of paper")


@tool(at_most_once=True)
def pay() -> str:
    raise ConnectionError("torn")


paying = Graph("paying", Order)


@paying.node
async def pay_once(order: Order, ctx: Context) -> Order:
    return replace(order, item=await ctx.call(pay))


priced = Graph("priced", Order)


@priced.node(name="price")
async def price_child(order: Order) -> Order:
    return replace(order, cents=200)


family = Graph("family", Order)


@family.node
async def ask_child(order: Order, ctx: Context) -> Order:
    await ctx.run(priced, order, id=f"{ctx.run_id}-child")
    return order


MORE = signal("more", Order)
chat = Graph("chat", Order, signals=[MORE])


@chat.node
async def listen(order: Order, ctx: Context) -> Order:
    return await ctx.wait(MORE)


called_back = Graph("called_back", Order)


@called_back.node
async def give_address(order: Order, ctx: Context) -> Order:
    return replace(order, item=await ctx.callback(APPROVED))


@called_back.node
async def wait_for_call(order: Order, ctx: Context) -> Order:
    return replace(order, approved=await ctx.wait(APPROVED))


called_back.route(give_address, wait_for_call)

GRAPHS = [orders, chat, broken, paying, family, priced, called_back]
