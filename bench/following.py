"""What it costs to follow the processing of a document, for 300 and for 3,000 segments.

Segments are stored while one reader looks 300 times, as it does in ten minutes. They come in 20
chunks at a time, or in random order. The figures are read units, so that they are the same on every
machine.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from dataclasses import dataclass

from bench.figures import Figure
from holdfast import Holdfast
from holdfast.server.options import ServerOptions
from holdfast.server.streams.followed_workflow import FollowedWorkflow
from holdfast.server.streams.shared_reader import ReaderLimits
from holdfast.server.streams.workflow_hub import WorkflowHub

LOOKS = 300
SIZES = (300, 3_000)
CHUNK, CHUNKS_AT_ONCE = 50, 20
ANALYSIS = [{"kind": "summary", "text": "t" * 500}]


@dataclass(frozen=True)
class Cost:
    """Read units."""

    whole: float
    worst: float
    """Of one look."""
    everything: float
    """What it would cost to read all segments that are stored at each look."""


def in_chunks(total: int) -> list[int]:
    """Return the order in which workers store segments that have a number of chunks at a time."""
    chunks = [list(range(at, min(at + CHUNK, total + 1))) for at in range(1, total + 1, CHUNK)]
    running, order = [chunks.pop(0) for _ in range(min(CHUNKS_AT_ONCE, len(chunks)))], list[int]()
    while running:
        for chunk in list(running):
            order.append(chunk.pop(0))
            if not chunk:
                running.remove(chunk)
                running += [chunks.pop(0)] if chunks else []
    return order


def in_random_order(total: int) -> list[int]:
    return random.Random(7).sample(range(1, total + 1), total)


async def cost_of(order: list[int]) -> Cost:
    total = len(order)
    with tempfile.TemporaryDirectory() as folder:
        async with Holdfast(f"sqlite:///{folder}/runs.db") as hf:
            documents = hf.documents
            project = await documents.projects.create("Contracts")
            document = await documents.add(
                project.id, file_uri="s3://inbox/a", file_name="a.pdf", file_type="application/pdf"
            )
            workflow = await documents.begin(document.id)
            await documents.set_status(workflow.id, "in_progress", total_segments=total)
            options = ServerOptions()
            hub = WorkflowHub(
                FollowedWorkflow(documents, workflow.id, tenant="default"),
                clock=hf.clock,
                limits=ReaderLimits(options.stream_messages_max, options.stream_bytes_max),
                poll_seconds=1e6,
            )
            await hub.refresh()
            whole = worst = everything = 0.0
            size = total // LOOKS
            for look in range(LOOKS):
                for index in order[look * size : (look + 1) * size]:
                    await documents.put_segment(
                        workflow.id, index, s3_key="k" * 100, image_analysis=ANALYSIS
                    )
                before = hf.meter.report().units.read
                await hub.refresh()
                spent = hf.meter.report().units.read - before
                whole, worst = whole + spent, max(worst, spent)
                everything += 3 + (look + 1) * size * 0.9 / 4 / 2  # 0.9 KB, eventually consistent
            await hub.close()
    return Cost(whole, worst, everything)


def measure() -> list[Figure]:
    figures: list[Figure] = []
    for name, make in (("in chunks", in_chunks), ("in random order", in_random_order)):
        costs = [asyncio.run(cost_of(make(total))) for total in SIZES]
        for total, cost in zip(SIZES, costs, strict=True):
            print(
                f"  {total:>5} segments {name:<16} {cost.whole:>7.0f} read units in {LOOKS} looks, "
                f"{cost.worst:.1f} at most in one; reading all at each: {cost.everything:,.0f}"
            )
        small, large = costs
        grows = f"following ten times as many segments, {name} / one time"
        figures.append(Figure(grows, large.whole / small.whole, at_most=10))
        figures.append(Figure(f"read units of the dearest look, {name}", large.worst, at_most=20))
    return figures
