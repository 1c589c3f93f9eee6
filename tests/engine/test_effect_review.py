"""What hostile nodes, tools and moments do to effects."""

from __future__ import annotations

import asyncio
import gc
import weakref
from functools import partial
from typing import Any

import msgspec
import pytest

from holdfast import Budget, Graph, Holdfast, Retry, days, done, hours, restart, signal, tool
from holdfast.engine.runs.budget_accounts import Accounts, read_granted
from holdfast.engine.runs.rows import read_row
from holdfast.errors import CallFailed, InvalidRequest, RunFailed
from holdfast.model.spending import Spending
from holdfast.storage import UpTo
from holdfast.storage.item import item_bytes
from tests.engine.asking import Cents, graph_of
from tests.engine.branching import each, forked, through
from tests.engine.staging import staged, write_of
from tests.engine.support import (
    LOOPS_A_WORKER,
    Gate,
    House,
    StepClock,
    calls_of,
    incompressible,
    item_of_head,
    kill,
    store_of,
    store_without_blobs,
    tenant_key,
)


def calls_in(entries: Any) -> list[str]:
    return [entry.details["call"] for entry in entries if entry.kind == "call"]


async def test_a_plain_node_calls_plain_functions_though_every_thread_is_taken(
    house: House, hf: Holdfast
) -> None:
    def double(n: int) -> int:
        return 2 * n

    def node(state: Any, ctx: Any) -> Any:
        return {"n": ctx.call(double, 2)}

    graph = graph_of(node)
    async with house.worker(hf, graph, concurrency=1):
        run = await hf.start(graph, id="doc-42")
        assert await run.result(timeout=5) == {"n": 4}


async def test_what_is_too_large_takes_nothing_else_with_it() -> None:
    clock, begun = StepClock(), asyncio.Event()

    async def large() -> bytes:
        return incompressible(1, 500_000)

    async def small(n: int) -> int:
        await begun.wait()
        return n

    async def node(state: Any, ctx: Any) -> Any:
        async def one() -> None:
            with pytest.raises(CallFailed, match="larger values need a bucket"):
                await ctx.call(large)

        async def other(n: int) -> None:
            await ctx.call(small, n)

        async with asyncio.TaskGroup() as group:
            group.create_task(one())
            for n in range(3):
                group.create_task(other(n))
            begun.set()
        return {}

    graph = graph_of(node)
    store = store_without_blobs(clock)
    async with Holdfast("", store=store, clock=clock) as hf, House.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        await run.result(timeout=60)
        assert len(calls_in((await run.history()).entries)) == 4


async def test_a_call_that_ends_while_others_are_being_written_is_written_soon(
    house: House,
) -> None:
    before, after, begun, second = Gate(), Gate(), asyncio.Event(), asyncio.Event()

    async def first() -> int:
        return 1

    async def later() -> int:
        begun.set()
        await second.wait()
        return 2

    async def node(state: Any, ctx: Any) -> Any:
        task = asyncio.create_task(ctx.call(later))
        await begun.wait()
        await ctx.call(first)
        await before.pass_through()
        await task
        await after.pass_through()

    graph = graph_of(node)
    hf, stage = staged(house)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        await before.waited_at()
        generation = (await run.get()).generation
        record = stage.hold(write_of(tenant_key("doc-42").pk, f"J#{generation}#00000001"))
        house.clock.advance(0.005)
        await record.reached()
        second.set()
        before.open()
        await after.waited_at()
        record.release()
        async with asyncio.timeout(10):
            while len(calls_in((await run.history()).entries)) < 2:
                house.clock.advance(0.005)
        after.open()
        await run.result(timeout=60)


async def test_who_waits_for_others_does_not_count_among_the_tasks(house: House) -> None:
    """A call under a key of its own that lacks money at first, and one without such a key."""
    model = Cents()
    made: list[str] = []
    gate = Gate()

    async def touch(what: str) -> str:
        made.append(what)
        return what

    async def node(state: Any, ctx: Any) -> Any:
        async def keyed() -> None:
            await ctx.model("cheap", "Is it?", key="mine")

        async def bare() -> None:
            await ctx.call(touch, "bare")

        await ctx.model("cheap", "What?")
        task = asyncio.create_task(keyed())
        other = asyncio.create_task(ctx.model("cheap", "And?", key="another"))
        await asyncio.gather(task, other)
        await asyncio.create_task(bare())
        await gate.pass_through()
        return {}

    model.used = type(model.used)(1, 1)
    graph = graph_of(node)
    hf = house.open(models={"cheap": model})
    doomed = house.worker(hf, graph, lease=10)
    await doomed.start()
    await hf.start(graph, id="doc-42", budget=Budget(usd=0.015))
    await gate.waited_at()
    house.clock.advance(0.005)
    async with asyncio.timeout(5):
        while len(calls_in((await hf.run("doc-42").history()).entries)) < 4:
            pass
    kill(doomed)
    gate.open()
    hf = house.open(models={"cheap": model})
    async with house.worker(hf, graph, lease=10) as worker:
        await house.clock.asleep(3)
        for _ in range(8):
            await house.move(5, worker)
        await hf.run("doc-42").result(timeout=60)
    assert made == ["bare"]


async def test_one_key_may_be_ambiguous_in_two_visits(house: House, hf: Holdfast) -> None:
    async def pay() -> int:
        raise ConnectionError("lost")

    once = tool(at_most_once=True, name="pay")(pay)
    graph = Graph("g", dict)

    @graph.node
    async def first(state: Any, ctx: Any) -> Any:
        return {"first": await ctx.with_options(key="order-7").call(once)}

    @graph.node
    async def second(state: Any, ctx: Any) -> Any:
        return {"second": await ctx.with_options(key="order-7").call(once)}

    graph.route(first, second)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        for n in (1, 2):
            await house.quiet(worker)
            (call,) = [call async for call in hf.ambiguous()]
            assert call.key == "order-7"
            await hf.run("doc-42").resolve(call.call, result=n)
        assert await run.result(timeout=5) == {"first": 1, "second": 2}


async def test_a_call_whose_fate_is_unknown_does_not_go_stale(house: House, hf: Holdfast) -> None:
    made = []
    graph = Graph("g", dict)

    @tool(at_most_once=True)
    async def pay() -> int:
        made.append(1)
        raise ConnectionError("lost")

    @graph.node(max_pause=60, on_stale=restart("node"))
    async def node(state: Any, ctx: Any) -> Any:
        return {"paid": await ctx.call(pay)}

    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        await house.move(61, worker)
        assert len(made) == 1
        (call,) = [call async for call in hf.ambiguous()]
        await hf.run("doc-42").resolve(call.call, result=1)
        assert await run.result(timeout=5) == {"paid": 1}


async def test_a_further_attempt_of_a_call_makes_what_failed_within_it_anew(
    house: House, hf: Holdfast
) -> None:
    made = []

    async def inner() -> int:
        made.append(1)
        if len(made) < 3:
            raise ConnectionError("away")
        return len(made)

    @tool(retry=Retry(attempts=5, backoff=0))
    async def outer(ctx: Any) -> Any:
        return await ctx.call(inner)

    async def node(state: Any, ctx: Any) -> Any:
        return {"n": await ctx.call(outer)}

    graph = graph_of(node)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        assert await run.result(timeout=5) == {"n": 3}


async def test_a_limit_of_time_costs_no_writes_of_its_own(house: House) -> None:
    async def touch() -> int:
        return 1

    async def node(state: Any, ctx: Any) -> Any:
        for _ in range(3):
            await ctx.call(touch)

    counted = []
    for n, budget in enumerate((None, Budget(node_time=3600))):
        graph, hf = graph_of(node), house.open()
        async with house.worker(hf, graph):
            run = await hf.start(graph, id=f"doc-{n}", budget=budget)
            await run.result(timeout=60)
        counted.append(calls_of(hf, "journal"))
    assert counted[0] == counted[1]


async def test_branches_go_on_as_soon_as_there_is_money(house: House) -> None:
    model = Cents()
    model.used = type(model.used)(1, 1)

    async def ask(state: Any, ctx: Any) -> Any:
        await ctx.model("cheap", f"Is it {state['item']}?")
        return {}

    graph = each(ask)
    hf = house.open(models={"cheap": model})
    async with house.worker(hf, graph) as worker:
        run = await hf.start(
            graph, {"items": [1, 2, 3, 4, 5]}, id="doc-42", budget=Budget(usd=0.0125)
        )
        await house.quiet(worker)
        assert (await run.get()).status == "finished"


async def test_what_lies_beside_the_row_of_an_extended_run_lasts_as_well(either: House) -> None:
    @tool(at_most_once=True)
    async def pay() -> int:
        raise ConnectionError("lost")

    async def asks(state: Any, ctx: Any) -> Any:
        await ctx.model("cheap", "Is it?")
        await ctx.wait(signal("go on"))
        return {}

    child = graph_of(asks, "child")

    async def begin(state: Any, ctx: Any) -> Any:
        await ctx.start(child, id="child")
        return {"paid": await ctx.call(pay)}

    graph, hf = graph_of(begin, "family"), either.open(models={"cheap": Cents()})
    async with either.worker(hf, graph, child) as worker:
        run = await hf.start(graph, id="root", budget=Budget(usd=1), expires=hours(1))
        await either.quiet(worker)
        await run.extend(expires=days(300))
        ttl = (await item_of_head(hf, "root"))["ttl"]
        items = store_of(hf).table.query_all(tenant_key("root").pk, UpTo("GRANT#~"))
        lasting = {item["SK"].split("#")[0]: item["ttl"] == ttl async for item in items}
        assert lasting == dict.fromkeys(("ACCOUNT", "CALL", "CHILD", "GRANT"), True)


async def test_each_call_in_doubt_is_listed_and_not_one_after_the_other(
    house: House, hf: Holdfast
) -> None:
    @tool(at_most_once=True)
    async def pay(n: int) -> int:
        raise ConnectionError("lost")

    async def node(state: Any, ctx: Any) -> Any:
        return {"paid": await asyncio.gather(*(ctx.call(pay, n) for n in range(5)))}

    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        calls = [call async for call in hf.ambiguous()]
        assert len(calls) == 5
        for call in calls:
            await hf.run("doc-42").resolve(call.call, result=1)
        assert await run.result(timeout=60) == {"paid": [1, 1, 1, 1, 1]}


async def test_a_row_stays_small_whatever_the_calls_are_called(house: House, hf: Holdfast) -> None:
    @tool(at_most_once=True, name="\U0001f4b8" * 64)
    async def pay() -> int:
        raise ConnectionError("lost")

    @tool(retry=Retry(attempts=3, backoff=3600))
    async def ask() -> int:
        raise ConnectionError("away")

    async def node(state: Any, ctx: Any) -> Any:
        once = pay if state["once"] else ask
        keys = [f"{n}" + "\U0001f511" * 255 for n in range(8)]
        await asyncio.gather(*(ctx.with_options(key=key).call(once) for key in keys))

    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        for n in (0, 1):
            await hf.start(graph, {"once": n}, id=f"doc-{n}")
            await house.quiet(worker)
            row = await item_of_head(hf, f"doc-{n}")
            assert len(row["waits"]) == 8
            assert item_bytes(row) <= 8 * 1024


async def test_a_key_that_cannot_be_kept_is_refused_before_the_call(
    house: House, hf: Holdfast
) -> None:
    made = []

    async def touch() -> None:
        made.append(1)

    async def node(state: Any, ctx: Any) -> Any:
        with pytest.raises(InvalidRequest) as refused:
            await ctx.with_options(key="\ud800").call(touch)
        assert refused.value.field == "key"
        for name in ("\ud800", "=touch", "1/touch", "touch#1>touch"):
            with pytest.raises(InvalidRequest) as refused:
                tool(name=name)(touch)
            assert refused.value.field == "name"

    graph = graph_of(node)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        await run.result(timeout=60)
    assert made == []


async def test_an_error_may_say_anything_of_when_to_come_back(house: House, hf: Holdfast) -> None:
    made = []

    async def ask(when: Any) -> int:
        made.append(when)
        error = ConnectionError("away")
        error.retry_after_seconds = when  # type: ignore[attr-defined]
        raise error

    async def node(state: Any, ctx: Any) -> Any:
        for when in ("30", float("inf"), float("nan"), -1, None):
            with pytest.raises(CallFailed):
                await ctx.with_options(retry=Retry(attempts=2, backoff=0)).call(ask, when)

    graph = graph_of(node)
    async with house.worker(hf, graph):
        await (await hf.start(graph, id="doc-42")).result(timeout=60)
    assert len(made) == 10


def test_models_have_names_that_their_calls_can_have() -> None:
    for name in ("m" * 59, "m#1"):
        with pytest.raises(InvalidRequest) as refused:
            Holdfast("sqlite://:memory:", models={name: Cents()})
        assert refused.value.field == "models"


async def test_what_a_function_holds_on_to_is_freed(house: House, hf: Holdfast) -> None:
    class Large:
        def size(self) -> int:
            return 1

    seen: list[weakref.ref[Large]] = []

    async def node(state: Any, ctx: Any) -> Any:
        large = Large()
        seen.append(weakref.ref(large))
        for function in (lambda: large.size(), large.size, partial(Large.size, large)):
            await ctx.call(function)

    graph = graph_of(node)
    async with house.worker(hf, graph):
        await (await hf.start(graph, id="doc-42")).result(timeout=60)
    gc.collect()
    assert seen[0]() is None


@pytest.mark.parametrize("fails", [True, False])
async def test_a_call_that_nobody_waits_for_does_not_outlast_its_nodes_time(
    house: House, hf: Holdfast, fails: bool
) -> None:
    left: list[asyncio.Task[Any]] = []
    begun = asyncio.Event()

    async def never() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def node(state: Any, ctx: Any) -> Any:
        left.append(asyncio.create_task(ctx.call(never)))
        await begun.wait()
        if fails:
            raise ValueError("torn")

    graph = graph_of(node, timeout=0.1)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        with pytest.raises(RunFailed, match="took longer"):
            await run.result(timeout=10)
    left[0].cancel()


async def test_who_says_what_cannot_be_a_result_is_asked_again(house: House, hf: Holdfast) -> None:
    @tool(at_most_once=True, probe=lambda key: done({"not": "a number"}))
    async def pay() -> int:
        raise ConnectionError("lost")

    async def node(state: Any, ctx: Any) -> Any:
        return {"paid": await ctx.call(pay)}

    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        for result in ("seven", [7], 7):
            await house.quiet(worker)
            (call,) = [call async for call in hf.ambiguous()]
            await hf.run("doc-42").resolve(call.call, result=result)
        assert await run.result(timeout=60) == {"paid": 7}


async def test_a_call_does_not_wait_for_itself(house: House, hf: Holdfast) -> None:
    @tool
    async def again(*, ctx: Any) -> Any:
        with pytest.raises(InvalidRequest, match="wait for itself"):
            await asyncio.gather(ctx.with_options(key="order-7").call(again))
        return "went on"

    async def node(state: Any, ctx: Any) -> Any:
        return {"it": await ctx.with_options(key="order-7").call(again)}

    graph = graph_of(node)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        assert await run.result(timeout=10) == {"it": "went on"}


async def test_an_account_that_was_opened_before_a_crash_catches_up(
    house: House, hf: Holdfast
) -> None:
    """Whoever opened it died before its journal said so; then it was given another limit."""

    async def node(state: Any) -> None: ...

    await hf.start(graph_of(node), id="doc-42", budget=Budget(usd=1))
    kernel, accounts = hf._kernel, Accounts(hf._kernel)
    head = await read_row(kernel, tenant_key("doc-42"))
    assert head.budget is not None
    await accounts.open(head, head.budget, Spending(0, 10))
    await hf.run("doc-42").set_budget(Budget(usd=2))
    later = msgspec.structs.replace(head, epoch=head.epoch + 1)
    await accounts.open(later, head.budget, Spending(0, 30))
    assert await read_granted(kernel, head) == Spending(0, 30)


async def test_a_call_in_doubt_is_listed_while_another_branch_goes_on(
    house: House, hf: Holdfast
) -> None:
    gate = Gate()

    @tool(at_most_once=True)
    async def pay() -> int:
        raise ConnectionError("lost")

    async def pays(state: Any, ctx: Any) -> Any:
        return {"log": [await ctx.call(pay)]}

    graph = forked(pays, through(gate))
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await gate.waited_at()
        async with asyncio.timeout(60):
            while not (calls := [call async for call in hf.ambiguous()]):
                pass
        await hf.run("doc-42").resolve(calls[0].call, result=7)
        gate.open()
        assert (await run.result(timeout=60))["log"] == [7, "through"]
        await house.quiet(worker)
        assert [call async for call in hf.ambiguous()] == []


async def test_two_that_wake_a_run_for_one_worker_are_both_heard(house: House) -> None:
    gate = Gate()

    async def node(state: Any, ctx: Any) -> Any:
        await ctx.wait(signal("first"))
        await gate.pass_through()
        return {"got": await ctx.wait(signal("second"))}

    graph = graph_of(node)
    hf, stage = staged(house)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        pk, generation = tenant_key("doc-42").pk, (await run.get()).generation
        inbox = stage.hold(write_of(pk, f"J#{generation}#IN#second#2"))
        sending = asyncio.create_task(run.signal("second", 7, signal_id="2"))
        await inbox.reached()
        await run.signal("first")
        await gate.waited_at()
        stage.lose(write_of(pk, "HEAD"), carried_out=False)
        inbox.release()
        await house.clock.asleep(LOOPS_A_WORKER + 1)
        house.clock.advance(0.1)
        await sending
        gate.open()
        assert await run.result(timeout=10) == {"got": 7}
