"""A run that is killed in the middle, and goes on: `make demo`.

A document goes through six nodes. The process that runs them is killed with -9 inside the fourth.
Another process takes the run over and goes on there. The fifth node waits for a person, while no
process holds the run. At the end the demo prints what happened, and what it would have cost on
DynamoDB.
"""

from __future__ import annotations

import asyncio
import os
import signal as signals
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import NoReturn

from holdfast import Context, Graph, Holdfast, signal
from holdfast.storage import PRICES

APPROVAL = signal("approval", bool)
# How long after a worker's last heartbeat others may take over its runs. It is short here, so that
# the demo takes seconds and not a minute.
LEASE_SECONDS = 2
PATIENCE_SECONDS = 60


@dataclass
class Document:
    """What is known of a document. Each node adds something to it."""

    uri: str
    pages: int = 0
    text: str = ""
    fields: dict[str, str] = field(default_factory=dict[str, str])
    risk: str = ""
    approved: bool = False
    archived: str = ""


def document_graph(begun: Callable[[str], None], *, stuck_in: str = "") -> Graph[Document]:
    """Return the graph. It calls `begun` when a node begins; the node `stuck_in` never ends."""
    graph = Graph("document", Document)

    async def enter(ctx: Context) -> None:
        begun(ctx.node)
        if ctx.node == stuck_in:
            await asyncio.Event().wait()

    @graph.node
    async def fetch(document: Document, ctx: Context) -> Document:
        await enter(ctx)
        document.pages = 3
        return document

    @graph.node
    async def read(document: Document, ctx: Context) -> Document:
        await enter(ctx)
        document.text = "The warranty covers parts and labour for twenty-four months."
        return document

    @graph.node
    async def extract(document: Document, ctx: Context) -> Document:
        await enter(ctx)
        document.fields = {"covers": "parts and labour", "months": "24"}
        return document

    @graph.node
    async def classify(document: Document, ctx: Context) -> Document:
        await enter(ctx)
        document.risk = "high" if int(document.fields["months"]) > 12 else "low"
        return document

    @graph.node
    async def approve(document: Document, ctx: Context) -> Document:
        await enter(ctx)
        document.approved = await ctx.wait(APPROVAL)
        return document

    @graph.node
    async def archive(document: Document, ctx: Context) -> Document:
        await enter(ctx)
        document.archived = f"{document.uri}.json"
        return document

    graph.route(fetch, read, extract, classify, approve, archive)
    return graph


# --- the process that is killed -------------------------------------------------------------------


async def work_until_killed(url: str) -> NoReturn:
    """Start the run and execute it. Print each node that begins, and the units used so far."""
    async with Holdfast(url) as hf:

        def say(node: str) -> None:
            # The parent kills this process when it reads the line: do not leave it in a buffer.
            os.write(1, f"{node} {units_of_the_run(hf)}\n".encode())

        graph = document_graph(say, stuck_in="classify")
        async with hf.worker([graph], lease=LEASE_SECONDS):
            await hf.start(graph, Document("s3://scans/doc-42.pdf"), id="doc-42")
            await asyncio.Event().wait()
    raise AssertionError("the parent did not kill this process")


def start_and_kill(url: str) -> tuple[list[str], float]:
    """Return the nodes that had begun before the process was killed, and the units it had used."""
    child = subprocess.Popen([sys.executable, __file__, url], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    begun: list[str] = []
    units = 0.0
    for line in child.stdout:
        node, used = line.split()
        begun.append(node)
        units = float(used)
        if node == "classify":
            os.kill(child.pid, signals.SIGKILL)
            break
    child.stdout.close()
    if child.wait() != -signals.SIGKILL:
        sys.exit(f"the worker ended by itself, with {child.returncode}")
    return begun, units


# --- the process that goes on ---------------------------------------------------------------------


async def go_on(url: str, units_before: float) -> None:
    begun: list[str] = []
    graph = document_graph(begun.append)
    async with Holdfast(url) as hf:
        run = hf.run("doc-42", graph=graph)
        row = await run.get()
        print(f"2. Its row still says: {row.status}, held by worker {row.owner}.")

        async with hf.worker([graph], lease=4 * LEASE_SECONDS):
            await run.until("waiting", timeout=PATIENCE_SECONDS)
        print(f"3. Another process took it over and ran: {', '.join(begun)}.")
        assert not {"fetch", "read", "extract"} & {*begun}, begun

        row = await run.get()
        print(
            f"4. Now it is {row.status} in {row.node!r} for the signal {row.waits[0].signal!r}. "
            "No worker runs, and it costs nothing."
        )

        await run.signal(APPROVAL, True, signal_id="mail-7")
        await run.signal(APPROVAL, True, signal_id="mail-7")
        print("5. A person approved; the answer was sent twice, and counts once.")

        begun.clear()
        async with hf.worker([graph], lease=4 * LEASE_SECONDS):
            result = await run.result(timeout=PATIENCE_SECONDS)
        print(f"6. A third worker ran: {', '.join(begun)}. The result:\n")
        for name, value in asdict(result).items():
            print(f"   {name:<9} {value}")

        print("\n7. Its history, which any process can read:\n")
        for entry in (await run.history()).entries:
            print(f"   {entry.at:%H:%M:%S.%f} {entry.kind:<9} {entry.node or ''}")

        print("\n8. On DynamoDB this process would have cost:\n")
        print("   " + str(hf.meter.report()).replace("\n", "\n   "))
        units = units_before + units_of_the_run(hf)
        dollars = units * PRICES.write_units_million_usd
        print(
            f"\n   The run itself took {units:g} write units in both processes, the kill and the "
            f"pause included:\n   ${dollars:,.2f} for a million of its kind."
        )


def units_of_the_run(hf: Holdfast) -> float:
    """Return the write units of the run's row, journal and inbox."""
    units = hf.meter.report().by_purpose()
    return sum(units[name].writes for name in ("head", "journal", "inbox") if name in units)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/demo.db"
        begun, units = start_and_kill(url)
        print(f"1. A process ran {', '.join(begun)}, and was killed (-9) inside the last.")
        asyncio.run(go_on(url, units))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(work_until_killed(sys.argv[1]))
    else:
        main()
