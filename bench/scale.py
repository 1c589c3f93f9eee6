"""What paused runs cost in a SQLite file of 100, of 100,000 and of 1,200,000 of them.

How soon a signal brings one back, how much memory the worker has, what it does while it waits, and
what a paused run weighs. One run is paused by the product; the others are copies of what it wrote,
under ids and generations of their own. Every copy that is signalled must finish as it should.

It takes some six minutes; with ``SCALE_RUNS=100000`` in the environment there are fewer.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, TypeAlias, TypedDict

from msgspec.structs import replace

from bench.figures import Figure
from bench.memory import peak_mb
from bench.peers.ten_steps import text
from holdfast import Context, Graph, Holdfast, signal
from holdfast.clock import SystemClock, SystemIds
from holdfast.records.head import Head, head_of
from holdfast.records.index_keys import list_index_key, shard_of_run
from holdfast.records.keys import HEAD, RunKey
from holdfast.records.settings import SHARDS
from holdfast.storage import Absent, Put
from holdfast.storage.layout import LAYOUT
from holdfast.storage.open import open as open_store
from holdfast.storage.operations import WriteItems
from holdfast.storage.sqlite.writer import SqliteWriter

Item: TypeAlias = dict[str, Any]

# Not in /tmp, which on some machines is memory: there a fsync costs nothing.
CACHE = Path(__file__).parents[1] / ".cache"
RUNS = int(os.environ.get("SCALE_RUNS", "1200000"))
SIZES = sorted({100, min(100_000, RUNS), RUNS})
SIGNALS = 300
WARM_UP = 20
IDLE_SECONDS = 30
BATCH = 10_000
MEMORY_MB_MAX = 48
"""The page caches of three connections, 16 MB each, which a small file does not fill."""


class State(TypedDict, total=False):
    """What the measured runs carry along."""

    text: str
    approved: bool


graph = Graph("scale", State)


@graph.node
async def work(state: State) -> State:
    """Leave something behind: a kilobyte of prose."""
    return {"text": text(0, 0)}


@graph.node
async def ask(state: State, ctx: Context) -> State:
    """Wait for somebody."""
    return {"approved": await ctx.wait(signal("approved"))}


@graph.node
async def finish(state: State) -> None:
    """Be the one node after the wait."""


graph.route(work, ask, finish)


def measure() -> list[Figure]:
    """Measure everything, print it, and return what it must reach."""
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="bench-") as folder:
        template = asyncio.run(_template(f"sqlite:///{folder}/template.db"))
        tables = [Paused(Path(folder) / f"{runs}.db", runs, template) for runs in SIZES]
        for table in tables:
            began = time.perf_counter()
            table.fill()
            print(f"  {table} made in {time.perf_counter() - began:.0f} s", flush=True)
        with ExitStack() as stack:
            workers = [stack.enter_context(_worker(table)) for table in tables]
            # One signal here, one there: what disturbs the machine disturbs them alike.
            order = Random(1)
            for _ in range(WARM_UP + SIGNALS):
                for worker in order.sample(workers, len(workers)):
                    worker.signal()
            with ThreadPoolExecutor() as threads:
                told = list(threads.map(Measured.end, workers))
        for table, one in zip(tables, told, strict=True):
            _show(table, one)
    few, many = told[0], told[-1]
    slower = many["p50_ms"] / few["p50_ms"]
    grown = many["memory_mb"] - few["memory_mb"]
    return [
        Figure(f"signal to finished, p50, {tables[-1]} / {tables[0]}", slower, at_most=1.5),
        Figure("MB of memory that a worker has more with them", grown, at_most=MEMORY_MB_MAX),
        Figure("CPU of an idle worker with them, % of a core", many["idle_percent"], at_most=2),
    ]


def _show(table: Paused, told: dict[str, float]) -> None:
    print(
        f"  {table!s:<18} signal to finished p50 {told['p50_ms']:6.2f} ms, p99 "
        f"{told['p99_ms']:6.2f}; worker {told['memory_mb']:5.1f} MB, idle "
        f"{told['idle_percent']:.2f} % of a core; {table.bytes_a_run:,.0f} bytes of file a run"
    )


class Paused:
    """A file with so many paused runs, copies of one."""

    def __init__(self, file: Path, runs: int, template: Template) -> None:
        self.url = f"sqlite:///{file}"
        self._file = file
        self._runs = runs
        self._template = template
        self._ids: list[str] = []
        self._new = SystemIds()
        self._random = Random(7)

    def __str__(self) -> str:
        return f"{self._runs:,} paused"

    @property
    def bytes_a_run(self) -> float:
        """What a run takes of the file, once that is closed: nothing stands beside it then."""
        return self._file.stat().st_size / self._runs

    def fill(self) -> None:
        """Make as many paused runs as are missing."""
        made = [self._new.new() for _ in range(self._runs - len(self._ids))]
        writes = (put for id in made for put in self._template.copied(id))
        core = SqliteWriter(str(self._file), layout=LAYOUT, clock=SystemClock())
        while batch := tuple(islice(writes, BATCH)):
            (answer,) = core.apply([WriteItems(batch)])
            assert answer.error is None, answer.error
        core.close()
        self._ids += made

    def take(self) -> str:
        """Return one of them, from anywhere in the file; it is taken for no longer paused."""
        chosen = self._random.randrange(len(self._ids))
        self._ids[chosen], self._ids[-1] = self._ids[-1], self._ids[chosen]
        return self._ids.pop()


class Template:
    """One paused run, as the product wrote it."""

    def __init__(self, items: list[Item]) -> None:
        self._items = items
        self._head = next(head_of(item) for item in items if item["SK"] == HEAD)
        self._ids = SystemIds()

    def copied(self, id: str) -> Iterator[Put]:
        """Yield what the product would have written for a run of that id."""
        key = RunKey(self._head.key.tenant, id)
        generation, shard = self._ids.new(), shard_of_run(key, SHARDS)
        head = replace(self._head, key=key, generation=generation, shard=shard)
        for item in self._items:
            if item["SK"] == HEAD:
                yield Put({**item, **_placed(head)}, Absent("PK"))
            else:
                sk = item["SK"].replace(self._head.generation, generation)
                yield Put({**item, "PK": key.pk, "SK": sk}, Absent("PK"))


def _placed(head: Head) -> Item:
    due = head.due_index_key(head.expires_ms, head.epoch)
    list_pk, list_sk = list_index_key(head.key, head.created_ms, head.list_shards, trouble=False)
    return {
        "PK": head.key.pk,
        "generation": head.generation,
        "shard": head.shard,
        "GSI1PK": due.pk,
        "GSI1SK": due.sk,
        "GSI2PK": list_pk,
        "GSI2SK": list_sk,
    }


async def _template(url: str) -> Template:
    async with Holdfast(url) as hf, hf.worker([graph]):
        run = await hf.start(graph, {})
        while (await run.get()).status != "waiting":
            await SystemClock().sleep(0.01)
    async with open_store(url) as store:
        return Template(
            [item async for item in store.table.query_all(RunKey(run.tenant, run.id).pk)]
        )


class Measured:
    """A process with a worker, which signals runs of its own file."""

    def __init__(self, table: Paused, process: subprocess.Popen[str]) -> None:
        self._table = table
        self._process = process
        self._taken: list[float] = []

    def signal(self) -> None:
        """Let it signal one run, and put another one into its place."""
        self._taken.append(self._asked(self._table.take())["taken_ms"])
        self._table.fill()

    def end(self) -> dict[str, float]:
        """Let it wait for a while, with nothing to do, and end."""
        told = self._asked("")
        self._process.wait()
        taken = sorted(self._taken[WARM_UP:])
        p99 = taken[int(len(taken) * 0.99)]
        return {**told, "p50_ms": median(taken), "p99_ms": p99}

    def _asked(self, line: str) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(line, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the worker with {self._table} failed")
        return json.loads(answer)


@contextmanager
def _worker(table: Paused) -> Generator[Measured]:
    command = [sys.executable, "-m", "bench.scale", table.url]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield Measured(table, process)
        finally:
            process.kill()


async def _work(url: str) -> None:
    """Signal the runs that are named, one line each; after the last one, wait."""
    async with Holdfast(url) as hf, hf.worker([graph]):
        while id := (await asyncio.to_thread(sys.stdin.readline)).strip():
            began = time.perf_counter()
            await hf.run(id).signal("approved", True)
            result = await hf.run(id).result()
            _tell(taken_ms=(time.perf_counter() - began) * 1000)
            assert result == {"text": text(0, 0), "approved": True}, result
        before = time.process_time()
        await SystemClock().sleep(IDLE_SECONDS)
        idle_percent = (time.process_time() - before) / IDLE_SECONDS * 100
    _tell(memory_mb=peak_mb(), idle_percent=idle_percent)


def _tell(**figures: float) -> None:
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    asyncio.run(_work(sys.argv[1]))
