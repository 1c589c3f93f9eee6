"""How long it takes to read a run back that has six children and a context of 2 MB in blobs.

Read means: the run is claimed, and its journal, its inbox and all their blobs are there. What the
run keeps cannot be compressed, and lies in a folder.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

from bench.figures import Figure
from holdfast import Graph, Holdfast, RunFilter, RunHandle
from holdfast.clock import SystemClock, SystemIds
from holdfast.engine.journal import payloads
from holdfast.engine.journal.reader import LoadedRun, load_run
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.worker.requeuing import requeue_run
from holdfast.records.head import Head, head_of
from holdfast.records.keys import RunKey, journal_range
from holdfast.records.run_writes import claim_write
from holdfast.storage.open import open as open_store

# Not in /tmp, which on some machines is memory.
CACHE = Path(__file__).parents[1] / ".cache"
CHILDREN = 6
CHILDS_BYTES = 100_000
NODES = 8
NODES_BYTES = 175_000
READS = 200
WARM_UP = 10

child = Graph("child", dict)
parent = Graph("parent", dict)


@child.node
async def answer(state: Any) -> Any:
    """Come back with something large."""
    return {"answer": Random(state["number"]).randbytes(CHILDS_BYTES)}


def _reads(number: int) -> str:
    @parent.node(name=f"read{number}")
    async def read(state: Any) -> Any:
        return {f"text{number}": Random(number).randbytes(NODES_BYTES)}

    return f"read{number}"


reads = [_reads(number) for number in range(NODES)]


@parent.node
async def ask(state: Any, ctx: Any) -> Any:
    """Start the children, and wait for all of them."""
    children = [await ctx.start(child, {"number": number}) for number in range(CHILDREN)]
    answers = [await each.result() for each in children]
    return {"answers": sum(len(told["answer"]) for told in answers)}


parent.route(*reads, ask)


def measure() -> list[Figure]:
    """Measure everything, print it, and return what it must reach."""
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="bench-") as folder:
        return asyncio.run(_measured(f"sqlite:///{folder}/resume.db"))


async def _measured(url: str) -> list[Figure]:
    async with Holdfast(url) as hf:
        run = await _paused(hf)
    as_it_is = payloads._CONCURRENT_READS_MAX
    taken: dict[int, list[float]] = {1: [], as_it_is: []}
    async with open_store(url) as store:
        reader = Reader(store, RunKey(run.tenant, run.id))
        for _ in range(READS + WARM_UP):
            for at_once, times in taken.items():
                payloads._CONCURRENT_READS_MAX = at_once
                times.append(await reader.read())
        payloads._CONCURRENT_READS_MAX = as_it_is
        print(f"  {reader.told}")
    for at_once, times in taken.items():
        times[:] = sorted(times[WARM_UP:])
        print(
            f"  claimed and read, {at_once:>2} blobs at once: p50 {median(times):6.2f} ms   "
            f"p95 {_p95(times):6.2f} ms"
        )
    async with Holdfast(url) as hf, hf.worker([parent]):
        result = await hf.run(run.id).result()
        assert result["answers"] == CHILDREN * CHILDS_BYTES
    return [
        Figure(
            "claim and read, 2 MB and six children, p95 in ms", _p95(taken[as_it_is]), at_most=40
        )
    ]


async def _paused(hf: Holdfast) -> RunHandle:
    """Bring a run to where its children have ended, and nobody has gone on with it yet."""
    async with hf.worker([parent]):
        run = await hf.start(parent, {})
        await _until(hf, "parent", "waiting")
    async with hf.worker([child]):
        await _until(hf, "child", "finished")
    return run


async def _until(hf: Holdfast, graph: str, status: str) -> None:
    async with asyncio.timeout(60):
        while {run.status for run in (await hf.list(RunFilter(graph=graph))).runs} != {status}:
            await SystemClock().sleep(0.01)


def _p95(ordered: list[float]) -> float:
    return ordered[int(len(ordered) * 0.95)]


class Reader:
    """Claims a run again and again, and reads it as a worker does."""

    def __init__(self, store: Any, run: RunKey) -> None:
        self._kernel = Kernel(store, SystemClock(), SystemIds())
        self._run = run
        self.told = ""

    async def read(self) -> float:
        """Return how many milliseconds it took."""
        kernel, run = self._kernel, self._run
        item = await kernel.heads.get(run.head)
        place = head_of(item or {}).index_key
        assert place is not None
        began = perf_counter()
        write = claim_write(place, run, worker="bench", now_ms=0, token=kernel.ids.new())
        head = head_of(await kernel.resolve_write(kernel.heads, write))
        loaded = await load_run(kernel, head)
        taken = (perf_counter() - began) * 1000
        if not self.told:
            self.told = f"{_seen(loaded)}, in {await self._blobs(head)} blobs"
        assert head.index_key is not None
        await requeue_run(kernel, head.index_key, lost=True)
        return taken

    async def _blobs(self, head: Head) -> int:
        records = journal_range(head.generation, head.snapshot)
        items = [item async for item in self._kernel.journals.query_all(head.key.pk, records)]
        return sum("blob" in item for item in items)


def _seen(loaded: LoadedRun) -> str:
    kept = sum(len(value) for value in loaded.execution.state.values())
    told = sum(len(signal.payload["state"]["answer"]) for signal in loaded.inbox)
    assert kept + told >= 2_000_000
    assert len(loaded.inbox) == CHILDREN
    return f"{kept:,} bytes of state, {told:,} of {len(loaded.inbox)} children"
