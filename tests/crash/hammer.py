"""A process that writes to a store as fast as it can, and says on its output what was acknowledged.

``python -m tests.crash.hammer URL NAME`` writes until its input ends. Each line it prints is one
acknowledged write: ``pair N``, ``put N`` or ``add``.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys

from holdfast.clock import SystemIds
from holdfast.storage.layout import Key
from holdfast.storage.open import open as open_store
from holdfast.storage.table import Table
from holdfast.storage.writes import Absent, Put, Update

IN_FLIGHT = 8
NEW = Absent("PK")


def say(line: str) -> None:
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


async def hammer(table: Table, name: str, stop: asyncio.Event) -> None:
    numbers = itertools.count()
    ids = SystemIds()

    async def work() -> None:
        while not stop.is_set():
            n = next(numbers)
            # Both halves of a pair carry the same mark, and enough text to span several pages.
            half = {"PK": f"pair-{name}", "mark": ids.new(), "text": "x" * 3000}
            await table.transact(
                [Put({**half, "SK": f"{n:06}-a"}, NEW), Put({**half, "SK": f"{n:06}-b"}, NEW)]
            )
            say(f"pair {n}")
            await table.write(Put({"PK": f"put-{name}", "SK": f"{n:06}"}, NEW, token=ids.new()))
            say(f"put {n}")
            await table.write(Update(key=Key("sum", name), add={"n": 1}, token=ids.new()))
            say("add")

    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))


async def main(url: str, name: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)
    async with open_store(url) as store:
        await hammer(store.table, name, stop)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
