"""Runs that stay in memory until they first pause."""

from __future__ import annotations

import asyncio
from typing import Any, TypedDict

import pytest

from holdfast import END, Context, Graph, Holdfast, Quota, Retry, signal
from holdfast.engine.journal.writer import _IN_MEMORY_BYTES_MAX
from holdfast.errors import (
    AlreadyExists,
    InvalidGraph,
    InvalidInput,
    InvalidRequest,
    InvalidResult,
    ModelUnavailable,
    RunFailed,
    RunNotFound,
    StoreUnavailable,
)
from holdfast.integrations.offline import Offline
from holdfast.records.times import utc_datetime
from holdfast.storage.operations import GetItem
from tests.engine.staging import staged, write_of
from tests.engine.support import (
    LOOPS_A_WORKER,
    Gate,
    House,
    StepClock,
    incompressible,
    kill,
    run_units,
    store_without_blobs,
    tenant_key,
)


class Notes(TypedDict, total=False):
    """What a run carries along."""

    text: str
    turns: int
    keys: list[str]
    answer: str


entered: list[str] = []


def noting(**options: Any) -> Graph:
    """Return a graph that asks only if its text says so."""
    graph = Graph("noting", Notes, durability="on_pause", **options)

    @graph.node
    async def read(state: Notes, ctx: Context) -> Notes:
        entered.append(ctx.run_id)
        return {"keys": [ctx.key]}

    @graph.node
    async def ask(state: Notes, ctx: Context) -> Notes:
        if state["text"] == "fail":
            raise ValueError("told to")
        keys = [*state["keys"], ctx.key]
        if state["text"] != "ask":
            return {"keys": keys}
        return {"keys": keys, "answer": await ctx.wait(signal("answer"))}

    graph.route(read, ask)
    return graph


@pytest.fixture(autouse=True)
def nothing_entered() -> None:
    entered.clear()


def written(hf: Holdfast) -> float:
    """Return the write units of all runs so far."""
    return run_units(hf)


async def test_a_run_that_never_pauses_writes_nothing(house: House) -> None:
    hf, graph = house.open(), noting()
    async with house.worker(hf, graph):
        run = await hf.start(graph, {"text": "go"}, id="doc-42")
        assert [len(key.split(".")) for key in (await run.result())["keys"]] == [2, 2]
        assert written(hf) == 0
        with pytest.raises(RunNotFound):
            await hf.run("doc-42").get()


async def test_one_that_fails_writes_nothing_and_says_so(house: House) -> None:
    hf, graph = house.open(), noting()
    async with house.worker(hf, graph):
        run = await hf.start(graph, {"text": "fail"})
        with pytest.raises(RunFailed, match="told to"):
            await run.result()
        assert written(hf) == 0


async def test_one_that_pauses_is_whole_from_then_on(house: House) -> None:
    hf, graph = house.open(), noting()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {"text": "ask"}, id="doc-42")
        row = await run.get()
        assert (row.status, row.node, row.nodes_run) == ("waiting", "ask", 1)
        kill(worker)
    other = house.open()
    async with house.worker(other, graph):
        await other.run("doc-42").signal("answer", "yes")
        result = await other.run("doc-42").result()
    assert result["answer"] == "yes"
    assert entered == ["doc-42"]
    # The key of a visit is the same before and after it was written down.
    first, second = (key.split(".") for key in result["keys"])
    assert (first[0], first[1], second[1]) == (second[0], "0", "1")
    kinds = [entry.kind for entry in (await other.run("doc-42").history()).entries]
    assert kinds == ["node", "signal", "node", "finished"]


async def test_the_same_start_twice_is_one_run(house: House) -> None:
    hf, graph = house.open(), noting()
    async with house.worker(hf, graph):
        given = {"text": "ask"}
        runs = await asyncio.gather(*(hf.start(graph, given, id="doc-42") for _ in range(3)))
        again = await hf.start(graph, given, id="doc-42")
        assert entered == ["doc-42"]
        assert {run.id for run in (*runs, again)} == {"doc-42"}
        with pytest.raises(AlreadyExists):
            await hf.start(graph, {"text": "other"}, id="doc-42")


async def test_the_same_start_twice_at_once_writes_nothing(house: House) -> None:
    hf, graph = house.open(), noting()
    async with house.worker(hf, graph):
        starts = (hf.start(graph, {"text": "go"}, id="doc-42") for _ in range(3))
        runs = await asyncio.gather(*starts)
        assert entered == ["doc-42"]
        assert written(hf) == 0
        assert {run.id for run in runs} == {"doc-42"}


async def test_another_input_while_it_is_in_memory_is_refused(house: House) -> None:
    gate = Gate()
    graph = Graph("gated", Notes, durability="on_pause")

    @graph.node
    async def stand(state: Notes) -> None:
        await gate.pass_through()

    hf = house.open()
    async with house.worker(hf, graph):
        first = asyncio.ensure_future(hf.start(graph, {"text": "a"}, id="doc-42"))
        await gate.waited_at()
        with pytest.raises(AlreadyExists):
            await hf.start(graph, {"text": "b"}, id="doc-42")
        gate.open()
        assert (await (await first).result())["text"] == "a"


async def test_of_two_processes_that_begin_it_one_stands(house: House) -> None:
    one, other, graph = house.open(), house.open(), noting()
    async with house.worker(one, graph), house.worker(other, graph):
        runs = await asyncio.gather(
            *(hf.start(graph, {"text": "ask"}, id="doc-42") for hf in (one, other))
        )
        assert {run.id for run in runs} == {"doc-42"}
        await one.run("doc-42").signal("answer", "yes")
        results = [await run.result() for run in runs]
        assert results[0] == results[1]


async def test_a_start_whose_worker_is_lost_is_not_acknowledged(house: House) -> None:
    gate = Gate()
    graph = Graph("gated", Notes, durability="on_pause")

    @graph.node
    async def stand(state: Notes) -> None:
        await gate.pass_through()

    hf = house.open()
    worker = house.worker(hf, graph)
    await worker.start()
    starting = asyncio.ensure_future(hf.start(graph, {}, id="doc-42"))
    await gate.waited_at()
    kill(worker)
    with pytest.raises(StoreUnavailable, match="lost"):
        await starting
    assert written(hf) == 0


async def test_a_worker_that_leaves_writes_down_what_is_under_way(house: House) -> None:
    gate = Gate()
    graph = Graph("gated", Notes, durability="on_pause")

    @graph.node
    async def stand(state: Notes) -> Notes:
        await gate.pass_through()
        return {"answer": "done"}

    hf, other = house.open(), house.open()
    worker = house.worker(hf, graph)
    await worker.start()
    starting = asyncio.ensure_future(hf.start(graph, {}, id="doc-42"))
    await gate.waited_at()
    await worker.stop(drain=0)
    run = await starting
    assert (await run.get()).reason == "draining"
    gate.open()
    async with house.worker(other, graph):
        assert (await other.run("doc-42").result())["answer"] == "done"


@pytest.mark.parametrize("how", ["no worker", "session", "later", "declared"])
async def test_where_it_cannot_be_in_memory_it_is_durable_at_once(house: House, how: str) -> None:
    hf, graph = house.open(), noting()
    options: dict[str, dict[str, Any]] = {
        "session": {"session": "chat"},
        "declared": {"durability": "every_node"},
        "later": {"start_at": utc_datetime(house.clock.now_ms() + 60_000)},
    }
    if how == "no worker":
        await hf.start(graph, {"text": "go"}, id="doc-42")
        assert (await hf.run("doc-42").get()).status == "ready"
        return
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, {"text": "go"}, id="doc-42", **options[how])
        await house.quiet(worker)
        expected = "waiting" if how == "later" else "finished"
        assert (await hf.run("doc-42").get()).status == expected


async def test_a_run_that_starts_children_is_written_down(house: House) -> None:
    child = noting()
    graph = Graph("parent", Notes, durability="on_pause")

    @graph.node
    async def begin(state: Notes, ctx: Context) -> Notes:
        assert (await ctx.run(child, {"text": "go"}))["text"] == "go"
        return {"answer": "done"}

    hf = house.open()
    async with house.worker(hf, graph, child):
        run = await hf.start(graph, {}, id="doc-42")
        assert (await run.result())["answer"] == "done"
        assert (await run.get()).status == "finished"


async def test_a_long_loop_in_memory_keeps_where_it_stands_and_not_how_it_came_there(
    house: House,
) -> None:
    graph = Graph("loop", Notes, durability="on_pause")
    filler = "x" * 1_000
    most = _IN_MEMORY_BYTES_MAX // len(filler) + 10

    @graph.node
    async def turn(state: Notes, ctx: Context) -> Notes:
        turns = state.get("turns", 0) + 1
        if turns == most:
            await ctx.wait(signal("answer"))
        return {"turns": turns, "text": filler + str(turns)}

    graph.choose(turn, lambda state: turn if state["turns"] < most else END, to=[turn, END])
    hf, other = house.open(), house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {}, id="doc-42")
        row = await run.get()
        assert (row.status, row.nodes_run, row.journal_records) == ("waiting", most - 1, 1)
        kill(worker)
    async with house.worker(other, graph):
        await other.run("doc-42").signal("answer")
        assert (await other.run("doc-42").result())["turns"] == most


async def test_a_start_that_was_given_up_and_is_repeated_is_one_run(house: House) -> None:
    gate = Gate()
    graph = Graph("gated", Notes, durability="on_pause")

    @graph.node
    async def stand(state: Notes) -> Notes:
        await gate.pass_through()
        return {"answer": "done"}

    hf = house.open()
    async with house.worker(hf, graph):
        first = asyncio.ensure_future(hf.start(graph, {}, id="doc-42"))
        await gate.waited_at()
        first.cancel()
        await asyncio.wait({first})
        again = asyncio.ensure_future(hf.start(graph, {}, id="doc-42"))
        gate.open()
        async with asyncio.timeout(60):
            assert (await (await again).result())["answer"] == "done"
        assert gate.entered == 1


async def test_a_start_whose_worker_has_another_name_by_now_is_not_acknowledged(
    house: House,
) -> None:
    hf, stage = staged(house)
    graph = noting()
    async with house.worker(hf, graph) as worker:
        asks = stage.hold(lambda operation: isinstance(operation, GetItem))
        starting = asyncio.ensure_future(hf.start(graph, {"text": "go"}, id="doc-42"))
        await asks.reached()
        lease = worker._owner.lease
        name, lease.worker_id = lease.worker_id, "another"
        asks.release()
        async with asyncio.timeout(60):
            with pytest.raises(StoreUnavailable, match="lost"):
                await starting
        lease.worker_id = name
        assert (await (await hf.start(graph, {"text": "go"}, id="doc-42")).result())["text"] == "go"


async def test_a_row_of_which_nothing_is_heard_for_long_is_written_once(house: House) -> None:
    child = noting()
    graph = Graph("parent", Notes, durability="on_pause")

    @graph.node
    async def begin(state: Notes) -> Notes:
        return {"text": "begun"}

    @graph.node
    async def raise_child(state: Notes, ctx: Context) -> Notes:
        await ctx.start(child, {"text": "go"})
        await ctx.wait(signal("answer"))
        return {"answer": state["text"]}

    graph.route(begin, raise_child)
    hf, stage = staged(house)
    for _ in range(2):
        stage.lose(write_of(tenant_key("doc-42").pk, "HEAD"), carried_out=False)
    async with house.worker(hf, graph, child) as worker:
        starting = asyncio.ensure_future(hf.start(graph, {}, id="doc-42"))
        await house.clock.asleep(LOOPS_A_WORKER + 1)
        house.clock.advance(100)  # longer than anybody without a lease has patience
        await house.clock.asleep(LOOPS_A_WORKER + 1)
        await house.move(100, worker)
        await starting
        kill(worker)
    other = house.open()
    async with house.worker(other, graph):
        await other.run("doc-42").signal("answer")
        assert (await other.run("doc-42").result(timeout=60))["answer"] == "begun"


async def test_without_a_bucket_a_large_input_is_refused_before_anything_runs(
    clock: StepClock,
) -> None:
    async with Holdfast("", clock=clock, store=store_without_blobs(clock)) as hf:
        graph = noting()
        async with House.worker(hf, graph):
            with pytest.raises(InvalidInput, match="bucket"):
                await hf.start(graph, {"text": incompressible(1, 500_000).hex()})
        assert entered == []


@pytest.mark.parametrize("nodes", [1, 3])
async def test_without_a_bucket_what_is_too_large_is_not_passed_over(
    clock: StepClock, nodes: int
) -> None:
    runs: list[int] = []
    graph = Graph("large", dict, durability="on_pause")

    def large(number: int) -> Any:
        async def node(state: Any) -> Any:
            runs.append(number)
            return {f"n{number}": incompressible(number, 600_000 // nodes)}

        return node

    for number in range(nodes):
        graph.node(name=f"n{number}")(large(number))

    @graph.node
    async def ask(state: Any, ctx: Context) -> None:
        await ctx.wait(signal("answer"))

    graph.route(*(f"n{number}" for number in range(nodes)), ask)
    hf = Holdfast("", clock=clock, store=store_without_blobs(clock))
    async with hf, House.worker(hf, graph):
        if nodes == 1:  # it fails as it would if it were written at once
            with pytest.raises(RunFailed, match="bucket"):
                await (await hf.start(graph, {}, id="r")).result()
        else:  # each fits, and all together do not
            with pytest.raises(InvalidResult, match="bucket"):
                await hf.start(graph, {}, id="r")
        with pytest.raises(RunNotFound):
            await hf.run("r").get()
    assert runs == list(range(nodes))


def test_there_are_two_ways() -> None:
    graph = Graph("odd", Notes, durability="never")  # pyright: ignore[reportArgumentType]
    graph.node(name="only")(lambda state: None)
    with pytest.raises(InvalidGraph, match="durability"):
        graph.check()


async def test_a_start_names_one_of_them(house: House) -> None:
    hf = house.open()
    with pytest.raises(InvalidRequest, match="durability"):
        await hf.start(noting(), {"text": "go"}, durability="never")  # pyright: ignore[reportArgumentType]


class Words(Offline):
    """A model that is busy once, and then says yes."""

    def __init__(self) -> None:
        super().__init__(self._say)
        self._busy = True

    def _say(self, request: Any) -> Any:
        if self._busy:
            self._busy = False
            return ModelUnavailable("busy", retry_after_seconds=0)
        return "yes"


@pytest.mark.parametrize("how", ["plain", "retry", "quota", "share", "stream"])
async def test_what_a_run_that_never_pauses_writes_by_what_it_asks_for(
    house: House, how: str
) -> None:
    """Only text that other processes may follow needs a row: the guide says so."""
    options: dict[str, Any] = {"stream": {"stream": True}, "share": {"share": True}}
    graph = Graph("asking", dict, durability="on_pause")

    @graph.node
    async def ask(state: Any, ctx: Context) -> Any:
        answer = await ctx.model(how, "Is it?", retry=Retry(backoff=0), **options.get(how, {}))
        return {"text": answer.text}

    models = {name: Offline(["yes"]) for name in ("plain", "quota", "share", "stream")}
    hf = house.open(models={**models, "retry": Words()}, quotas={"quota": Quota("q", requests=100)})
    async with house.worker(hf, graph):
        run = await hf.start(graph, {}, id="doc-42")
        assert (await run.result())["text"] == "yes"
        assert (written(hf) > 0) == (how == "stream")
        if how == "stream":
            assert [piece.text async for piece in run.tokens()] == ["yes"]
