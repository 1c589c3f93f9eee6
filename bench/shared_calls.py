"""Equal model calls that are shared, made at once in several processes: how many are paid.

``python -m bench.shared_calls URL PORT`` is one of these processes: it says ``ready``, starts its
runs when it is told to, and says what each was answered, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from asyncio.subprocess import PIPE
from math import nan
from pathlib import Path
from typing import Any

from bench.effects import EffectLedger
from bench.peers.paid_model import PaidModel
from bench.peers.ten_effects import Ledger
from holdfast import Graph, Holdfast

ROOT = Path(__file__).parents[1]
PROCESSES = 2
SHARED = 100
WORK_SECONDS = (1.0, 1.0)
"""So long that all of the calls are there while the first is under way."""

graph = Graph("shared", dict)


@graph.node
async def ask(state: Any, ctx: Any) -> Any:
    return {"answer": (await ctx.model("paid", "1 1", share=True)).text}


def calls_paid(folder: Path) -> float:
    """Make the calls; return how many the model saw, or NaN if they could not be made."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="bench-") as inside:
        return asyncio.run(_paid(f"sqlite:///{inside}/shared.db"))


async def _paid(url: str) -> float:
    ledger = EffectLedger(work_seconds=WORK_SECONDS)
    async with ledger.served():
        command = [sys.executable, "-m", "bench.shared_calls", url, str(ledger.port)]
        processes = [
            await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stdout=PIPE)
            for _ in range(PROCESSES)
        ]
        for process in processes:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
        said = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    if any(process.returncode for process in processes):
        return nan  # they said why
    answers = [answer for out, _ in said for answer in json.loads(out)]
    print(f"  {len(answers)} equal shared calls in {PROCESSES} processes: {len(ledger.asked)} paid")
    assert len(answers) == SHARED
    return len(ledger.asked)


async def _main(url: str, port: str) -> None:
    models = {"paid": PaidModel(Ledger(int(port)).effect)}
    async with Holdfast(url, models=models) as hf, hf.worker([graph], concurrency=SHARED):
        print("ready", flush=True)
        sys.stdin.readline()
        count = SHARED // PROCESSES
        runs = await asyncio.gather(*(hf.start(graph, {}) for _ in range(count)))
        results = await asyncio.gather(*(run.result() for run in runs))
    print(json.dumps([result["answer"] for result in results]))


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
