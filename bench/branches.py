"""Branches of one run on SQLite: how many writes they share, and what each of many costs."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from bench.figures import Figure, in_turns, ratio, show
from bench.peers.ten_steps import text
from holdfast import Graph, Holdfast
from holdfast.clock import SystemClock

# Not in /tmp, which on some machines is memory: there a fsync costs nothing.
CACHE = Path(__file__).parents[1] / ".cache"
BRANCHES = 32
NODES = 10
ROUNDS = 3
SLOW_SECONDS = 0.02
FEW, MANY = 1_000, 10_000


def measure() -> list[Figure]:
    """Measure everything, print it, and return what it must reach."""
    CACHE.mkdir(exist_ok=True)
    slow = _shared(slow=True)
    shared = _shared(slow=False)
    print(f"  {BRANCHES} branches of {NODES} nodes each: {1 / shared:.1f} records a Put;")
    print(f"  if a node takes up to {SLOW_SECONDS * 1000:g} ms: {1 / slow:.1f}")
    forks, row = f"{BRANCHES} branches of {NODES}", f"{BRANCHES * NODES} in a row"
    nodes = in_turns(
        {
            forks: lambda: _nodes_a_second(_forked(slow=False)),
            row: lambda: _nodes_a_second(_row()),
        },
        ROUNDS,
    )
    show(nodes, "nodes/s")
    print(f"  branches / row: {ratio(nodes, forks, row):.2f}")
    branches = in_turns(
        {
            f"one for each of {count:,} items": lambda count=count: _cpu_ms_a_branch(count)
            for count in (FEW, MANY)
        },
        ROUNDS,
    )
    show(branches, "CPU ms a branch", digits=3)
    few, many = branches[0]
    return [
        Figure(f"Puts / records, {BRANCHES} branches of one run", shared, at_most=0.25),
        Figure(f"CPU a branch, {MANY:,} items / {FEW:,}", ratio(branches, many, few), at_most=3),
    ]


def _shared(*, slow: bool) -> float:
    """Return how many Puts there are for each record."""

    async def counted(hf: Holdfast, graph: Graph) -> float:
        run = await hf.start(graph, {})
        await run.result()
        events = [event async for event in hf.run(run.id).events(follow=False)]
        positions = {event.cursor.split(".")[1] for event in events}
        return len(positions) / len(events)

    return asyncio.run(_measured(_forked(slow=slow), counted))


def _nodes_a_second(graph: Graph) -> float:
    async def timed(hf: Holdfast, graph: Graph) -> float:
        began = time.perf_counter()
        await (await hf.start(graph, {})).result()
        return BRANCHES * NODES / (time.perf_counter() - began)

    return asyncio.run(_measured(graph, timed))


def _cpu_ms_a_branch(count: int) -> float:
    async def timed(hf: Holdfast, graph: Graph) -> float:
        began = time.process_time()
        run = await hf.start(graph, {"items": [f"item {number}" for number in range(count)]})
        result = await run.result()
        assert result["done"] == [f"item {number}: done" for number in range(count)]
        return (time.process_time() - began) / count * 1000

    return asyncio.run(_measured(_each(), timed))


async def _measured(graph: Graph, measured: Callable[[Holdfast, Graph], Any]) -> Any:
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="bench-") as folder:
        async with Holdfast(f"sqlite:///{folder}/branches.db") as hf, hf.worker([graph]):
            return await measured(hf, graph)


def _forked(*, slow: bool) -> Graph:
    """Return a graph that forks into rows of nodes."""
    graph = Graph("forked", dict)
    _between(graph)
    rows = [_nodes(graph, f"b{branch}", NODES, slow=slow) for branch in range(BRANCHES)]
    for row in rows:
        graph.route(*row)
    graph.fork("first", [row[0] for row in rows], join="join")
    return graph


def _row() -> Graph:
    graph = Graph("row", dict)
    graph.route(*_nodes(graph, "n", BRANCHES * NODES, slow=False))
    return graph


def _each() -> Graph:
    graph = Graph("each", dict, reducers={"done": "append"})
    _between(graph)

    @graph.node(writes=["done"])
    async def work(state: Any) -> Any:
        return {"done": [f"{state['item']}: done"]}

    graph.each("first", work, over="items", into="item", join="join")
    return graph


def _nodes(graph: Graph, prefix: str, count: int, *, slow: bool) -> list[str]:
    """Add nodes that each leave a kilobyte of prose behind; return their names."""
    random = Random(prefix)

    def add(number: int) -> str:
        name, seconds = f"{prefix}_{number}", random.random() * SLOW_SECONDS

        async def node(state: Any) -> Any:
            if slow:
                await SystemClock().sleep(seconds)
            return {prefix: text(number, 0)}

        graph.node(node, name=name, writes=[prefix])
        return name

    return [add(number) for number in range(count)]


def _between(graph: Graph) -> None:
    """Add the node before the branches, and the one after them."""
    for name in ("first", "join"):

        @graph.node(name=name)
        async def nothing(state: Any) -> None: ...
