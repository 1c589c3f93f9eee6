"""Calls: made once, answered from their records, told apart, tried again, and never lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import END, Graph, Holdfast, Retry, signal, tool
from holdfast.errors import CallChanged, CallFailed, InvalidRequest, InvalidResult, RunFailed
from tests.engine.support import (
    WAIT_SECONDS_MAX,
    Gate,
    House,
    StepClock,
    calls_of,
    incompressible,
    kill,
    reached,
    store_without_blobs,
)

SOON = Retry(attempts=3, backoff=1, factor=2, jitter=0)


class World:
    """What calls do something to: it counts, by name."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.keys: list[str] = []

    async def touch(self, what: Any, *, idempotency_key: str) -> Any:
        self.made.append(what)
        self.keys.append(idempotency_key)
        return {"touched": what, "nth": len(self.made)}


class Turns:
    """Lets those who come go on in a certain order."""

    def __init__(self, order: str) -> None:
        self._order = order
        self._events = {name: asyncio.Event() for name in order}
        self._events[order[0]].set()

    @asynccontextmanager
    async def of(self, name: str) -> AsyncGenerator[None, None]:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            await self._events[name].wait()
        yield
        for following in self._order[self._order.index(name) + 1 :][:1]:
            self._events[following].set()


@pytest.fixture
def world() -> World:
    return World()


def graph_of(function: Any, **options: Any) -> Graph:
    graph = Graph("g", dict)
    graph.node(name="node", **options)(function)
    return graph


async def finished(house: House, hf: Holdfast, graph: Graph, input: Any = None) -> Any:
    async with house.worker(hf, graph):
        run = await hf.start(graph, input or {}, id="doc-42")
        return await run.result(timeout=60)


# --- once -----------------------------------------------------------------------------------------


async def test_a_node_that_runs_again_is_answered_from_the_record(
    either: House, world: World
) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        first = await ctx.call(world.touch, "a")
        await ctx.wait(signal("go on"))
        second = await ctx.call(world.touch, "b")
        return {"first": first, "second": second}

    graph, hf = graph_of(node), either.open()
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await either.quiet(worker)
        assert world.made == ["a"]
        await run.signal("go on")
        state = await run.result(timeout=60)
    assert world.made == ["a", "b"]
    assert state == {
        "first": {"touched": "a", "nth": 1},
        "second": {"touched": "b", "nth": 2},
    }
    assert len(set(world.keys)) == 2


async def test_a_call_in_flight_at_a_kill_is_made_again_under_its_key(
    house: House, hf: Holdfast
) -> None:
    keys, gate = [], Gate()

    async def slow(*, idempotency_key: str) -> str:
        keys.append(idempotency_key)
        if len(keys) == 1:
            await gate.pass_through()
        return "done"

    async def node(state: Any, ctx: Any) -> Any:
        return {"answer": await ctx.call(slow)}

    graph = graph_of(node)
    doomed = house.worker(hf, graph, lease=10)
    await doomed.start()
    await hf.start(graph, id="doc-42")
    await gate.waited_at()
    kill(doomed)
    other = house.open()
    async with house.worker(other, graph, lease=10) as worker:
        await house.clock.asleep(3)
        for _ in range(8):
            await house.move(5, worker)
        run = other.run("doc-42")
        assert await run.result(timeout=60) == {"answer": "done"}
    assert len(keys) == 2
    assert keys[0] == keys[1]


async def test_a_visit_later_the_call_is_another(house: House, hf: Holdfast, world: World) -> None:
    graph = Graph("g", dict)

    @graph.node
    async def loop(state: Any, ctx: Any) -> Any:
        await ctx.call(world.touch, state["n"])
        return {"n": state["n"] + 1}

    graph.choose(loop, lambda state: loop if state["n"] < 3 else END)
    await finished(house, hf, graph, {"n": 0})
    assert world.made == [0, 1, 2]
    assert len(set(world.keys)) == 3


async def test_a_retried_run_keeps_what_its_calls_came_to(
    house: House, hf: Holdfast, world: World
) -> None:
    fails = [True]

    async def node(state: Any, ctx: Any) -> Any:
        answer = await ctx.call(world.touch, "a")
        if fails:
            raise ValueError("torn")
        return answer

    graph = graph_of(node)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        with pytest.raises(RunFailed):
            await run.result(timeout=60)
        fails.clear()
        await run.retry()
        assert await run.result(timeout=60) == {"touched": "a", "nth": 1}
    assert world.made == ["a"]


# --- which call is which --------------------------------------------------------------------------


async def test_calls_side_by_side_keep_their_identity_whichever_is_faster(
    house: House, hf: Holdfast
) -> None:
    turns, made = Turns("cba"), []

    async def first(name: str) -> str:
        async with turns.of(name):
            made.append(name)
        return name * 2

    async def node(state: Any, ctx: Any) -> Any:
        answers = await asyncio.gather(*(ctx.call(first, name) for name in "abc"))
        await ctx.wait(signal("go on"))
        return {"answers": answers}

    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        assert made == ["c", "b", "a"]
        await run.signal("go on")
        assert await run.result(timeout=60) == {"answers": ["aa", "bb", "cc"]}
    assert len(made) == 3


async def test_what_follows_in_a_task_belongs_to_that_task(house: House, hf: Holdfast) -> None:
    """Each task makes two calls; the second calls come in the order of who was faster."""
    turns, seen, rounds = Turns("cba"), [], []

    async def first(name: str) -> str:
        return name

    async def then(name: str) -> str:
        async with turns.of(name):
            seen.append(name)
        return name * 2

    async def both(ctx: Any, name: str) -> str:
        return await ctx.call(then, await ctx.call(first, name))

    async def node(state: Any, ctx: Any) -> Any:
        rounds.append(1)
        answers = await asyncio.gather(*(both(ctx, name) for name in "abc"))
        await ctx.wait(signal("go on"))
        return {"answers": answers}

    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        assert seen == ["c", "b", "a"]
        await run.signal("go on")
        assert await run.result(timeout=60) == {"answers": ["aa", "bb", "cc"]}
    assert (len(rounds), len(seen)) == (2, 3)


async def test_calls_within_a_call_do_not_count_where_it_answers_from_its_record(
    house: House, hf: Holdfast, world: World
) -> None:
    async def outer(ctx: Any) -> Any:
        return [await ctx.call(world.touch, "inner"), await ctx.call(world.touch, "inner 2")]

    async def node(state: Any, ctx: Any) -> Any:
        inner = await ctx.call(outer)
        own = await ctx.call(world.touch, "own")
        await ctx.wait(signal("go on"))
        return {"inner": [each["touched"] for each in inner], "own": own["touched"]}

    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        await run.signal("go on")
        assert await run.result(timeout=60) == {"inner": ["inner", "inner 2"], "own": "own"}
    assert world.made == ["inner", "inner 2", "own"]


async def test_a_changed_argument_is_answered_from_the_record_with_a_warning(
    house: House, hf: Holdfast, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        answer = await ctx.call(world.touch, house.clock.now_ms())
        await ctx.wait(signal("go on"))
        return answer

    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        assert not caplog.records
        await house.move(10, worker)
        with caplog.at_level(logging.WARNING, "holdfast.calls"):
            await run.signal("go on")
            assert (await run.result(timeout=60))["nth"] == 1
    assert "other arguments" in caplog.text
    assert len(world.made) == 1


async def test_a_business_key_is_the_callers_own(house: House, hf: Holdfast, world: World) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        one = await ctx.with_options(key="order/42").call(world.touch, "a")
        same = await ctx.with_options(key="order/42").call(world.touch, "a")
        with pytest.raises(CallChanged, match="order/42"):
            await ctx.with_options(key="order/42").call(world.touch, "b")
        with pytest.raises(InvalidRequest, match="key"):
            await ctx.with_options(key="").call(world.touch, "b")
        at_once = await asyncio.gather(
            *(ctx.with_options(key="c").call(world.touch, "c") for _ in range(3))
        )
        return {"nth": [one["nth"], same["nth"], *(each["nth"] for each in at_once)]}

    assert (await finished(house, hf, graph_of(node)))["nth"] == [1, 1, 2, 2, 2]
    assert world.keys == ["order/42", "c"]


# --- what is written when -------------------------------------------------------------------------


async def test_calls_share_the_put_of_their_node_where_they_can(either: House) -> None:
    async def quick(n: int) -> int:
        return n

    async def node(state: Any, ctx: Any) -> Any:
        if state["how"] == "in a row":
            return {"sum": sum([await ctx.call(quick, n) for n in range(10)])}
        if state["how"] == "at once":
            return {"sum": sum(await asyncio.gather(*(ctx.call(quick, n) for n in range(100))))}
        return {"sum": await ctx.call(quick, 45)}

    puts: dict[str, int] = {}
    for how in ("one", "in a row", "at once"):
        graph, hf = graph_of(node), either.open()
        async with either.worker(hf, graph):
            run = await hf.start(graph, {"how": how}, id=how)
            assert (await run.result(timeout=60))["sum"] in (45, 4950)
        puts[how] = calls_of(hf, "journal")["journal", "write"]
    # The node's record and that of the last call share a Put.
    assert puts["one"] == 1
    assert puts["in a row"] == 10
    assert puts["at once"] <= 3


async def test_an_answer_is_durable_before_the_next_call_goes_by_it(
    house: House, hf: Holdfast
) -> None:
    recorded: list[list[str]] = []

    async def draw() -> int:
        return 7

    async def use(n: int) -> int:
        history = (await hf.run("doc-42").history()).entries
        recorded.append([entry.details["call"] for entry in history if entry.kind == "call"])
        return n

    async def node(state: Any, ctx: Any) -> Any:
        return {"n": await ctx.call(use, await ctx.call(draw))}

    await finished(house, hf, graph_of(node))
    assert len(recorded[0]) == 1
    assert "draw" in recorded[0][0]


async def test_a_call_becomes_durable_soon_though_its_node_goes_on(
    house: House, hf: Holdfast, world: World
) -> None:
    gate = Gate()

    async def node(state: Any, ctx: Any) -> Any:
        await ctx.call(world.touch, "a")
        await gate.pass_through()

    graph = graph_of(node)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        await gate.waited_at()
        assert (await run.history()).entries == []
        house.clock.advance(0.005)
        async with asyncio.timeout(60):
            while not (entries := (await run.history()).entries):
                pass
        assert [entry.kind for entry in entries] == ["call"]
        gate.open()
        await run.result(timeout=60)


# --- results --------------------------------------------------------------------------------------


@dataclass
class Invoice:
    number: int
    lines: list[str]


async def test_a_result_is_what_the_annotations_say_each_time(house: House, hf: Holdfast) -> None:
    seen = []

    async def fetch(number: int) -> Invoice:
        return Invoice(number, ["one"])

    async def node(state: Any, ctx: Any) -> Any:
        invoice = await ctx.call(fetch, 42)
        seen.append(invoice)
        invoice.lines.append("changed by the node")
        await ctx.wait(signal("go on"))

    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        await run.signal("go on")
        await run.result(timeout=60)
    assert [type(each) for each in seen] == [Invoice, Invoice]
    assert seen[1].lines == ["one", "changed by the node"]
    assert (await run.history()).entries[0].details["result"] == {"number": 42, "lines": ["one"]}


async def test_a_result_that_cannot_be_kept_is_a_typed_error(house: House, hf: Holdfast) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        with pytest.raises(CallFailed, match="no durable form") as failed:
            await ctx.call(object)
        assert failed.value.is_a(InvalidResult)

    await finished(house, hf, graph_of(node))


async def test_a_result_that_is_too_large_is_a_typed_error() -> None:
    clock = StepClock()

    async def node(state: Any, ctx: Any) -> Any:
        with pytest.raises(CallFailed, match="larger values need a bucket"):
            await ctx.call(incompressible, 1, 500_000)
        return {"went": "on"}

    graph = graph_of(node)
    store = store_without_blobs(clock)
    async with Holdfast("", store=store, clock=clock) as hf, House.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        assert await run.result(timeout=60) == {"went": "on"}


async def test_three_megabytes_are_kept_beside_the_table(either: House) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        data = await ctx.call(incompressible, 1, 3_000_000)
        await ctx.wait(signal("go on"))
        return {"bytes": len(data)}

    graph, hf = graph_of(node), either.open()
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await either.quiet(worker)
        await run.signal("go on")
        assert await run.result(timeout=60) == {"bytes": 3_000_000}


async def test_plain_functions_and_plain_nodes_call_as_well(house: House, hf: Holdfast) -> None:
    made = []

    def plain(n: int, idempotency_key: str) -> int:
        made.append(idempotency_key)
        return n + 1

    def within(ctx: Any) -> int:
        return ctx.call(plain, 10) + 1

    def node(state: Any, ctx: Any) -> Any:
        values = [ctx.call(plain, 1), ctx.call(plain, 2), ctx.call(within)]
        ctx.wait(signal("go on"))
        return {"values": values}

    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        await run.signal("go on")
        assert await run.result(timeout=60) == {"values": [2, 3, 12]}
    assert len(made) == len(set(made)) == 3


# --- failures -------------------------------------------------------------------------------------


async def test_a_failure_is_recorded_and_raised_the_same_each_time(
    house: House, hf: Holdfast
) -> None:
    made, raised = [], []

    async def fails() -> None:
        made.append(1)
        raise ConnectionResetError("torn")

    async def node(state: Any, ctx: Any) -> Any:
        try:
            await ctx.call(fails)
        except CallFailed as failed:
            raised.append((str(failed), failed.is_a(ConnectionError), failed.is_a(ValueError)))
        await ctx.wait(signal("go on"))

    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        await run.signal("go on")
        await run.result(timeout=60)
    assert made == [1]
    assert len(raised) == 2
    assert raised[0] == raised[1]
    assert raised[0][1:] == (True, False)
    assert "ConnectionResetError: torn" in raised[0][0]


async def test_a_further_attempt_of_the_node_makes_failed_calls_anew(
    house: House, hf: Holdfast, world: World
) -> None:
    failures = [1, 1]

    async def fails() -> str:
        if failures:
            failures.pop()
            raise ConnectionError("not yet")
        return "at last"

    async def node(state: Any, ctx: Any) -> Any:
        await ctx.call(world.touch, "a")
        return {"answer": await ctx.call(fails)}

    policy = Retry(attempts=3, backoff=0, on=(ConnectionError,))
    state = await finished(house, hf, graph_of(node, retry=policy))
    assert state == {"answer": "at last"}
    assert world.made == ["a"]
    other = Retry(attempts=3, backoff=0, on=(ValueError,))
    failures.append(1)
    graph = graph_of(node, retry=other)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="other")
        with pytest.raises(RunFailed, match="not yet"):
            await run.result(timeout=60)


async def test_a_call_is_tried_as_often_as_it_may(either: House) -> None:
    attempts, keys = [], []

    @tool(retry=Retry(attempts=3, backoff=100, factor=2, jitter=0, on=(OSError,)))
    async def flaky(*, idempotency_key: str) -> str:
        attempts.append(either.clock.now_ms())
        keys.append(idempotency_key)
        if len(attempts) < 3:
            raise OSError("not yet")
        return "at last"

    async def node(state: Any, ctx: Any) -> Any:
        return {"answer": await ctx.call(flaky)}

    graph, hf, began = graph_of(node), either.open(), either.clock.now_ms()
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await either.quiet(worker)
        row = await run.get()
        assert (row.status, row.reason, row.waits[0].about) == ("waiting", "retry", flaky.name)
        await either.move(99, worker)
        assert len(attempts) == 1
        await either.move(2, worker)
        assert len(attempts) == 2
        await either.move(201, worker)
        assert await run.result(timeout=60) == {"answer": "at last"}
    assert len(set(keys)) == 1
    assert [at - began for at in attempts][1] // 1000 == 101
    kinds = [entry.kind for entry in (await run.history()).entries]
    assert kinds == ["call_attempt", "call_attempt", "call", "node", "finished"]


async def test_short_pauses_are_waited_for_in_place(house: House, hf: Holdfast) -> None:
    attempts = []

    async def flaky() -> None:
        attempts.append(house.clock.now_ms())
        raise OSError("never")

    async def node(state: Any, ctx: Any) -> Any:
        with pytest.raises(CallFailed, match="never"):
            await ctx.with_options(retry=SOON).call(flaky)

    graph, began = graph_of(node), house.clock.now_ms()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        for seconds in (1, 2):
            await house.clock.asleep(4)
            assert (await run.get()).owner == worker.id
            house.clock.advance(seconds)
        await run.result(timeout=60)
    assert [at - began for at in attempts] == [0, 1000, 3000]


async def test_a_call_that_takes_too_long_is_cut_short(house: House, hf: Holdfast) -> None:
    cut = asyncio.Event()

    async def stuck() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cut.set()

    async def node(state: Any, ctx: Any) -> Any:
        with pytest.raises(CallFailed, match="longer than 10ms") as failed:
            await ctx.with_options(timeout=0.01).call(stuck)
        assert failed.value.is_a(TimeoutError)

    await finished(house, hf, graph_of(node))
    assert cut.is_set()


async def test_a_cancelled_run_leaves_its_call(house: House, hf: Holdfast) -> None:
    gate, left = Gate(), asyncio.Event()

    async def stuck() -> None:
        try:
            await gate.pass_through()
        finally:
            left.set()

    async def node(state: Any, ctx: Any) -> Any:
        await ctx.call(stuck)

    graph = graph_of(node)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        await gate.waited_at()
        await run.cancel()
        await reached(hf, "doc-42", "cancelled")
    assert left.is_set()


async def test_a_run_in_memory_keeps_its_keys_until_it_pauses(
    house: House, hf: Holdfast, world: World
) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        await ctx.call(world.touch, "a")
        if state.get("wait"):
            await ctx.wait(signal("go on"))

    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, {}, id="one", durability="on_pause")
        assert ("journal", "write") not in calls_of(hf, "journal")
        run = await hf.start(graph, {"wait": True}, id="two", durability="on_pause")
        await house.quiet(worker)
        await run.signal("go on")
        await run.result(timeout=60)
    assert world.made == ["a", "a"]


@pytest.mark.parametrize(
    ("contract", "field"),
    [
        ({"idempotent": False, "at_most_once": False}, "at_most_once"),
        ({"probe": lambda key: None}, "probe"),
        ({"name": ""}, "name"),
        ({"name": "x" * 65}, "name"),
    ],
)
def test_a_contract_that_contradicts_itself_is_refused(contract: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        tool(**contract)(lambda: None)
    assert refused.value.field == field


def test_a_tool_is_called_like_its_function() -> None:
    @tool(name="add up", timeout=5)
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    assert add(1, b=2) == 3
    assert (add.name, add.description, add.timeout_ms) == ("add up", "Add two numbers.", 5000)
    assert add.returns is int
