"""Workflows run as graphs do: calls, signals, budgets, sessions, retries, children, versions."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterator
from typing import Any

import msgspec
import pydantic
import pytest

from holdfast import (
    Budget,
    Context,
    Graph,
    Holdfast,
    Retry,
    RunHandle,
    Workflow,
    agent,
    days,
    restart,
    signal,
    tool,
    workflow,
)
from holdfast.engine.execution import unreturned_changes
from holdfast.errors import AlreadyExists, InvalidInput, RunFailed, SignalMisfit, UnknownSignal
from holdfast.integrations.offline import Offline
from holdfast.model.invocation import ToolCall
from holdfast.records.graph_item import graph_facts_of
from holdfast.records.keys import graph_key
from holdfast.sync import Holdfast as Blocking
from tests.engine.asking import Cents
from tests.engine.support import House, item_of_head, kill, reached, store_of


@dataclasses.dataclass
class Order:
    number: int
    total: int = 100


@dataclasses.dataclass
class Receipt:
    order: int
    paid: str
    approved: bool


class Shop:
    """Counts what is asked of it."""

    charged: list[int]
    shipped: list[int]

    def reset(self) -> None:
        self.charged, self.shipped = [], []


SHOP = Shop()


async def charge(number: int, amount: int) -> str:
    SHOP.charged.append(number)
    return f"{amount} for {number}"


def ship(number: int) -> None:
    SHOP.shipped.append(number)


@workflow(signals=[signal("approved", bool)])
async def approve(order: Order, ctx: Context) -> Receipt:
    paid = await ctx.call(charge, order.number, order.total)
    approved = await ctx.wait(signal("approved"))
    await ctx.call(ship, order.number)
    return Receipt(order.number, paid, approved)


@pytest.fixture(autouse=True)
def _empty_shop() -> Iterator[None]:
    SHOP.reset()
    unreturned_changes._visits.clear()
    yield
    unreturned_changes._visits.clear()


# --- a run ----------------------------------------------------------------------------------------


async def test_a_workflow_waits_and_returns_what_it_returned(either: House) -> None:
    hf = either.open()
    async with either.worker(hf, approve) as worker:
        run = await hf.start(approve, Order(42), id="o")
        await either.quiet(worker)
        row = await run.get()
        assert (row.status, row.node, row.graph) == ("waiting", "approve", "approve")
        assert await run.state() == {"input": Order(42)}
        assert await run.input() == Order(42)
        with pytest.raises(SignalMisfit):
            await run.signal("approved", "yes")
        with pytest.raises(UnknownSignal):
            await run.signal("apporved", True)
        await run.signal("approved", True)
        receipt = Receipt(42, "100 for 42", True)
        assert await run.result(timeout=60) == receipt
    assert (SHOP.charged, SHOP.shipped) == ([42], [42])
    assert await run.state() == {"input": Order(42), "result": receipt}
    assert await hf.run("o", graph=approve).result() == receipt


async def test_a_handle_without_the_workflow_returns_the_stored_values(either: House) -> None:
    hf = either.open()
    async with either.worker(hf, approve) as worker:
        run = await hf.start(approve, {"number": 42}, id="o")
        await either.quiet(worker)
        await run.signal("approved", True)
        await run.result(timeout=60)
    bare = either.open().run("o")
    stored = {"order": 42, "paid": "100 for 42", "approved": True}
    assert await bare.result() == stored
    assert await bare.input() == {"number": 42, "total": 100}
    assert await bare.state() == {"input": await bare.input(), "result": stored}


async def test_a_handle_without_the_workflow_hears_of_the_end(house: House) -> None:
    hf = house.open()
    async with house.worker(hf, approve) as worker:
        run = await hf.start(approve, Order(42), id="o")
        await house.quiet(worker)
        claimed = asyncio.ensure_future(hf.run("o").result(timeout=60))
        await run.signal("approved", True)
        assert (await claimed)["paid"] == "100 for 42"


async def test_a_handle_of_a_run_that_ended_in_memory_knows_its_result(house: House) -> None:
    @workflow(durability="on_pause")
    async def double(number: int) -> int:
        return number * 2

    hf = house.open()
    async with house.worker(hf, double):
        run = await hf.start(double, 21, id="n")
        assert await run.result(timeout=60) == 42
        assert await run.state() == {"input": 21, "result": 42}


async def test_the_history_names_the_calls_and_the_waits(house: House) -> None:
    hf = house.open()
    async with house.worker(hf, approve) as worker:
        run = await hf.start(approve, Order(42))
        await house.quiet(worker)
        await run.signal("approved", True)
        await run.result(timeout=60)
    entries = (await run.history()).entries
    shown = [
        (entry.kind, entry.details.get("call") or entry.details.get("name")) for entry in entries
    ]
    assert shown == [
        ("call", "charge#1"),
        ("signal", "approved"),
        ("call", "ship#1"),
        ("node", None),
        ("finished", None),
    ]
    assert entries[0].details["arguments"] == {"number": 42, "amount": 100}
    assert entries[3].details["delta"]["result"]["approved"] is True
    assert await run.state(at=entries[2].cursor) == {"input": Order(42)}


async def test_rows_of_graphs_do_not_have_what_rows_of_workflows_have(house: House) -> None:
    graph = Graph("plain", dict)

    @graph.node
    async def node(state: Any) -> None: ...

    hf = house.open()
    await hf.start(graph, id="g")
    await hf.start(approve, Order(1), id="w")
    assert "wrapped" not in await item_of_head(hf, "g")
    assert (await item_of_head(hf, "w"))["wrapped"] is True


async def test_a_default_of_a_later_version_does_not_change_a_repeated_start(hf: Holdfast) -> None:
    @dataclasses.dataclass
    class Cheaper:
        number: int
        total: int = 50

    async def approve_later(order: Any) -> None: ...

    approve_later.__annotations__["order"] = Cheaper
    later = workflow(name="approve", version=2)(approve_later)
    await hf.start(approve, {"number": 42}, id="o")
    assert (await hf.start(later, {"number": 42}, id="o")).id == "o"
    with pytest.raises(AlreadyExists):
        await hf.start(later, {"number": 42, "total": 50}, id="o")


@pytest.mark.parametrize("given", [Order(42), {"number": 42}])
async def test_a_start_is_repeated_with_the_same_input_only(house: House, given: Any) -> None:
    hf = house.open()
    await hf.start(approve, given, id="o")
    assert (await hf.start(approve, given, id="o")).id == "o"
    for other in (Order(43), {"number": 43}, {"number": 42, "total": 1}):
        with pytest.raises(AlreadyExists):
            await hf.start(approve, other, id="o")


class Aliased(pydantic.BaseModel):
    number: int = pydantic.Field(alias="orderNumber")


class Renamed(msgspec.Struct, rename="camel"):
    order_number: int


@pytest.mark.parametrize(
    ("kind", "name"),
    [(Aliased, "orderNumber"), (Renamed, "orderNumber"), (Renamed, "order_number")],
)
@pytest.mark.parametrize("of", ["graph", "workflow"])
async def test_a_field_under_another_name_counts_for_a_repeated_start(
    hf: Holdfast, kind: type, name: str, of: str
) -> None:
    graph = Graph("renamed", kind)
    graph.node(name="n")(lambda state: None)

    async def renamed(order: Any) -> None: ...

    renamed.__annotations__["order"] = kind
    program = graph if of == "graph" else workflow(renamed)
    await hf.start(program, {name: 1}, id="a")
    await hf.start(program, {name: 1}, id="a")
    with pytest.raises(AlreadyExists):
        await hf.start(program, {name: 2}, id="a")


async def test_other_processes_know_the_input_and_the_steps_of_a_workflow(house: House) -> None:
    hf = house.open()
    async with house.worker(hf, approve):
        pass
    item = await store_of(hf).table.get(graph_key("approve", 1))
    assert item is not None
    facts = graph_facts_of(item)
    assert facts.input_schema is not None
    assert set(facts.input_schema["properties"]) == {"number", "total"}
    assert facts.declared == ("approved",)
    assert facts.drawing == approve.draw()
    assert '["charge"]' in facts.drawing


async def test_invalid_inputs_are_refused_at_the_start(hf: Holdfast) -> None:
    for wrong in (None, 5, {"number": "x"}, {"nummer": 4}, [Order(1)]):
        with pytest.raises(InvalidInput):
            await hf.start(approve, wrong)  # pyright: ignore[reportArgumentType]


async def test_a_result_of_another_type_fails_the_run(house: House) -> None:
    @workflow
    async def wrong(ctx: Context) -> int:
        return "five"  # pyright: ignore[reportReturnType]

    hf = house.open()
    async with house.worker(hf, wrong):
        run = await hf.start(wrong, None)
        with pytest.raises(RunFailed, match="the result does not fit its type: Expected `int`"):
            await run.result(timeout=60)


async def test_a_change_of_the_input_in_place_is_warned_of(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    @workflow
    async def raises_price(order: Order) -> int:
        order.total += 1
        return order.total

    hf = house.open()
    with caplog.at_level(logging.WARNING, "holdfast.nodes"):
        async with house.worker(hf, raises_price):
            run = await hf.start(raises_price, Order(4))
            assert await run.result(timeout=60) == 101
    assert "workflow 'raises_price' changed 'total' of its input in place" in caplog.text
    assert await run.input() == Order(4)


# --- runs again -----------------------------------------------------------------------------------


async def test_a_failed_attempt_runs_again_and_keeps_its_calls(house: House) -> None:
    @workflow(retry=Retry(attempts=3, backoff=0))
    async def stubborn(number: int, ctx: Context) -> int:
        await ctx.call(charge, number, 5)
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return ctx.attempt

    hf = house.open()
    async with house.worker(hf, stubborn):
        run = await hf.start(stubborn, 7)
        assert await run.result(timeout=60) == 3
    assert SHOP.charged == [7]


async def test_a_run_that_failed_is_retried_with_its_calls(house: House) -> None:
    broken = [True]

    @workflow
    async def fragile(number: int, ctx: Context) -> str:
        paid = await ctx.call(charge, number, 5)
        if broken:
            raise ValueError("broken")
        return paid

    hf = house.open()
    async with house.worker(hf, fragile) as worker:
        run = await hf.start(fragile, 7)
        with pytest.raises(RunFailed, match="failed at node 'fragile'"):
            await run.result(timeout=60)
        broken.clear()
        await run.retry()
        await house.quiet(worker)
        assert await run.result(timeout=60) == "5 for 7"
    assert SHOP.charged == [7]


async def test_a_worker_that_dies_is_replaced_and_the_calls_count(either: House) -> None:
    first, second = either.open(), either.open()
    worker = either.worker(first, approve, lease=5)
    await worker.start()
    run = await first.start(approve, Order(42), id="o")
    await either.quiet(worker)
    kill(worker)
    async with either.worker(second, approve) as survivor:
        await second.run("o").signal("approved", True)
        await either.move(20, survivor)
        assert await second.run("o", graph=approve).result(timeout=60) == Receipt(
            42, "100 for 42", True
        )
    assert (SHOP.charged, SHOP.shipped, run.id) == ([42], [42], "o")


async def paused_then_continued(house: House, flow: Workflow[Any, Any]) -> RunHandle:
    hf = house.open()
    async with house.worker(hf, flow) as worker:
        run = await hf.start(flow, 1)
        await house.quiet(worker)
        await run.signal("go")
        await house.quiet(worker)
    return run


async def test_a_re_run_with_other_arguments_gets_the_record_and_a_warning(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    amounts = [5, 6]

    @workflow
    async def unstable(number: int, ctx: Context) -> str:
        paid = await ctx.call(charge, number, amounts.pop(0))
        await ctx.wait(signal("go"))
        return paid

    with caplog.at_level(logging.WARNING, "holdfast"):
        run = await paused_then_continued(house, unstable)
    assert await run.result() == "5 for 1"
    assert "call charge#1 has other arguments than when it was recorded" in caplog.text
    assert SHOP.charged == [1]


async def test_a_re_run_with_other_arguments_under_a_key_fails(house: House) -> None:
    amounts = [5, 6]

    @workflow
    async def unstable(number: int, ctx: Context) -> str:
        paid = await ctx.with_options(key="pay").call(charge, number, amounts.pop(0))
        await ctx.wait(signal("go"))
        return paid

    run = await paused_then_continued(house, unstable)
    with pytest.raises(RunFailed, match="CallChanged: 'charge' was called under the key 'pay'"):
        await run.result()


async def test_keys_free_calls_from_their_order(house: House) -> None:
    orders = [[1, 2], [2, 1]]

    @workflow
    async def shuffled(number: int, ctx: Context) -> list[str]:
        paid = {
            each: await ctx.with_options(key=f"pay/{each}").call(charge, each, 5)
            for each in orders.pop(0)
        }
        await ctx.wait(signal("go"))
        return [paid[1], paid[2]]

    run = await paused_then_continued(house, shuffled)
    assert await run.result() == ["5 for 1", "5 for 2"]
    assert SHOP.charged == [1, 2]


# --- budgets, sessions, children ------------------------------------------------------------------


async def test_a_budget_pauses_a_workflow(house: House) -> None:
    @workflow
    async def asks(count: int, ctx: Context) -> list[str]:
        return [(await ctx.model("cheap", "Is it?")).text for _ in range(count)]

    model = Cents()
    hf = house.open(models={"cheap": model})
    async with house.worker(hf, asks) as worker:
        run = await hf.start(asks, 3, budget=Budget(usd=0.015))
        await house.quiet(worker)
        assert ((await run.get()).reason, len(model.asked)) == ("budget", 1)
        await run.set_budget(Budget(usd=1))
        assert await run.result(timeout=60) == ["yes"] * 3
    assert len(model.asked) == 3


async def test_an_input_answers_the_wait_of_the_run_before_in_its_session(either: House) -> None:
    @workflow
    async def chat(message: str, ctx: Context) -> list[str]:
        return [message, await ctx.wait(signal("message", str))]

    hf = either.open()
    async with either.worker(hf, chat) as worker:
        first = await hf.start(chat, "hello", id="a", session="s", user="ann")
        await either.quiet(worker)
        second = await hf.start(
            chat, "and more", id="b", session="s", user="ann", on_busy="promote"
        )
        assert second.id == "a"
        assert await first.result(timeout=60) == ["hello", "and more"]


async def test_runs_of_a_session_queue(house: House) -> None:
    hf = house.open()
    async with house.worker(hf, approve) as worker:
        first = await hf.start(approve, Order(1), id="a", session="s", user="ann")
        second = await hf.start(approve, Order(2), id="b", session="s", user="ann")
        await house.quiet(worker)
        assert ((await second.get()).reason, SHOP.charged) == ("queued", [1])
        await first.signal("approved", True)
        await house.quiet(worker)
        await house.move(1, worker)
        await second.signal("approved", False)
        assert (await second.result(timeout=60)).approved is False


async def test_workflows_and_graphs_start_each_other(either: House) -> None:
    graph = Graph("adding", dict)

    @graph.node
    async def add(state: dict[str, Any], ctx: Context) -> dict[str, Any]:
        return {"sum": await ctx.run(double, state["number"]) + 1}

    @workflow
    async def double(number: int) -> int:
        return number * 2

    @workflow
    async def parent(number: int, ctx: Context) -> list[Any]:
        added = await ctx.run(graph, {"number": number})
        child = await ctx.start(approve, Order(number), id="child")
        receipt = await child.result()
        bare = await ctx.child("child").result()
        return [added["sum"], receipt.paid, bare]

    hf = either.open()
    async with either.worker(hf, graph, double, parent, approve) as worker:
        run = await hf.start(parent, 4, id="p")
        await either.patiently_quiet(worker)
        await hf.run("child").signal("approved", True)
        await either.patiently_quiet(worker)
        stored = {"order": 4, "paid": "100 for 4", "approved": True}
        assert await run.result(timeout=60) == [9, "100 for 4", stored]


async def test_an_agent_in_a_workflow_calls_its_tools_once(house: House) -> None:
    @tool
    async def look_up(order: int) -> str:
        SHOP.charged.append(order)
        return "lost"

    support = agent("m", [look_up])

    @workflow
    async def answer(question: str, ctx: Context) -> str:
        told = await support(ctx, question)
        await ctx.wait(signal("go"))
        return told.text

    model = Offline([ToolCall("1", "look_up", {"order": 42}), "It is lost."])
    hf = house.open(models={"m": model})
    async with house.worker(hf, answer) as worker:
        run = await hf.start(answer, "Where is it?")
        await house.quiet(worker)
        await run.signal("go")
        assert await run.result(timeout=60) == "It is lost."
    assert SHOP.charged == [42]


# --- plain functions and versions -----------------------------------------------------------------


async def test_a_plain_function_gets_a_blocking_context(house: House) -> None:
    @workflow
    def plain(number: int, ctx: Any) -> str:
        paid = ctx.call(charge, number, 5)
        ctx.wait(signal("go"))
        return paid

    run = await paused_then_continued(house, plain)
    assert await run.result() == "5 for 1"
    assert SHOP.charged == [1]


@pytest.mark.parametrize("is_async", [True, False])
async def test_input_and_context_may_be_left_out(house: House, *, is_async: bool) -> None:
    if is_async:

        async def alone() -> str:
            return "alone"

        async def nightly(ctx: Context) -> str:
            return await ctx.call(charge, 1, 2)
    else:

        def alone() -> str:
            return "alone"

        def nightly(ctx: Any) -> str:
            return ctx.call(charge, 1, 2)

    flows = [workflow(alone), workflow(nightly)]
    hf = house.open()
    async with house.worker(hf, *flows):
        results = [await (await hf.start(flow)).result(timeout=60) for flow in flows]
    assert results == ["alone", "2 for 1"]


def test_the_blocking_api_runs_workflows(tmp_path: Any) -> None:
    with Blocking(f"sqlite:///{tmp_path}/runs.db") as hf, hf.worker([approve]):
        run = hf.start(approve, Order(42))
        run.signal("approved", True)
        assert run.result(timeout=60) == Receipt(42, "100 for 42", True)
        assert run.input() == Order(42)


def version_of(number: int, words: str) -> Workflow[int, str]:
    @workflow(name="versioned", version=number)
    async def versioned(order: int, ctx: Context) -> str:
        paid = await ctx.call(charge, order, 5)
        await ctx.wait(signal("go"))
        return f"{words}: {paid}"

    return versioned


async def test_versions_run_side_by_side_and_a_paused_run_moves_to_a_newer_one(
    house: House,
) -> None:
    old, new = version_of(1, "old"), version_of(2, "new")
    hf = house.open()
    async with house.worker(hf, old) as worker:
        first = await hf.start(old, 1, id="a")
        moved = await hf.start(old, 2, id="b")
        await house.quiet(worker)
    async with house.worker(hf, old, new) as worker:
        second = await hf.start(new, 3, id="c")
        await house.quiet(worker)
        await first.signal("go")
        await second.signal("go")
        assert await first.result(timeout=60) == "old: 5 for 1"
        assert await second.result(timeout=60) == "new: 5 for 3"
    async with house.worker(hf, new) as worker:
        await moved.signal("go")
        await house.move(1, worker)
        assert await moved.result(timeout=60) == "new: 5 for 2"
    assert SHOP.charged == [1, 2, 3]


async def test_a_paused_run_whose_input_no_longer_fits_fails_and_can_be_retried(
    house: House,
) -> None:
    @workflow(name="shaped")
    async def old(order: dict[str, int], ctx: Context) -> str:
        return str(await ctx.wait(signal("go")))

    @workflow(name="shaped", version=2)
    async def new(order: Order, ctx: Context) -> str:
        return str(await ctx.wait(signal("go")))

    @workflow(name="shaped", version=3)
    async def mended(order: dict[str, int], ctx: Context) -> str:
        return str(await ctx.wait(signal("go")))

    hf = house.open()
    async with house.worker(hf, old) as worker:
        run = await hf.start(old, {"amount": 1}, id="a")
        await house.quiet(worker)
    await run.signal("go", "yes")
    async with house.worker(hf, new):
        with pytest.raises(RunFailed, match="the input does not match its type: number: it is mis"):
            await run.result(timeout=60)
    async with house.worker(hf, mended) as worker:
        await run.retry()
        await house.move(1, worker)
        assert await run.result(timeout=60) == "yes"


async def test_a_stale_pause_restarts_a_workflow_from_its_beginning(house: House) -> None:
    @workflow(max_pause=days(1), on_stale=restart("patient"))
    async def patient(number: int, ctx: Context) -> str:
        await ctx.call(charge, number, 5)
        return str(await ctx.wait(signal("go")))

    hf = house.open()
    async with house.worker(hf, patient) as worker:
        run = await hf.start(patient, 1)
        await house.quiet(worker)
        await house.move(86_401, worker)
        await run.signal("go", "yes")
        assert await run.result(timeout=60) == "yes"
    assert SHOP.charged == [1, 1]
    await reached(hf, run.id, "finished")
