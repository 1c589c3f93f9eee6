"""What the storage of Holdfast does, on the embedded engine: `make demo`.

A process appends to a journal and is killed with -9 in the middle. Another one finds everything
that was acknowledged, goes on where the first was stopped, and tells what it would cost on
DynamoDB.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile

from holdfast.errors import ConditionFailed
from holdfast.storage import Absent, Prefix, Put, Table, open

JOURNAL = "RUN#acme#doc-42"
ENTRIES = 2_000
KILLED_AFTER = 700


async def append(table: Table, n: int) -> None:
    """Write entry `n`, which nobody may have written before."""
    entry = {"PK": JOURNAL, "SK": f"J#{n:08}", "node": f"step {n}", "text": "x" * 600}
    await table.write(Put(entry, Absent("PK")))


async def work(url: str) -> None:
    """The process that will be killed: it says each number once the entry is durable."""
    async with open(url) as store:
        for n in range(ENTRIES):
            await append(store.table, n)
            os.write(1, f"{n}\n".encode())


def start_and_kill(url: str) -> int:
    """Return the last number that the process said before it was killed."""
    child = subprocess.Popen([sys.executable, __file__, url], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    said = [int(child.stdout.readline()) for _ in range(KILLED_AFTER)]
    os.kill(child.pid, signal.SIGKILL)
    said += [int(line) for line in child.stdout if line.endswith("\n")]
    child.wait()
    return said[-1]


async def go_on(url: str, last_said: int) -> None:
    async with open(url) as store:
        journal = store.table.purpose("journal")
        found = [entry async for entry in journal.every(JOURNAL, Prefix("J#"))]
        print(f"2. Another process finds {len(found)} entries: all {last_said + 1} that were said.")
        assert [entry["SK"] for entry in found] == [f"J#{n:08}" for n in range(len(found))]
        assert len(found) > last_said

        try:
            await append(journal, 0)
        except ConditionFailed as failed:
            standing = failed.item or {}
            print(f"3. Entry 0 cannot be written again: {standing['node']!r} stands there.")

        store.meter.reset()
        await asyncio.gather(*(append(journal, n) for n in range(len(found), ENTRIES)))
        print(f"4. It goes on from {len(found)} to {ENTRIES}, 1 durable write each, in groups.")

        scan = await store.blobs.put(b"%PDF-1.7 ..." * 10_000, key="scans/doc-42.pdf")
        assert len(await store.blobs.get(scan)) == scan.size
        print(f"5. What is too large for an item is a blob: {scan.key}, {scan.size:,} bytes.")

        report = store.meter.report()
        print("6. On DynamoDB and S3 this would have cost:\n")
        print("   " + str(report).replace("\n", "\n   "))
        print(f"\n   once a second, all month: ${report.dollars_a_month(3600):,.2f}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/demo.db"
        last_said = start_and_kill(url)
        print(
            f"1. A process wrote to {os.path.basename(url)} and was killed (-9) after {last_said}."
        )
        asyncio.run(go_on(url, last_said))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(work(sys.argv[1]))
    else:
        main()
