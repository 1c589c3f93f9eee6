"""What hostile nodes, tools and moments do to effects."""

from __future__ import annotations

from typing import Any

from holdfast import Holdfast
from tests.engine.asking import graph_of
from tests.engine.support import (
    House,
)


def calls_in(entries: Any) -> list[str]:
    return [entry.details["call"] for entry in entries if entry.kind == "call"]


async def test_a_plain_node_calls_plain_functions_though_every_thread_is_taken(
    house: House, hf: Holdfast
) -> None:
    def double(n: int) -> int:
        return 2 * n

    def node(state: Any, ctx: Any) -> Any:
        return {"n": ctx.call(double, 2)}

    graph = graph_of(node)
    async with house.worker(hf, graph, concurrency=1):
        run = await hf.start(graph, id="doc-42")
        assert await run.result(timeout=5) == {"n": 4}
