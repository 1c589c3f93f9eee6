"""Many processes that open a new file at the same moment: all of them can."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

ROUNDS = 6
PROCESSES = 8

OPEN = """
import asyncio, sys
from holdfast.storage import Put, open

async def main():
    print("ready", flush=True)
    sys.stdin.readline()
    async with open(sys.argv[1]) as store:
        await store.table.write(Put({"PK": "p", "SK": sys.argv[2]}))
        await store.table.query("p")

asyncio.run(main())
"""


async def test_a_new_file_is_opened_by_many_at_once(tmp_path: Path) -> None:
    async with asyncio.timeout(120):
        for number in range(ROUNDS):
            url = f"sqlite:///{tmp_path}/{number}.db"
            processes = [
                await asyncio.create_subprocess_exec(
                    sys.executable, "-c", OPEN, url, f"{n}", stdin=PIPE, stdout=PIPE, stderr=PIPE
                )
                for n in range(PROCESSES)
            ]
            for process in processes:
                assert process.stdout is not None
                assert await process.stdout.readline() == b"ready\n"
            outcomes = await asyncio.gather(*(p.communicate(b"go\n") for p in processes))
            errors = [error.decode()[-500:] for _, error in outcomes if error]
            assert errors == []
            assert [process.returncode for process in processes] == [0] * PROCESSES
