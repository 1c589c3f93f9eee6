"""Programs with mistakes: a type checker finds each line that is marked, and no other.

What the marked line of a decorator says is about the function below it. Where the two checkers find
a mistake in different lines, each line says for which of them it is marked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypedDict

from holdfast import (
    Agent,
    Answer,
    BlockingContext,
    Child,
    Context,
    Graph,
    Holdfast,
    Program,
    RunFilter,
    RunHandle,
    SignalName,
    Tool,
    agent,
    days,
    signal,
    sync,
    timer,
    tool,
)


@dataclass
class Order:
    number: int
    note: str = ""


@dataclass
class Receipt:
    total: int


class Other(TypedDict):
    zzz: int


class Noted(TypedDict):
    note: str


orders = Graph("orders", Order)
receipts = Graph("receipts", Receipt)
others = Graph("others", Other)
loose = Graph("loose", dict)
numbered = Graph(3, Order)  # wrong: the name is a text
late = Graph("late", Order, expire=days(3))  # wrong: the option is called expires
lane = Graph("lane", Order, reducers={"note": "concat"})  # wrong: there is no such reducer

# --- nodes ----------------------------------------------------------------------------------------


@orders.node  # wrong: another state
async def other_state(order: Other) -> None: ...


@orders.node  # wrong: a number is no change of the state
async def number(order: Order) -> int:
    return 3


@orders.node  # wrong: another state, and a number
async def both(order: Other) -> int:
    return 3


@orders.node  # wrong: a dict has no known fields; use a TypedDict or the state
async def untyped_changes(order: Order) -> dict[str, str]:
    return {"number": "wrong type"}


@orders.node  # wrong for pyright: it infers a dict
async def unannotated(order: Order, ctx: Context):  # wrong for mypy: no annotation of the result
    return {"number": "wrong type"}


@orders.node  # wrong: another state comes back
async def other_result(order: Order) -> Receipt:
    return Receipt(3)


@orders.node  # wrong: no state
async def stateless() -> None: ...


@orders.node(name="named")  # wrong: a number is no change of the state
def plain_number(order: Order) -> int:
    return 3


@orders.node(name="texts")  # wrong: another state
def plain_state(text: str) -> None: ...


@orders.node(retries=3)  # wrong: the option is called retry
async def optioned(order: Order) -> None: ...


@orders.node(timeout=[3], pausable="never")  # wrong: not one of the values
async def paused(order: Order) -> None: ...


@loose.node  # wrong: a text is no state
async def loose_text(state: dict[str, Any]) -> str:
    return ""


@orders.node
async def fields(order: Order) -> Noted:
    print(order.nope)  # wrong: the state has no such field
    return {"note": 3}  # wrong: the field is a text


@orders.node
async def check(order: Order) -> Order:
    return replace(order, note="checked")


@orders.node
async def pay(order: Order) -> None: ...


orders.route(check, 42)  # wrong: a number is no node
orders.route(check, None)  # wrong: None is no node
orders.choose(pay, lambda order: order.nope)  # wrong: the state has no such field


def choose_by_receipt(receipt: Receipt) -> str:
    return str(receipt.total)


orders.choose(pay, choose_by_receipt)  # wrong: another state
orders.choose(pay, check)  # wrong: a node is no chooser
orders.fork(pay, [check, 3], join=pay)  # wrong: a number is no node
orders.each(pay, check, over="lines", into=check, join=pay)  # wrong: the name of a field
orders.each(pay, check, over="lines", into="line", join=pay, on_failure="go on")  # wrong: a value
orders.include("receipts")  # wrong: a graph, and not its name

# --- calls ----------------------------------------------------------------------------------------


async def charge(amount: int) -> str:
    return str(amount)


def count(text: str) -> int:
    return len(text)


async def mail(text: str, *, idempotency_key: str) -> int:
    return len(text)


async def work(path: str, ctx: Context) -> str:
    return path


@tool
async def fetch(uri: str) -> bytes:
    return uri.encode()


@tool(idempotent=False)
async def book(room: int, *, idempotency_key: str = "") -> str:
    return str(room)


@orders.node
async def make_calls(order: Order, ctx: Context) -> None:
    await ctx.call(charge, "not an int")  # wrong: a text is no amount
    await ctx.call(charge, 3, nope=1)  # wrong: no such parameter
    await ctx.call(charge)  # wrong: an argument is missing
    await ctx.call(count, 3)  # wrong: a number is no text
    await ctx.call(mail, 3)  # wrong: a number is no text
    await ctx.call(mail, "hello", "you")  # wrong: one argument too many
    await ctx.call(work, 3)  # wrong: a number is no path
    await ctx.call(fetch, 3)  # wrong: a number is no text
    await ctx.call(book, "12")  # wrong: a text is no number
    await ctx.call(3)  # wrong: no function
    await ctx.with_options(key="k").call(charge, "3")  # wrong: a text is no amount
    receipt: int = await ctx.call(charge, 3)  # wrong: it returns a text
    ctx.with_options(tries=3)  # wrong: no such option
    print(receipt, await ctx.call(charge, order.note))  # wrong: a text is no amount
    await fetch(3)  # wrong: a number is no text
    text: str = await fetch("https://…")  # wrong: it returns bytes
    print(text)


def print_tool(one: Tool[[int], Any]) -> None: ...


print_tool(fetch)  # wrong: it takes a text
tool(idempotent="no")  # wrong: True or False


@orders.node
def blocking_node(order: Order, ctx: BlockingContext) -> None:
    ctx.call(charge, "3")  # wrong: a text is no amount
    number: int = ctx.call(charge, 3)  # wrong: it returns a text
    answer = ctx.model("small", "hi", output=Receipt)
    print(number, answer.value.nope)  # wrong: the value has no such field
    ctx.run(receipts, Order(1))  # wrong: another input
    print(ctx.nope)  # wrong: no such attribute


# --- models ---------------------------------------------------------------------------------------

clerk = agent("small", [fetch], output=Receipt)
agent("small", [fetch], turns=3)  # wrong: the option is called turns_max
agent("small", ["fetch"])  # wrong: a function, and not its name
other_clerk: Agent[Order] = clerk  # wrong: it answers with a receipt


def is_cheap(answer: Answer[Receipt]) -> bool:
    return answer.value.totl < 3  # wrong: the value has no such field


@orders.node
async def ask(order: Order, ctx: Context) -> Order:
    answer = await ctx.model("small", "hi", output=Receipt, check=is_cheap)
    print(answer.value.nope)  # wrong: the value has no such field
    note: str = answer.value  # wrong: the value is a receipt
    await ctx.model("small", "hi", check=is_cheap)  # wrong: the check is for receipts
    await ctx.model("small", "hi", tempature=1)  # wrong: no such option
    await ctx.model("small", 3)  # wrong: a number is no prompt
    talk = await clerk(ctx, note)
    print(talk.value.nope)  # wrong: the value has no such field
    return talk.value  # wrong: the value is a receipt


# --- waits and children ---------------------------------------------------------------------------

approved = signal("approved", bool)
texts: SignalName[str] = approved  # wrong: its payload is a bool


@orders.node
async def wait(order: Order, ctx: Context) -> Noted:
    answer: str = await ctx.wait(approved)  # wrong: the payload is a bool
    await ctx.wait("approved")  # wrong: signal("approved")
    await ctx.wait(approved, timeout=3)  # wrong: the option is called max_wait
    await ctx.wait_any(approved, "reply")  # wrong: signal("reply")
    await ctx.wait_any(approved, timer([answer]))  # wrong: a list is no duration
    return {"note": await ctx.wait(approved)}  # wrong: the payload is a bool


@orders.node
async def start_children(order: Order, ctx: Context) -> None:
    await ctx.start(receipts, {"nope": 1})  # wrong: the input is a receipt
    await ctx.start(receipts, order)  # wrong: the input is a receipt
    child = await ctx.start(receipts, Receipt(3))
    print((await child.result()).nope)  # wrong: the result has no such field
    number: int = await ctx.run(receipts, Receipt(3))  # wrong: the result is a receipt
    known: Child[Order] = ctx.child("one", receipts)  # wrong: the result is a receipt
    await ctx.start("receipts", Receipt(3))  # wrong: a graph, and not its name
    print(number, known)


# --- runs -----------------------------------------------------------------------------------------


async def show(handle: RunHandle[Receipt]) -> None:
    print(await handle.result())


async def main(hf: Holdfast, program: Program[Order, Receipt]) -> None:
    hf.worker([orders], concurency=3)  # wrong: no such option
    hf.worker([orders], concurrency="3")  # wrong: a number
    hf.worker(orders)  # wrong: a list of graphs
    await hf.start(orders, Other(zzz=1))  # wrong: the input is an order
    await hf.start(orders, {"number": 1})  # wrong: the input is an order
    await hf.start(others, Order(1))  # wrong: the input is another one
    await hf.start(orders, Order(1), expire=3)  # wrong: the option is called expires
    await hf.start(program, Receipt(3))  # wrong: the input is an order
    run = await hf.start(orders, Order(1))
    receipt: Receipt = await run.result()  # wrong: the result is an order
    print((await run.result()).nope, receipt)  # wrong: the result has no such field
    order: Order = await (await hf.start(program, Order(1))).result()  # wrong: it is a receipt
    print((await hf.run("one", graph=receipts).result()).nope, order)  # wrong: no such field
    await run.signal(approved, "yes")  # wrong: the payload is a bool
    await run.signal(approved)  # wrong: a payload is missing
    await run.signal(3, True)  # wrong: the name of a signal
    await hf.list(RunFilter(status="done"))  # wrong: no such status
    await show(run)  # wrong: its result is an order
    row = await run.get()
    print(row.stats)  # wrong: no such field
    print(row.status == "done")  # wrong: no such status


def blocking(hf: sync.Holdfast) -> None:
    hf.worker([orders], concurency=3)  # wrong: no such option
    hf.start(orders, Other(zzz=1))  # wrong: the input is an order
    run = hf.start(orders, Order(1))
    receipt: Receipt = run.result()  # wrong: the result is an order
    run.signal(approved, "yes")  # wrong: the payload is a bool
    print(receipt, hf.run("one", graph=receipts).result().nope)  # wrong: no such field
