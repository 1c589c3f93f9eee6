"""What a call through the context costs: CPU and writes, beside one that is awaited directly.

``python -m bench.calls NAME`` prints the CPU ms of a run of one of the graphs.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.figures import Figure
from bench.peers.ten_steps import text
from bench.revisions import ROOT, cost_beside
from bench.shared_calls import PROCESSES, SHARED, calls_paid
from holdfast import Graph, Holdfast

# Not in /tmp, which on some machines is memory: there a fsync costs nothing.
CACHE = ROOT / ".cache"
CALLS = 10
IN_A_ROW = "calls, in a row"
RUNS = 400
IN_FLIGHT = 32
ROUNDS = 5


class Cost(NamedTuple):
    """What a run costs whose one node makes ten calls."""

    cpu_ms: float
    puts: float
    units: float


async def answer(number: int) -> str:
    """Be what is called: a kilobyte of prose, at once."""
    return text(number, 0)


async def direct(ctx: Any, number: int) -> str:
    return await answer(number)


async def called(ctx: Any, number: int) -> str:
    return await ctx.call(answer, number)


Way = Callable[[Any, int], Awaitable[str]]


def measure() -> list[Figure]:
    """Measure everything, print it, and return what it must reach."""
    CACHE.mkdir(exist_ok=True)
    graphs = _graphs()
    print(f"  load before: {os.getloadavg()[0]:.1f}; above 1 the CPU is more than it would be")
    rounds = [
        {name: asyncio.run(_cost(graph)) for name, graph in graphs.items()} for _ in range(ROUNDS)
    ]
    _show(rounds)
    row, beside = (_overhead(rounds, how) for how in ("in a row", "side by side"))
    return [
        Figure("CPU ms a call, in a row", row.cpu_ms, at_most=0.2),
        Figure("CPU ms a call, side by side", beside.cpu_ms, at_most=0.2),
        Figure("Puts a call, in a row", row.puts, at_most=1),
        Figure("Puts a call, side by side", beside.puts, at_most=1),
        Figure(
            f"model calls for {SHARED} equal shared ones, {PROCESSES} processes",
            calls_paid(CACHE),
            at_most=1,
        ),
        cost_beside(f"CPU ms a run of {CALLS} calls", _cpu_ms_with),
    ]


def _graphs() -> dict[str, Graph]:
    return {
        "direct, in a row": _in_a_row(direct),
        IN_A_ROW: _in_a_row(called),
        "direct, side by side": _side_by_side(direct),
        "calls, side by side": _side_by_side(called),
    }


def _cpu_ms_with(sources: Path) -> float:
    """Return the CPU of a run whose calls are made in a row, with the sources in a folder."""
    ran = subprocess.run(
        [sys.executable, "-m", "bench.calls", IN_A_ROW],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(sources)},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(ran.stdout)


def _in_a_row(way: Way) -> Graph:
    async def node(state: Any, ctx: Any) -> Any:
        return {"bytes": sum([len(await way(ctx, number)) for number in range(CALLS)])}

    return _graph(node)


def _side_by_side(way: Way) -> Graph:
    async def node(state: Any, ctx: Any) -> Any:
        answers = await asyncio.gather(*(way(ctx, number) for number in range(CALLS)))
        return {"bytes": sum(map(len, answers))}

    return _graph(node)


def _graph(node: Callable[..., Any]) -> Graph:
    graph = Graph("calls", dict)
    graph.node(node, name="all")
    return graph


async def _cost(graph: Graph) -> Cost:
    """Run a graph many times; return what one run costs."""
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="bench-") as folder:
        async with (
            Holdfast(f"sqlite:///{folder}/calls.db") as hf,
            hf.worker([graph], concurrency=IN_FLIGHT * 2),
        ):
            await _all_runs(hf, graph, IN_FLIGHT)  # to warm up
            hf.meter.reset()
            began = time.process_time()
            await _all_runs(hf, graph, RUNS)
            cpu_seconds = time.process_time() - began
            rows = [row for row in hf.meter.report().rows if row.purpose == "journal"]
    return Cost(
        cpu_ms=cpu_seconds / RUNS * 1000,
        puts=sum(row.calls for row in rows if row.operation == "write") / RUNS,
        units=sum(row.units.writes for row in rows) / RUNS,
    )


async def _all_runs(hf: Holdfast, graph: Graph, count: int) -> None:
    async def place(numbers: Iterator[int]) -> None:
        for _ in numbers:
            result = await (await hf.start(graph, {})).result()
            assert result["bytes"] == sum(len(text(number, 0)) for number in range(CALLS))

    numbers = iter(range(count))
    async with asyncio.TaskGroup() as places:
        for _ in range(IN_FLIGHT):
            places.create_task(place(numbers))


def _overhead(rounds: list[dict[str, Cost]], how: str) -> Cost:
    """Return what a call costs more than its function alone: the middle of the rounds."""
    pairs = [zip(costs[f"calls, {how}"], costs[f"direct, {how}"], strict=True) for costs in rounds]
    more = [[(called - direct) / CALLS for called, direct in pair] for pair in pairs]
    return Cost(*map(median, zip(*more, strict=True)))


def _show(rounds: list[dict[str, Cost]]) -> None:
    print(f"  a node of {CALLS} calls{'CPU ms a run':>26}{'Puts a run':>12}{'units a run':>13}")
    for name in rounds[0]:
        cost = Cost(*map(median, zip(*(costs[name] for costs in rounds), strict=True)))
        print(f"  {name:<32}{cost.cpu_ms:>13.3f}{cost.puts:>12.2f}{cost.units:>13.2f}")
    for how in ("in a row", "side by side"):
        ratio = median(
            costs[f"calls, {how}"].cpu_ms / costs[f"direct, {how}"].cpu_ms for costs in rounds
        )
        print(f"  CPU of a run with calls {how} / with functions awaited directly: {ratio:.2f}")


if __name__ == "__main__":
    print(asyncio.run(_cost(_graphs()[sys.argv[1]])).cpu_ms)
