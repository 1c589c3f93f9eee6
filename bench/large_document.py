"""A document of 3,000 pages, read and analysed by two workers that are killed with -9.

``PAGES=300`` in the environment makes it smaller, ``SEED=7`` draws other moments. One page in fifty
is a scan, which tesseract reads: it takes seconds a page, and is not what is measured here. Images
of pages are smaller than by default, and a model takes 200 ms.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from bench.document_work import Asked, Plan, asked_in, bench_application
from bench.figures import Figure
from documents.make_large import make_large_pdf
from holdfast import Holdfast, RunHandle
from holdfast.clock import SystemClock
from holdfast.storage.item import item_bytes
from holdfast.storage.sqlite.item_codec import decode_item

PAGES = int(os.environ.get("PAGES", "3000"))
PAGES_SMALL = 300
KILLS = 3
SEED = int(os.environ.get("SEED", "1"))
WORKERS = 2
SECONDS_MAX = 3_600
ITEM_KB_MAX = 9
STATE_KB_MAX = 256
MEMORY_RATIO_MAX = 1.5
_LOOK_SECONDS = 0.1
_MEMORY = Path("/dev/shm")
_ROOT = Path(__file__).parents[1]
_CACHE = _ROOT / ".cache"


@dataclass
class Kill:
    """A kill of a worker, and what stood in the store right after it."""

    process: int
    place: int
    """How much had been asked."""
    recorded: set[str]
    """The keys of the answers that were recorded."""
    share: float


@dataclass
class Outcome:
    """What a document cost, and what it left."""

    pages: int
    seconds: float = 0.0
    peak_mb: float = 0.0
    child_mb: float = 0.0
    kills: list[Kill] = field(default_factory=list[Kill])
    asked: list[Asked] = field(default_factory=list[Asked])
    analyses: Counter[str] = field(default_factory=Counter[str])
    largest_item: tuple[int, str] = (0, "")
    largest_state: tuple[int, str] = (0, "")
    items: int = 0

    @property
    def repeated(self) -> dict[str, int]:
        """How many times too often each key was asked."""
        counts = Counter(each.key for each in self.asked)
        return {key: count - 1 for key, count in counts.items() if count > 1}

    @property
    def recorded_repeated(self) -> set[str]:
        """The keys that were asked again though their answer was recorded."""
        return {
            each.key
            for kill in self.kills
            for each in self.asked
            if each.place >= kill.place and each.key in kill.recorded and self._before(each, kill)
        }

    def _before(self, again: Asked, kill: Kill) -> bool:
        return any(each.key == again.key and each.place < kill.place for each in self.asked)

    def interrupted(self, kill: Kill) -> list[str]:
        """Return the keys that the worker had asked, and whose answers were not recorded."""
        last = {each.key: each.process for each in self.asked if each.place < kill.place}
        return [
            key
            for key, process in last.items()
            if process == kill.process and key not in kill.recorded
        ]

    @property
    def not_in_flight(self) -> dict[str, int]:
        """The keys that were asked more often than a kill interrupted them."""
        interrupted = Counter(key for kill in self.kills for key in self.interrupted(kill))
        return {key: n for key, n in self.repeated.items() if n > interrupted[key]}

    @property
    def under_another_key(self) -> set[str]:
        """The questions that were asked under several keys."""
        keys: dict[str, set[str]] = defaultdict(set)
        for each in self.asked:
            keys[each.question].add(each.key)
        return {question for question, known in keys.items() if len(known) > 1}


class Measurement:
    """One document, its workers, and what is seen of them."""

    def __init__(self, folder: Path, plan: Plan, random: Random) -> None:
        self._folder, self._plan, self._random = folder, plan, random
        self._app = bench_application(folder, plan)
        self._moments = sorted(random.uniform(0.02, 0.98) for _ in range(plan.kills))
        self.outcome = Outcome(plan.pages)
        self._workers: list[Process] = []

    async def run(self) -> Outcome:
        """Process the document, and look at what it left."""
        file = self._folder / "large.pdf"
        make_large_pdf(file, self._plan.pages, scans_every=self._plan.scans_every)
        async with self._app.open() as hf:
            workflow, run = await self._begin(hf, file)
            async with self._working():
                began = time.perf_counter()
                async with asyncio.timeout(SECONDS_MAX):
                    await self._until_ended(hf, run, workflow)
                self.outcome.seconds = time.perf_counter() - began
            await self._look_back(hf, run, workflow)
        return self.outcome

    async def _begin(self, hf: Holdfast, file: Path) -> tuple[str, RunHandle[Any]]:
        documents = hf.documents
        await documents.projects.create("Measured", id="measured")
        place = documents.place()
        stored = await documents.files.put_path(file, place=place)
        added = await documents.add(
            "measured",
            file_uri=stored.uri,
            file_name=file.name,
            file_type="application/pdf",
            file_bytes=stored.bytes,
            place=place,
        )
        workflow = await documents.begin(added.id)
        run = await hf.start(self._app.graph, {"workflow": workflow.id}, id=f"doc-{workflow.id}")
        return workflow.id, run

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[None]:
        try:
            self._workers = [await self._worker() for _ in range(WORKERS)]
            yield
        finally:
            for worker in self._workers:
                self._see_memory(worker)
                if worker.returncode is None:
                    worker.terminate()
            for worker in self._workers:
                await worker.wait()

    async def _worker(self) -> Process:
        worker = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "bench.document_work", str(self._folder), json.dumps(asdict(self._plan))),
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": ":".join([str(_ROOT), *filter(None, sys.path)])},
            stdout=PIPE,
        )
        assert worker.stdout is not None
        assert await worker.stdout.readline() == b"ready\n", "a worker ended early"
        return worker

    async def _until_ended(self, hf: Holdfast, run: RunHandle[Any], workflow: str) -> None:
        """Wait for the end of the document; kill workers when their moments come."""
        looks = 0
        ended = asyncio.ensure_future(run.until("finished", "failed", timeout=SECONDS_MAX))
        while not ended.done():
            await asyncio.wait([ended], timeout=_LOOK_SECONDS)
            for worker in self._workers:
                self._see_memory(worker)
            looks += 1
            if self._moments and looks % 3 == 0:
                share = await self._share(run)
                if share >= self._moments[0]:
                    self._moments.pop(0)
                    await self._kill(share)
        assert (await ended).status == "finished", await hf.documents.workflow(workflow)

    async def _share(self, run: RunHandle[Any]) -> float:
        """Return how much of the work has been done: half is reading, half is asking."""
        read = sum(map.succeeded for map in await run.maps() if map.item in ("parse_pages",)) * 20
        asked = len({each.key for each in asked_in(self._folder / "asked.jsonl")})
        return min(1.0, (read + asked) / (2 * self.outcome.pages))

    async def _kill(self, share: float) -> None:
        await SystemClock().sleep(self._random.uniform(0, 0.3))
        # One that is busy: killing another proves nothing.
        path = self._folder / "asked.jsonl"
        asking = [each.process for each in asked_in(path)[-WORKERS:]]
        busy = [n for n, worker in enumerate(self._workers) if worker.pid in asking]
        number = self._random.choice(busy or range(WORKERS))
        victim = self._workers[number]
        victim.send_signal(signal.SIGKILL)
        await victim.wait()
        place = path.stat().st_size if path.exists() else 0
        recorded = await asyncio.to_thread(self._recorded, len(self.outcome.kills))
        self.outcome.kills.append(Kill(victim.pid, place, recorded, share))
        self._workers[number] = await self._worker()

    def _recorded(self, number: int) -> set[str]:
        """Return the keys of all answers that are recorded now, from a copy of the store."""
        copy = self._folder / f"copy-{number}.db"
        with (
            closing(sqlite3.connect(self._folder / "documents.db")) as source,
            closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
        copy.chmod(0o600)
        return asyncio.run(self._keys_in(copy))

    async def _keys_in(self, copy: Path) -> set[str]:
        keys: set[str] = set()
        async with Holdfast(f"sqlite:///{copy}", search=None) as hf:
            for run in _runs_in(copy):
                cursor: str | None = None
                while True:
                    page = await hf.run(run).history(limit=1_000, cursor=cursor)
                    for entry in page.entries:
                        call = str(entry.details.get("call", ""))
                        if (
                            entry.kind == "call"
                            and "result" in entry.details
                            and call.startswith("=")
                        ):
                            keys.add(call[1:])
                    cursor = page.cursor
                    if cursor is None:
                        break
        return keys

    def _see_memory(self, worker: Process) -> None:
        outcome = self.outcome
        outcome.peak_mb = max(outcome.peak_mb, _peak_mb(worker.pid))
        for child in _children_of(worker.pid):
            outcome.child_mb = max(outcome.child_mb, _peak_mb(child))

    async def _look_back(self, hf: Holdfast, run: RunHandle[Any], workflow: str) -> None:
        outcome = self.outcome
        outcome.asked = asked_in(self._folder / "asked.jsonl")
        after = 0
        while True:
            page = await hf.documents.segments(workflow, after=after, limit=1_000)
            if not page.segments:
                break
            for segment in page.segments:
                outcome.analyses[f"{segment.status} {len(segment.image_analysis)}"] += 1
            after = page.segments[-1].index
        database = self._folder / "documents.db"
        for pk, sk, body in _rows_in(database):
            size = item_bytes(decode_item(pk, sk, body))
            outcome.items += 1
            outcome.largest_item = max(outcome.largest_item, (size, f"{pk[:40]} {sk[:60]}"))
        for name in _runs_in(database):
            state = await hf.run(name).state()
            size = len(json.dumps(state, default=str).encode())
            outcome.largest_state = max(outcome.largest_state, (size, name))


def _rows_in(database: Path) -> list[tuple[str, str, bytes]]:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return connection.execute("SELECT pk, sk, body FROM items").fetchall()


def _runs_in(database: Path) -> list[str]:
    """Return the ids of all runs, chunks included."""
    return sorted({pk.split("#")[-1] for pk, _, _ in _rows_in(database) if pk.startswith("RUN#")})


def _peak_mb(process: int) -> float:
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    for line in status.splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0  # it has just ended


def _children_of(process: int) -> list[int]:
    found: list[int] = []
    try:
        for task in Path(f"/proc/{process}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def measured(plan: Plan) -> Outcome:
    """Process a document, and kill its workers."""
    parent = _MEMORY if _MEMORY.is_dir() else _CACHE
    folder = Path(tempfile.mkdtemp(dir=parent, prefix="bench-document-"))
    try:
        random = Random(SEED * 1_000 + plan.kills)
        outcome = asyncio.run(Measurement(folder, plan, random).run())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _show(outcome)
    return outcome


def _show(outcome: Outcome) -> None:
    print(
        f"  {outcome.pages:>6,} pages in {outcome.seconds:,.0f} s; worker at most "
        f"{outcome.peak_mb:.0f} MB, parser {outcome.child_mb:.0f} MB; {outcome.items:,} items"
    )
    for kill in outcome.kills:
        print(
            f"         killed at {kill.share:.0%} of the work, when {len(kill.recorded):,} answers "
            f"were recorded and {len(outcome.interrupted(kill))} questions of that worker were not"
        )
    print(
        f"         {len(outcome.asked):,} questions, {len(outcome.repeated)} asked again; "
        f"segments: {dict(outcome.analyses)}; by worker: "
        f"{sorted(Counter(each.process for each in outcome.asked).values())}"
    )
    print(
        f"         largest item {outcome.largest_item[0]:,} bytes ({outcome.largest_item[1]}), "
        f"largest state {outcome.largest_state[0]:,} bytes"
    )


def measure() -> list[Figure]:
    small, large = measured(Plan(pages=PAGES_SMALL)), measured(Plan(pages=PAGES, kills=KILLS))
    whole = large.analyses["completed 1"]
    return [
        Figure("recorded model calls that were repeated", len(large.recorded_repeated), at_most=0),
        Figure(
            "model calls repeated that no kill interrupted", len(large.not_in_flight), at_most=0
        ),
        Figure("questions asked under several keys", len(large.under_another_key), at_most=0),
        Figure("segments without exactly one analysis", large.pages - whole, at_most=0),
        Figure("largest item, KB", large.largest_item[0] / 1024, at_most=ITEM_KB_MAX),
        Figure("largest state of a run, KB", large.largest_state[0] / 1024, at_most=STATE_KB_MAX),
        Figure(
            f"peak memory of a worker, {large.pages:,} pages / {small.pages}",
            large.peak_mb / small.peak_mb,
            at_most=MEMORY_RATIO_MAX,
        ),
    ]
