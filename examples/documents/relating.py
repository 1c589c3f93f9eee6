"""The step ``graph_builder``: the entities of the whole document, and their relations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

from documents.entities import EntityGraph
from documents.processing import Desk, Processing, Work
from documents.steps import ATTEMPTS, TRANSIENT
from holdfast import Context, Graph, Retry

__all__ = ["add_relating"]

_LARGEST = 50


class Related(TypedDict):
    """What the builder made."""

    graph: str


def add_relating(graph: Graph[Processing], desk: Desk) -> Callable[[Processing, Context], object]:
    """Add the node ``graph_builder`` to the graph, and return it."""

    @graph.node(retry=Retry(attempts=ATTEMPTS, on=TRANSIENT))
    async def graph_builder(state: Processing, ctx: Context) -> Related:
        assert state.job is not None  # nodes before made them
        assert state.analysed is not None
        work = Work(desk, ctx, state.job)
        async with work.steps.running("graph_builder"):
            gathering = EntityGraph()
            async for entry in ctx.mapped(state.analysed):
                if entry.failure is None:
                    gathering.add(entry.index + 1, entry.result)
            parts = [
                await work.shelf.put(f"graph/{number:04}", part)
                for number, part in enumerate(gathering.parts())
            ]
            facts = {
                "entities": gathering.entities,
                "relations": gathering.relations,
                "left_out": gathering.left_out,
                "largest": gathering.largest(_LARGEST),
                "parts": parts,
            }
            return {"graph": await work.shelf.put("graph/index", facts)}

    return graph_builder
