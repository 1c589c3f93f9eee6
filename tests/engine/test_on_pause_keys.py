"""A run with ``durability="on_pause"`` that is started again has its keys, in memory or not."""

from __future__ import annotations

import asyncio
from typing import Any, TypedDict

import pytest

from holdfast import Budget, Context, Graph, Holdfast, tool
from holdfast.errors import AlreadyExists, RunFailed, StoreUnavailable
from holdfast.records.times import utc_datetime
from tests.engine.support import Gate, House, kill

ID = "doc-42"
INPUT = {"text": "go"}
DAY_SECONDS = 24 * 3600.0


class State(TypedDict, total=False):
    """What a run carries along."""

    text: str
    given: str


class Outside:
    """Hears under which keys it was called, and may hold up the first call."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.once: list[str] = []
        self.gate = Gate()
        self.fails = False

    async def post(self, *, idempotency_key: str) -> str:
        self.keys.append(idempotency_key)
        await self.gate.pass_through()
        if self.fails:
            raise ValueError("told to")
        return "posted"


def posting(outside: Outside, **options: Any) -> Graph:
    """Return a graph whose only node calls the world outside, then once more at most once."""
    graph = Graph("posting", State, durability="on_pause", **options)

    @tool(at_most_once=True)
    async def wire(*, idempotency_key: str) -> str:
        outside.once.append(idempotency_key)
        return "wired"

    @graph.node
    async def act(state: State, ctx: Context) -> State:
        posted = await ctx.call(outside.post)
        if state["text"] == "wire":
            await ctx.call(wire)
        return {"given": posted}

    return graph


async def died_in_memory(house: House, graph: Graph, outside: Outside, input: Any = None) -> None:
    """Let a process begin the run in memory, and die inside its call."""
    hf = house.open()
    worker = house.worker(hf, graph)
    await worker.start()
    starting = asyncio.ensure_future(hf.start(graph, input or INPUT, id=ID))
    await outside.gate.waited_at()
    kill(worker)
    with pytest.raises(StoreUnavailable):
        await starting
    outside.gate.open()


async def with_room(house: House, hf: Holdfast, graph: Graph) -> None:
    async with house.worker(hf, graph):
        await (await hf.start(graph, INPUT, id=ID)).result()


async def with_a_full_worker(house: House, hf: Holdfast, graph: Graph) -> None:
    gate, filler = Gate(), Graph("filler", State)

    @filler.node
    async def fill(state: State) -> None:
        await gate.pass_through()

    async with house.worker(hf, graph, filler, concurrency=1) as worker:
        await hf.start(filler, {})
        await gate.waited_at()
        run = await hf.start(graph, INPUT, id=ID)
        gate.open()
        await house.quiet(worker)
        await run.result()


async def without_a_worker(house: House, hf: Holdfast, graph: Graph) -> None:
    run = await hf.start(graph, INPUT, id=ID)
    other = house.open()
    async with house.worker(other, graph):
        await run.result()


async def with_a_budget(house: House, hf: Holdfast, graph: Graph) -> None:
    async with house.worker(hf, graph):
        await (await hf.start(graph, INPUT, id=ID, budget=Budget(usd=1))).result()


async def in_a_session(house: House, hf: Holdfast, graph: Graph) -> None:
    async with house.worker(hf, graph):
        await (await hf.start(graph, INPUT, id=ID, session="chat")).result()


async def in_a_session_elsewhere(house: House, hf: Holdfast, graph: Graph) -> None:
    run = await hf.start(graph, INPUT, id=ID, session="chat")
    other = house.open()
    async with house.worker(other, graph):
        await run.result()


async def later(house: House, hf: Holdfast, graph: Graph) -> None:
    async with house.worker(hf, graph) as worker:
        start_at = utc_datetime(house.clock.now_ms() + 60_000)
        run = await hf.start(graph, INPUT, id=ID, start_at=start_at)
        await house.quiet(worker)
        await house.move(61, worker)
        await run.result()


async def as_a_child(house: House, hf: Holdfast, graph: Graph) -> None:
    parent = Graph("parent", State)

    @parent.node
    async def raise_child(state: State, ctx: Context) -> None:
        await ctx.run(graph, INPUT, id=ID)

    async with house.worker(hf, graph, parent):
        await (await hf.start(parent, {})).result()


WAYS = [
    with_room,
    with_a_full_worker,
    without_a_worker,
    with_a_budget,
    in_a_session,
    in_a_session_elsewhere,
    later,
    as_a_child,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_a_run_that_is_started_again_has_the_same_keys(house: House, way: Any) -> None:
    outside = Outside()
    graph = posting(outside)
    await died_in_memory(house, graph, outside)
    await way(house, house.open(), graph)
    first, second = outside.keys
    assert first == second


async def test_a_call_at_most_once_of_a_run_begun_again_without_room_is_made_once(
    house: House,
) -> None:
    outside = Outside()
    graph, given = posting(outside), {"text": "wire"}
    await died_in_memory(house, graph, outside, given)
    hf = house.open()
    run = await hf.start(graph, given, id=ID)
    other = house.open()
    async with house.worker(other, graph):
        await run.result()
        await (await other.start(graph, given, id=ID)).result()
    assert len(set(outside.keys)) == 1
    assert len(outside.once) == 1


async def test_a_retry_without_memory_goes_on_under_the_same_keys(house: House) -> None:
    outside = Outside()
    graph = posting(outside)
    await died_in_memory(house, graph, outside)
    outside.fails = True
    hf = house.open()
    run = await hf.start(graph, INPUT, id=ID)
    async with house.worker(hf, graph) as worker:
        with pytest.raises(RunFailed):
            await run.result()
        outside.fails = False
        await run.retry()
        await house.quiet(worker)
        assert (await run.result())["given"] == "posted"
    assert len(set(outside.keys)) == 1


async def test_an_id_that_is_free_again_has_its_keys_and_a_journal_of_its_own(house: House) -> None:
    outside = Outside()
    outside.gate.open()
    graph, hf = posting(outside), house.open()
    generations: list[str] = []
    for _ in range(2):
        run = await hf.start(graph, INPUT, id=ID, expires=60)
        async with house.worker(hf, graph) as worker:
            await run.result()
            generations.append((await run.get()).generation)
            await house.quiet(worker)
        house.clock.advance(4 * DAY_SECONDS)
    assert len(set(generations)) == 2
    assert len(outside.keys) == 2
    assert len(set(outside.keys)) == 1


@pytest.mark.parametrize("other", [{"text": "other"}, {"text": "go", "given": "x"}])
async def test_another_input_has_other_keys(house: House, other: Any) -> None:
    outside = Outside()
    graph = posting(outside)
    await died_in_memory(house, graph, outside)
    hf = house.open()
    run = await hf.start(graph, other, id=ID)
    async with house.worker(hf, graph):
        await run.result()
    assert len(set(outside.keys)) == 2


async def test_a_durable_run_has_the_keys_of_its_generation(house: House) -> None:
    outside = Outside()
    graph = posting(outside)
    await died_in_memory(house, graph, outside)
    hf = house.open()
    async with house.worker(hf, graph):
        await (await hf.start(graph, INPUT, id=ID, durability="every_node")).result()
    assert len(set(outside.keys)) == 2


async def test_a_start_in_a_session_does_not_join_a_run_in_memory_without_one(house: House) -> None:
    outside = Outside()
    graph, hf = posting(outside), house.open()
    async with house.worker(hf, graph):
        first = asyncio.ensure_future(hf.start(graph, INPUT, id=ID))
        await outside.gate.waited_at()
        with pytest.raises(AlreadyExists, match="session"):
            await hf.start(graph, INPUT, id=ID, session="chat")
        outside.gate.open()
        await (await first).result()
