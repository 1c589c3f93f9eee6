"""Graphs that the tests of the service run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

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


@dataclass
class Warranty:
    months: int = 24
    note: str = ""


@dataclass
class Sale:
    item: str
    quorum: int = 1
    assignees: list[str] = field(default_factory=list[str])
    status: str = ""
    by: str | None = None
    comment: str = ""
    months: int = 0
    votes: int = 0


reviewed = Graph("reviewed", Sale)


@reviewed.node
async def ask_reviewers(sale: Sale, ctx: Context) -> Sale:
    decision = await ctx.review(
        f"Sell {sale.item}?",
        show=["item"],
        form=Warranty,
        values=Warranty(),
        assignees=sale.assignees,
        quorum=sale.quorum,
    )
    return replace(
        sale,
        status=decision.status,
        by=decision.by,
        comment=decision.comment,
        months=decision.values.months if decision.approved else 0,
        votes=len(decision.votes),
    )


@tool(approval=True)
def refund(item: str, cents: int) -> str:
    return f"{item}: {cents}"


refunding = Graph("refunding", Order)


@refunding.node
async def pay_back(order: Order, ctx: Context) -> Order:
    return replace(order, item=await ctx.call(refund, order.item, order.cents))


GRAPHS = [orders, chat, broken, paying, family, priced, called_back, reviewed, refunding]

# Not one of GRAPHS: most tests need no maps.
mapped = Graph("mapped", Order)


@mapped.item
async def count_page(index: int, ctx: Context) -> str:
    if index == 1:
        raise ValueError(f"no {ctx.given['item']}")
    return f"{index} {ctx.given['item']}"


@mapped.node
async def count_pages(order: Order, ctx: Context) -> None:
    await ctx.map(count_page, 3, tolerate=1, given={"item": order.item})
