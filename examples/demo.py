"""A run that is killed in the middle, and goes on: `make demo`.

A document goes through six nodes. The process that runs them is killed with -9 inside the fourth;
another one takes the run over and goes on there. The fifth waits for a person, while no process
holds the run. At the end stands what happened, and what it would have cost on DynamoDB.
"""

from __future__ import annotations

import asyncio
import os
import signal as signals
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import NoReturn, TypedDict

from holdfast import Context, Graph, Holdfast, signal
from holdfast.storage import PRICES

INPUT = {"uri": "s3://scans/doc-42.pdf"}
# How long after a worker's last sign of life others may take over what it held. It is short here,
# so that nobody has to watch a minute go by.
LEASE_SECONDS = 2
PATIENCE_SECONDS = 60


class Document(TypedDict, total=False):
    """What is known of a document, and grows from node to node."""

    uri: str
    pages: int
    text: str
    fields: dict[str, str]
    risk: str
    approved: bool
    archived: str


def document_graph(begun: Callable[[str], None], *, stuck_in: str = "") -> Graph:
    """Return the workflow; `begun` hears of each node that begins, and one never ends."""
    graph = Graph("document", Document)

    async def enter(ctx: Context) -> None:
        begun(ctx.node)
        if ctx.node == stuck_in:
            await asyncio.Event().wait()

    @graph.node
    async def fetch(state: Document, ctx: Context) -> Document:
        await enter(ctx)
        return {"pages": 3}

    @graph.node
    async def read(state: Document, ctx: Context) -> Document:
        await enter(ctx)
        return {"text": "The warranty covers parts and labour for twenty-four months."}

    @graph.node
    async def extract(state: Document, ctx: Context) -> Document:
        await enter(ctx)
        return {"fields": {"covers": "parts and labour", "months": "24"}}

    @graph.node
    async def classify(state: Document, ctx: Context) -> Document:
        await enter(ctx)
        return {"risk": "high" if int(state["fields"]["months"]) > 12 else "low"}

    @graph.node
    async def approve(state: Document, ctx: Context) -> Document:
        await enter(ctx)
        return {"approved": await ctx.wait(signal("approval"))}

    @graph.node
    async def archive(state: Document, ctx: Context) -> Document:
        await enter(ctx)
        return {"archived": f"{state['uri']}.json"}

    graph.route(fetch, read, extract, classify, approve, archive)
    return graph


# --- the process that is killed -------------------------------------------------------------------


async def work_until_killed(url: str) -> NoReturn:
    """Start the run and drive it; say of each node that it begins, and what was used so far."""
    async with Holdfast(url) as hf:

        def say(node: str) -> None:
            # Whoever reads this may kill us before the next line is carried out.
            os.write(1, f"{node} {units_of_the_run(hf)}\n".encode())

        graph = document_graph(say, stuck_in="classify")
        async with hf.worker([graph], lease=LEASE_SECONDS):
            await hf.start(graph, INPUT, id="doc-42")
            await asyncio.Event().wait()
    raise AssertionError("nobody killed it")


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

        await run.signal("approval", True, signal_id="mail-7")
        await run.signal("approval", True, signal_id="mail-7")
        print("5. A person approved; the answer was sent twice, and counts once.")

        begun.clear()
        async with hf.worker([graph], lease=4 * LEASE_SECONDS):
            result = await run.result(timeout=PATIENCE_SECONDS)
        print(f"6. A third worker ran: {', '.join(begun)}. The result:\n")
        for name, value in result.items():
            print(f"   {name:<9} {value}")

        print("\n7. Its history, as anybody can read it:\n")
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
