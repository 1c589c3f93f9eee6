"""A process that begins a map and dies at a write: ``python -m tests.crash.mapping URL NUMBER``.

It says what was acknowledged, and each write before it is sent. With NUMBER 0 it does not die.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from holdfast import Context, Graph, Holdfast
from tests.crash.brink import open_at_brink
from tests.crash.flows import EFFECTS, effects_folder

RUN = "run"
COUNT, CHUNK, CONCURRENCY = 5, 2, 4
FAILS = 3
# The lease is what the next process waits for.
OPTIONS: dict[str, Any] = {"lease": 1.5, "poll": 0.02, "hold": 0}

mapping = Graph("mapping", dict)


async def note_call(index: int) -> int:
    folder = effects_folder.get() or Path(os.environ[EFFECTS])
    with (folder / str(os.getpid())).open("a") as file:
        file.write(f"{index}\n")
    return index * index


@mapping.item
async def square(index: int, ctx: Context) -> int:
    squared = await ctx.call(note_call, index)
    if index == FAILS:
        raise ValueError("unlucky")
    return squared


@mapping.node
async def begin(state: dict[str, Any], ctx: Context) -> dict[str, Any]:
    cursor = await ctx.map(square, COUNT, chunk=CHUNK, concurrency=CONCURRENCY, tolerate=1)
    return {"results": [entry.result async for entry in ctx.mapped(cursor)]}


def say(line: str) -> None:
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


async def main(url: str, number: str) -> None:
    async with (
        Holdfast(url, store=open_at_brink(url, int(number), "after", say)) as hf,
        hf.worker([mapping], **OPTIONS),
    ):
        run = await hf.start(mapping, {}, id=RUN)
        say("started")
        await run.result()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
