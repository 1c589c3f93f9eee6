"""kill -9 after each write of a map: the next process finishes it, and repeats no recorded call."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

from holdfast import Holdfast
from holdfast.engine.runs.map_chunks import chunk_id
from holdfast.errors import RunNotFound
from holdfast.model.map import MapChunk
from holdfast.records.keys import RunKey
from tests.crash.flows import EFFECTS, effects_folder
from tests.crash.mapping import CHUNK, CONCURRENCY, COUNT, FAILS, OPTIONS, RUN, mapping
from tests.crash.processes import ended, running

PROCESSES = 2
RESCUES = 6
DEADLINE_SECONDS = 120
WRITES_MIN = 15
RESULTS = [None if n == FAILS else n * n for n in range(COUNT)]


async def lived(folder: Path, number: int) -> tuple[int, list[str]]:
    """Let a process die after its write of that number; return how it ended and what it said."""
    (folder / "effects").mkdir(parents=True)
    arguments = ("-m", "tests.crash.mapping", url_of(folder), str(number))
    async with running(*arguments, env={EFFECTS: str(folder / "effects")}) as process:
        return await ended(process)


async def test_kill_9_after_every_write_of_a_map(tmp_path: Path) -> None:
    """After a write is before the next one: so every boundary between two writes is met."""
    room, rescues = asyncio.Semaphore(PROCESSES), asyncio.Semaphore(RESCUES)

    async def one(number: int) -> None:
        folder = tmp_path / str(number)
        async with room:
            code, said = await lived(folder, number)
        # In another process the writes may be fewer: those that come together share one.
        assert code in (0, -signal.SIGKILL), said
        async with rescues:
            try:
                await rescued(folder, said)
            except BaseException as error:
                error.add_note(f"{number}: {said}")
                raise

    async with asyncio.timeout(DEADLINE_SECONDS):
        code, said = await lived(tmp_path / "clean", 0)
        writes = sum(line.startswith("write ") for line in said)
        assert (code, writes >= WRITES_MIN) == (0, True), said
        async with asyncio.TaskGroup() as group:
            for number in range(1, writes + 1):
                group.create_task(one(number))


async def rescued(folder: Path, said: list[str]) -> None:
    """Finish what the process left behind, and check that nothing that it recorded is repeated."""
    effects_folder.set(folder / "effects")
    async with Holdfast(url_of(folder)) as hf:
        recorded, before = await recorded_calls(hf), calls_of(folder)
        async with hf.worker([mapping], **OPTIONS):
            if "started" not in said:
                await hf.start(mapping, {}, id=RUN)
            run = hf.run(RUN)
            assert (await run.result(timeout=60))["results"] == RESULTS
        (progress,) = await run.maps()
        assert (progress.status, progress.succeeded, progress.failed) == ("finished", COUNT - 1, 1)
        items = [entry async for entry in run.map(progress.map).items()]
        assert [entry.result for entry in items] == RESULTS
    after = calls_of(folder, os.getpid())
    assert recorded.isdisjoint(after)
    assert max(before.values(), default=1) == max(after.values(), default=1) == 1
    assert len(before.keys() & after.keys()) <= CONCURRENCY
    assert before.keys() | after.keys() == set(range(COUNT))


async def recorded_calls(hf: Holdfast) -> set[int]:
    """Return the items whose calls are in the journals of the chunks."""
    found = set[int]()
    with suppress(RunNotFound):
        generation = (await hf.run(RUN).get()).generation
        for number in range(math.ceil(COUNT / CHUNK)):
            chunk = MapChunk(map="0.1", lane=0, number=number, first=0, count=0)
            with suppress(RunNotFound):
                run = hf.run(chunk_id(RunKey("default", RUN), generation, chunk))
                entries = (await run.history()).entries
                found |= {math.isqrt(e.details["result"]) for e in entries if e.kind == "call"}
    return found


def calls_of(folder: Path, process: int | None = None) -> Counter[int]:
    """Return how often each item was called: by the process that died, or by this one."""
    files = list((folder / "effects").iterdir())
    mine = str(os.getpid())
    wanted = [file for file in files if (file.name == mine) == (process is not None)]
    return Counter(int(line) for file in wanted for line in file.read_text().split())


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder}/runs.db"
