"""Programs that use Holdfast as the guides show: type checkers find nothing wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NotRequired, TypedDict, assert_type

import msgspec
import pydantic

from holdfast import (
    END,
    Agent,
    Answer,
    BlockingContext,
    Budget,
    Caller,
    Child,
    Context,
    Conversation,
    Duration,
    Graph,
    Holdfast,
    OnBusy,
    Program,
    Recording,
    Retry,
    Run,
    RunEntry,
    RunFilter,
    RunHandle,
    SessionQueueEntry,
    SignalName,
    Status,
    Tool,
    WaitAnswer,
    agent,
    days,
    hours,
    signal,
    sync,
    timer,
    tool,
)

# --- states ---------------------------------------------------------------------------------------


@dataclass
class Order:
    number: int
    note: str = ""
    lines: tuple[str, ...] = ()
    line: str = ""


class Noted(TypedDict):
    note: str


class Paid(TypedDict, total=False):
    note: str
    number: int


class Verdict(msgspec.Struct):
    ok: bool
    reason: str = ""


class Page(pydantic.BaseModel):
    url: str
    text: str = ""


class Letter(TypedDict):
    to: str
    text: NotRequired[str]


orders = Graph("orders", Order)
verdicts = Graph("verdicts", Verdict, version=2, expires=days(3))
pages = Graph("pages", Page)
letters = Graph("letters", Letter, reducers={"text": "append"})
loose = Graph("loose", dict)
looser = Graph("looser", dict[str, Any])
assert_type(orders, Graph[Order])
assert_type(letters, Graph[Letter])
assert_type(loose, Graph[dict[str, Any]])
assert_type(looser, Graph[dict[str, Any]])

# --- nodes ----------------------------------------------------------------------------------------


@orders.node
async def check(order: Order) -> Order:
    return replace(order, note="checked")


@orders.node
async def note(order: Order, ctx: Context) -> Noted:
    return {"note": ctx.run_id}


@orders.node(retry=Retry(attempts=3), timeout=30, max_pause=days(1))
async def pay(order: Order, ctx: Context) -> Paid | None:
    return None if order.number < 3 else {"number": 1}


@orders.node(name="settle")
async def settle_order(order: Order) -> Order | Paid | None:
    return order


@orders.node
async def log(order: Order) -> None:
    print(order.number)


@orders.node
def plain(order: Order, ctx: BlockingContext) -> Order:
    text = ctx.call(scan, "a.pdf")
    assert_type(text, str)
    assert_type(ctx.wait(approved), bool)
    assert_type(ctx.run(verdicts, Verdict(True)), Verdict)
    assert_type(ctx.model("small", "hi", output=Verdict).value, Verdict)
    assert_type(ctx.with_options(key="k", record="none").call(scan, "a.pdf"), str)
    assert_type(ctx.start(verdicts, Verdict(True)).result(), Verdict)
    assert_type(ctx.run_id, str)
    return order


@orders.node
def plainer(order: Order) -> Noted:
    return {"note": str(order.number)}


@verdicts.node
async def decide(verdict: Verdict) -> Verdict:
    return verdict


@pages.node
async def fetch_page(page: Page) -> Page:
    return page.model_copy(update={"text": "…"})


@letters.node
async def write(letter: Letter) -> Letter:
    return {"to": letter["to"], "text": "Dear …"}


@letters.node
async def sign(letter: Letter) -> Noted:
    return {"note": letter["to"]}


@loose.node
async def anything(state: dict[str, Any]) -> dict[str, Any]:
    return {"count": state["count"] + 1}


@loose.node
def any_text(state: dict[str, Any]) -> dict[str, str]:
    return {"text": "…"}


async def call_node_like_a_function() -> None:
    assert_type(await check(Order(1)), Order)
    assert_type(plainer(Order(1)), Noted)


orders.route(check, note, "pay")
orders.route(log, END)
orders.choose(pay, lambda order: "settle" if order.number > 3 else log)


def next_of(order: Order) -> Literal["plain", "log"]:
    return "plain" if order.note else "log"


orders.choose("settle", next_of, to=["plain", log])
orders.fork(plain, [plainer, note], join=log, on_failure="spare")
orders.each(note, plainer, over="lines", into="line", join=log)
letters.include(pages, takes={"url": "to"}, gives={"text": "text"})

# --- calls ----------------------------------------------------------------------------------------


async def scan(path: str, *, pages: int = 1) -> str:
    return path * pages


def read(path: str) -> bytes:
    return path.encode()


async def mail(text: str, *, idempotency_key: str) -> int:
    return len(text + idempotency_key)


async def move(source: str, target: str, idempotency_key: str) -> None: ...


async def ping(*, idempotency_key: str) -> None: ...


async def book(room: str, *, guests: int = 2, idempotency_key: str = "") -> str:
    return room + idempotency_key


def save(text: str, idempotency_key: str) -> int:
    return len(text)


async def work(path: str, ctx: Context) -> str:
    ctx.heartbeat()
    return path


class Mailer:
    async def send(self, text: str, *, idempotency_key: str) -> int:
        return len(text)


@tool
async def look_up(uri: str) -> bytes:
    return uri.encode()


@tool(idempotent=False, retry=Retry(attempts=2))
async def charge(amount: int, *, currency: str = "EUR", idempotency_key: str = "") -> str:
    return "receipt"


@tool
def count(words: Sequence[str]) -> int:
    return len(words)


@orders.node
async def make_calls(order: Order, ctx: Context) -> None:
    assert_type(await ctx.call(scan, "a.pdf"), str)
    assert_type(await ctx.call(scan, "a.pdf", pages=3), str)
    assert_type(await ctx.call(read, "a.pdf"), bytes)
    assert_type(await ctx.call(mail, "hello"), int)
    await ctx.call(move, "here", "there")
    await ctx.call(ping)
    assert_type(await ctx.call(book, "12", guests=3), str)
    assert_type(await ctx.call(save, "hello"), int)
    assert_type(await ctx.call(work, "a.pdf"), str)
    assert_type(await ctx.call(Mailer().send, "hello"), int)
    assert_type(await ctx.call(look_up, "https://…"), bytes)
    assert_type(await ctx.call(charge, 3, currency="USD"), str)
    assert_type(await ctx.call(count, ["a"]), int)
    assert_type(await ctx.call(lambda: 3), int)
    caller: Caller = ctx.with_options(key="k", timeout=5, retry=Retry(attempts=2), record="none")
    assert_type(await caller.call(scan, "a.pdf"), str)
    assert_type(await caller.call(mail, "hello"), int)
    assert_type(await look_up("https://…"), bytes)
    assert_type(count(["a"]), int)


def run_tool(one: Tool[[str], Any]) -> None:
    one("https://…")


# --- models ---------------------------------------------------------------------------------------


def is_decided(answer: Answer[Verdict]) -> bool:
    return answer.value.ok


def is_long(answer: Answer) -> bool:
    return len(answer.text) > 3


helper = agent("small", [look_up, read], system="Be brief.", output=Verdict, max_tokens=100)
talker = agent("small", [charge])
assert_type(helper, Agent[Verdict])
assert_type(talker, Agent[None])


@verdicts.node
async def ask(verdict: Verdict, ctx: Context) -> Verdict:
    text = await ctx.model("small", "hi", fallback="large", max_tokens=10, stream=True)
    assert_type(text, Answer[None])
    assert_type(text.text, str)
    messages = [{"role": "user", "content": "hi"}]
    answer = await ctx.model("small", messages, output=Verdict, check=is_decided)
    assert_type(answer, Answer[Verdict])
    await ctx.model("small", "hi", check=is_long, share=hours(1))
    chosen = await ctx.model("small", "hi", output=Literal["a", "b"])
    assert_type(chosen, Answer[Any])
    talk = await helper(ctx, "hi")
    assert_type(talk, Conversation[Verdict])
    return answer.value if talk.value.ok else verdict


# --- waits and children ---------------------------------------------------------------------------

approved = signal("approved", bool)
reply = signal("reply", Letter)
choice = signal("choice", Literal["yes", "no"])
anything_else = signal("anything")
assert_type(approved, SignalName[bool])
assert_type(reply, SignalName[Letter])

declared = Graph("declared", Order, signals=[approved, reply, choice])


@declared.node
async def wait(order: Order, ctx: Context) -> Noted:
    assert_type(await ctx.wait(approved, max_wait=days(2)), bool)
    assert_type((await ctx.wait(reply, about={"order": order.number}))["to"], str)
    assert_type(await ctx.wait(anything_else), Any)
    first: WaitAnswer = await ctx.wait_any(approved, reply, timer(hours(2)))
    await ctx.sleep(hours(1))
    return {"note": str(first.payload)}


@declared.node
async def start_children(order: Order, ctx: Context) -> Order:
    child = await ctx.start(verdicts, Verdict(True), id="first", budget=Budget(tokens=10))
    assert_type(child, Child[Verdict])
    assert_type(await child.result(), Verdict)
    assert_type(await ctx.run(letters, Letter(to="me")), Letter)
    assert_type(await ctx.run(loose, {"count": 1}), dict[str, Any])
    assert_type(await ctx.child("first", verdicts).result(), Verdict)
    assert_type(await ctx.child("first").result(), Any)
    assert_type(await ctx.run(orders), Order)
    await ctx.wait_any(child, timer(3))
    return order


# --- runs -----------------------------------------------------------------------------------------


def sequence_of(programs: Sequence[Program]) -> None: ...


async def result_of(handle: RunHandle[Order]) -> Order:
    return await handle.result(timeout=days(1))


async def show(handle: RunHandle) -> Status:
    row: Run = await handle.get()
    return row.status


async def run_any(hf: Holdfast, program: Program[Order, Verdict]) -> Verdict:
    run = await hf.start(program, Order(1))
    return await run.result()


async def main() -> None:
    models: Mapping[str, Any] = {}
    expires: Duration = hours(1)
    record: Recording = "none"
    on_busy: OnBusy = "reject"
    async with (
        Holdfast("sqlite://:memory:", models=models, record=record) as hf,
        hf.worker([orders, verdicts], concurrency=3, pools=[None, "gpu"]) as worker,
    ):
        run = await hf.start(orders, Order(1), session="s", on_busy=on_busy, expires=expires)
        assert_type(run, RunHandle[Order])
        assert_type(await run.result(), Order)
        assert_type(await result_of(run), Order)
        await show(run)
        assert_type(await (await hf.start(orders)).result(), Order)
        assert_type(await (await hf.start(letters, Letter(to="me"))).result(), Letter)
        assert_type(await (await hf.start(loose, {"count": 1})).result(), dict[str, Any])
        assert_type(await (await hf.start(pages, Page(url="…"))).result(), Page)
        assert_type(hf.run("one", graph=verdicts), RunHandle[Verdict])
        assert_type(await hf.run("one").result(), Any)
        await run.signal(approved, True)
        await run.signal(reply, Letter(to="me"))
        await run.signal(choice, "yes")
        await run.signal(anything_else)
        await run.signal("approved", True, signal_id="1")
        assert_type(await run.children(), list[RunEntry])
        assert_type(await hf.session_queue("s"), list[SessionQueueEntry])
        page = await hf.list(RunFilter(status="failed"), limit=10)
        assert_type(page.runs, list[RunEntry])
        async for entry in run.events():
            print(entry.kind, entry.cursor)
        print(worker.counts["finished"])
    sequence_of([orders, verdicts])


def blocking() -> None:
    with sync.Holdfast("sqlite://:memory:") as hf, hf.worker([orders], concurrency=3):
        run = hf.start(orders, Order(1))
        assert_type(run.result(), Order)
        assert_type(hf.run("one", graph=verdicts).result(), Verdict)
        assert_type(hf.run("one").result(), Any)
        run.signal(approved, True)
        run.signal("approved", True)
        assert_type(run.children(), list[RunEntry])
        assert_type(hf.session_queue("s"), list[SessionQueueEntry])
        for piece in run.tokens():
            print(piece.text)
