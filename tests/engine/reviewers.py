"""A graph whose one node asks for a review, and what its run is asked."""

from __future__ import annotations

import dataclasses
from typing import Any

from holdfast import Graph, Holdfast, RunHandle
from holdfast.model.review import Review
from tests.engine.support import House, reached


@dataclasses.dataclass
class Terms:
    months: int
    note: str = ""


def reviewing(question: str = "Approve?", **options: Any) -> Graph:
    """Return a graph whose node asks for a review, and returns the decision."""
    graph = Graph("g", dict)

    @graph.node
    async def ask(state: Any, ctx: Any) -> Any:
        decision = await ctx.review(question, **options)
        return {
            "status": decision.status,
            "by": decision.by,
            "comment": decision.comment,
            "values": decision.values and dataclasses.asdict(decision.values),
            "votes": [(vote.by, vote.approve) for vote in decision.votes],
        }

    return graph


async def asked(
    house: House, hf: Holdfast, graph: Graph, *, id: str = "r", **start: Any
) -> tuple[RunHandle, Review]:
    """Start a run, let a worker execute it until it waits, and return the review."""
    run = await hf.start(graph, {}, id=id, **start)
    await work(house, graph)
    await reached(hf, id, "waiting")
    (entry,) = (await hf.reviews.list(run=id)).reviews
    return run, await hf.reviews.get(entry.id)


async def work(house: House, *graphs: Graph) -> None:
    """Let another process execute what is due, and stop."""
    async with house.worker(house.open(), *graphs) as worker:
        await house.quiet(worker)
