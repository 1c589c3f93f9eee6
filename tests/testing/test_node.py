"""One node by itself: the context is real, and answers only what the test provides."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Context, Graph, Retry, days, hours, signal, timer, tool, workflow
from holdfast.errors import (
    CallFailed,
    InvalidInput,
    InvalidRequest,
    InvalidResult,
    NotAwaited,
    NotPausable,
    RunFailed,
    UnknownSignal,
    WaitInsideTimeout,
    WaitTimedOut,
)
from holdfast.testing import (
    REAL,
    AskedWait,
    FakeContext,
    MadeCall,
    NotProvided,
    StartedChild,
    in_turn,
    raises,
    timed_out,
)
from tests.testing.flows import Order, approval, one_node


@dataclass
class Receipt:
    number: int


made: list[int] = []


@tool(retry=Retry(attempts=3, backoff=3600))
async def charge(order: int, idempotency_key: str) -> Receipt:
    made.append(order)
    return Receipt(order)


def fetch(url: str, *, deep: bool = False) -> str:
    made.append(0)
    return f"{url} {deep}"


async def run(function: Any, ctx: FakeContext | None = None, state: Any = None, **options: Any):
    graph = one_node(function, **options)
    return await graph.run_node("node", Order(7) if state is None else state, ctx=ctx)


# --- the state ------------------------------------------------------------------------------------


async def test_a_node_returns_the_state_as_its_run_would_have_it() -> None:
    @dataclass
    class Log:
        count: int = 0
        lines: list[str] = field(default_factory=list)

    graph = Graph("log", Log, reducers={"lines": "append"})

    @graph.node
    async def add(state: Log) -> dict[str, Any]:
        return {"count": state.count + 1, "lines": ["new"]}

    assert await graph.run_node("add", Log(1, ["old"])) == Log(2, ["old", "new"])
    assert await graph.run_node(add, {"count": 4}) == Log(5, ["new"])


async def test_what_a_run_would_refuse_is_refused() -> None:
    async def unknown(order: Order) -> dict[str, Any]:
        return {"nope": 1}

    async def wrong(order: Order) -> dict[str, Any]:
        return {"id": "seven"}

    async def writes(order: Order) -> dict[str, Any]:
        return {"id": 8}

    with pytest.raises(InvalidResult, match="unknown field"):
        await run(unknown)
    with pytest.raises(InvalidResult, match="id"):
        await run(wrong)
    with pytest.raises(InvalidResult, match="which its `writes` does not name"):
        await run(writes, writes=["log"])
    with pytest.raises(InvalidInput, match="id"):
        await run(writes, state={"id": "x"})
    with pytest.raises(InvalidRequest, match="its nodes are: ask"):
        await approval().run_node("nope", Order())
    with pytest.raises(InvalidRequest, match="takes a context: pass ctx=FakeContext"):
        await approval().run_node("ask", Order())


async def test_a_plain_node_gets_a_context_that_blocks() -> None:
    def plain(order: Order, ctx: Any) -> dict[str, list[str]]:
        return {"log": [ctx.call(fetch, "a"), str(ctx.wait(signal("go"))), ctx.run_id]}

    ctx = FakeContext(calls={fetch: "got"}, signals={"go": [1]}, run_id="r")
    assert (await run(plain, ctx)).log == ["got", "1", "r"]


async def test_errors_of_the_node_come_out_as_they_are() -> None:
    async def fails(order: Order) -> None:
        raise ZeroDivisionError("x")

    with pytest.raises(ZeroDivisionError):
        await run(fails, retry=Retry(attempts=5))


# --- calls ----------------------------------------------------------------------------------------


async def pay(order: Order, ctx: Context) -> dict[str, list[str]]:
    receipt = await ctx.call(charge, order.id)
    assert isinstance(receipt, Receipt)
    page = await ctx.with_options(key="page").call(fetch, "u", deep=True)
    return {"log": [str(receipt.number), page]}


async def test_calls_are_answered_converted_and_recorded() -> None:
    made.clear()
    ctx = FakeContext(calls={charge: {"number": 5}, "fetch": lambda url, deep: f"{url}{deep}"})
    assert (await run(pay, ctx)).log == ["5", "uTrue"]
    assert made == [], "the functions themselves are not called"
    assert ctx.calls == [MadeCall("charge", (7,)), MadeCall("fetch", ("u",), {"deep": True})]


async def test_what_the_engine_passes_is_optional_for_the_answers_of_a_test() -> None:
    @tool()
    async def keyed(amount: int, *, idempotency_key: str) -> str:
        raise AssertionError

    @tool()
    def nested(amount: int, *, ctx: Any, idempotency_key: str) -> Any:
        raise AssertionError

    @workflow
    async def asks(amount: int, ctx: Context) -> list[Any]:
        return [await ctx.call(keyed, amount=amount), await ctx.call(nested, amount=amount)]

    assert await asks(5, FakeContext(calls={keyed: "v", nested: lambda amount: "w"})) == ["v", "w"]
    with_key = in_turn(lambda amount, idempotency_key: f"{amount} {bool(idempotency_key)}")
    got = await asks(5, FakeContext(calls={keyed: with_key, nested: lambda **given: sorted(given)}))
    assert got == ["5 True", ["amount"]]


async def test_a_call_that_is_not_provided_fails_even_if_the_node_catches_it() -> None:
    made.clear()

    async def careless(order: Order, ctx: Context) -> None:
        try:
            await ctx.call(fetch, "u")
        except Exception:
            return

    for node in (pay, careless):
        with pytest.raises(NotProvided, match=r"pass FakeContext\(calls=\{'(charge|fetch)': res"):
            await run(node, FakeContext())
    assert made == []


async def test_real_calls_are_opted_in() -> None:
    made.clear()
    assert (await run(pay, FakeContext(calls=REAL))).log == ["7", "u True"]
    assert made == [7, 0]


async def test_failed_calls_are_repeated_as_declared() -> None:
    async def node(order: Order, ctx: Context) -> dict[str, list[str]]:
        return {"log": [str((await ctx.call(charge, 1)).number)]}

    ctx = FakeContext(calls={charge: in_turn(raises(ConnectionError), Receipt(2))})
    assert (await run(node, ctx)).log == ["2"]
    assert len(ctx.calls) == 1
    with pytest.raises(CallFailed, match="ConnectionError: gone") as failed:
        await run(node, FakeContext(calls={charge: raises(ConnectionError("gone"))}))
    assert failed.value.is_a(ConnectionError)
    with pytest.raises(NotProvided, match=r"'charge' is asked for once more, .* only 1 answers"):
        await run(node, FakeContext(calls={charge: in_turn(raises(ConnectionError))}))


async def test_an_answer_of_a_wrong_type_fails_as_the_function_would() -> None:
    with pytest.raises(Exception, match="charge"):
        await run(pay, FakeContext(calls={charge: "five"}))


async def test_a_forgotten_await_is_found() -> None:
    async def node(order: Order, ctx: Context) -> None:
        ctx.wait(signal("go"))  # pyright: ignore[reportUnusedCoroutine]

    with pytest.raises(NotAwaited, match=r"ctx\.wait\(\) at .*test_node\.py"):
        await run(node, FakeContext(signals={"go": [1]}))


# --- waits ----------------------------------------------------------------------------------------


async def test_waits_take_the_payloads_in_turn() -> None:
    async def node(order: Order, ctx: Context) -> dict[str, list[str]]:
        first = await ctx.wait(signal("go"), about={"page": 1}, max_wait=hours(1))
        second = await ctx.wait(signal("typed", Receipt))
        await ctx.sleep(days(3))
        return {"log": [first, str(second.number)]}

    ctx = FakeContext(signals={"go": ["a"], "typed": [Receipt(4)]})
    assert (await run(node, ctx)).log == ["a", "4"]
    assert ctx.waits == [AskedWait(("go",), {"page": 1}, 3600.0), AskedWait(("typed",))]
    assert ctx.sleeps == [259200.0]


async def test_waits_without_an_answer_fail() -> None:
    async def node(order: Order, ctx: Context) -> None:
        await ctx.wait(signal("go", int))
        await ctx.wait(signal("go", int))

    with pytest.raises(NotProvided, match=r"signals=\{'go': \[payload\]\}"):
        await run(node, FakeContext())
    with pytest.raises(NotProvided, match="another 'go'"):
        await run(node, FakeContext(signals={"go": [1]}))
    with pytest.raises(NotProvided, match="does not fit its type"):
        await run(node, FakeContext(signals={"go": ["one"]}))
    with pytest.raises(NotProvided, match="has no max_wait"):
        await run(node, FakeContext(signals={"go": timed_out}))


async def test_waits_time_out() -> None:
    async def node(order: Order, ctx: Context) -> None:
        await ctx.wait(signal("go"), max_wait=hours(1))

    async def several(order: Order, ctx: Context) -> None:
        await ctx.wait_any(signal("a"), signal("b"), max_wait=hours(1))

    with pytest.raises(WaitTimedOut):
        await run(node, FakeContext(signals={"go": timed_out}))
    with pytest.raises(WaitTimedOut):
        await run(several, FakeContext(signals={"b": timed_out}))


@pytest.mark.parametrize(
    ("signals", "index", "payload"), [({"b": [5]}, 1, 5), ({}, 2, None), ({"a": [1]}, 0, 1)]
)
async def test_the_first_of_several(signals: Any, index: int, payload: Any) -> None:
    found: list[Any] = []

    async def node(order: Order, ctx: Context) -> None:
        found.append(await ctx.wait_any(signal("a"), signal("b"), timer(5)))

    await run(node, FakeContext(signals=signals))
    assert (found[0].index, found[0].payload) == (index, payload)


async def test_the_rules_for_waits_are_those_of_a_run() -> None:
    async def node(order: Order, ctx: Context) -> None:
        await ctx.wait(signal("go"))

    async def inside(order: Order, ctx: Context) -> None:
        async with asyncio.timeout(5):
            await ctx.wait(signal("go"))

    with pytest.raises(NotPausable):
        await run(node, FakeContext(signals={"go": [1]}), pausable="no")
    with pytest.raises(WaitInsideTimeout):
        await run(inside, FakeContext(signals={"go": [1]}))
    graph = Graph("strict", Order, signals=[signal("other")])
    graph.node(node)
    with pytest.raises(UnknownSignal):
        await graph.run_node("node", Order(), ctx=FakeContext(signals={"go": [1]}))


async def test_a_test_may_have_a_timeout_around_all() -> None:
    """Nothing pauses in a FakeContext, so only a timeout of the node's own code is a mistake."""

    async def node(order: Order, ctx: Context) -> dict[str, bool]:
        return {"approved": await ctx.wait(signal("go"))}

    @workflow
    async def approve(order: Order, ctx: Context) -> Any:
        return await ctx.wait(signal("go"))

    async with asyncio.timeout(60):
        assert (await run(node, FakeContext(signals={"go": [True]}))).approved
        assert await approve(Order(), FakeContext(signals={"go": [7]})) == 7
        with pytest.raises(NotProvided, match="waits for 'go'"):
            await run(node, FakeContext())
        with pytest.raises(NotProvided, match="waits for 'go'"):
            await approve(Order(), FakeContext())
    ctx = FakeContext(signals={"go": [True]})
    assert (await asyncio.wait_for(run(node, ctx), 60)).approved
    assert await asyncio.wait_for(approve(Order(), FakeContext(signals={"go": [7]})), 60) == 7


# --- models and children --------------------------------------------------------------------------


async def test_models_answer_from_what_is_provided() -> None:
    async def node(order: Order, ctx: Context) -> dict[str, list[str]]:
        text = (await ctx.model("small", "hello", stream=True)).text
        value = (await ctx.model("large", "number?", output=Receipt, share=True)).value
        return {"log": [text, str(value.number)]}

    ctx = FakeContext(models={"small": "hi", "large": [Receipt(3)]})
    assert (await run(node, ctx)).log == ["hi", "3"]
    with pytest.raises(NotProvided, match=r"models=\{'small': answer\}"):
        await run(node, FakeContext())
    with pytest.raises(CallFailed, match="no answer left for question 1: user: 'hello'"):
        await run(node, FakeContext(models={"small": []}))


async def test_children_give_what_is_provided() -> None:
    child = approval()

    async def node(order: Order, ctx: Context) -> dict[str, list[str]]:
        first = await ctx.run(child, Order(2))
        started = await ctx.start(child, Order(3), id="mine")
        answer = await ctx.wait_any(started, timer(5))
        return {"log": [str(first.id), str(answer.index), str(answer.payload.id)]}

    ctx = FakeContext(children={child: lambda order: Order(order.id * 10, approved=True)})
    assert (await run(node, ctx)).log == ["20", "0", "30"]
    assert ctx.children[1] == StartedChild("approval", Order(3), "mine")
    with pytest.raises(NotProvided, match=r"children=\{'approval': result\}"):
        await run(node, FakeContext())
    with pytest.raises(RunFailed, match="ValueError: no"):
        await run(node, FakeContext(children={"approval": raises(ValueError("no"))}))


async def test_a_child_of_an_earlier_node() -> None:
    async def node(order: Order, ctx: Context) -> dict[str, list[str]]:
        return {"log": [(await ctx.child("before").result())["text"]]}

    assert (await run(node, FakeContext(children={"before": {"text": "x"}}))).log == ["x"]
    with pytest.raises(NotProvided, match=r"children=\{'before': result\}"):
        await run(node, FakeContext())


async def test_a_graph_child_is_answered_by_its_id_before_its_name() -> None:
    child = approval()

    async def node(order: Order, ctx: Context) -> dict[str, list[str]]:
        first = await (await ctx.start(child, Order(1), id="first")).result()
        return {"log": [str(first.id), str((await ctx.run(child, Order(2))).id)]}

    ctx = FakeContext(children={child: Order(20), "first": Order(10)})
    assert (await run(node, ctx)).log == ["10", "20"]


# --- the context itself ---------------------------------------------------------------------------


async def test_the_context_tells_of_its_run() -> None:
    ctx = FakeContext(
        run_id="r-1", tenant="acme", labels={"a": "b"}, attempt=3, now="2026-01-01T00:00:00Z"
    )
    assert (ctx.run_id, ctx.tenant, ctx.labels, ctx.attempt) == ("r-1", "acme", {"a": "b"}, 3)
    assert ctx.expires_at.isoformat() == "2026-01-08T00:00:00+00:00"
    assert (ctx.branch, ctx.visit, ctx.failures) == ("", 1, ())
    assert isinstance(ctx, Context)
    ctx.heartbeat()
    ctx.progress(0.5, "half")
    assert ctx.progress_reports == [(0.5, "half")]


def test_a_context_outside_of_a_coroutine_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="inside of a coroutine"):
        FakeContext()


async def test_a_function_can_be_called_without_a_graph() -> None:
    assert (await pay(Order(1), FakeContext(calls={charge: Receipt(1), fetch: "x"})))["log"]


def test_the_fake_has_the_methods_of_the_context_with_their_signatures() -> None:
    """What it does not override is the real thing; what it overrides takes the same arguments."""

    def shape(function: Any) -> list[tuple[str, Any, Any]]:
        parameters = inspect.signature(function).parameters.values()
        return [(each.name, each.kind, each.default) for each in parameters]

    for name in dir(Context):
        real, fake = getattr(Context, name), getattr(FakeContext, name)
        if name.startswith("_") or fake is real:
            continue
        assert shape(fake) == shape(real), name
        assert inspect.iscoroutinefunction(fake) == inspect.iscoroutinefunction(real), name


async def test_time_passes_by_sleeps() -> None:
    times: list[Any] = []

    async def node(order: Order, ctx: Context) -> None:
        times.append(ctx._visit.now_ms())
        await ctx.sleep(timedelta(hours=1))
        times.append(ctx._visit.now_ms())

    await run(node, FakeContext())
    assert times[1] - times[0] == 3_600_000
