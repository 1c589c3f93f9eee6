"""The expiry that a graph declares for its runs, and warnings where a wait does not fit."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from holdfast import Graph, Holdfast, days, hours, signal
from holdfast.errors import InvalidRequest
from tests.engine.support import House, chain

DAY_MS = 24 * 3600 * 1000


async def asks(state: Any, ctx: Any) -> Any:
    await ctx.wait(signal("approved"), max_wait=days(7))


def asking(**options: Any) -> Graph:
    graph = Graph("approval", dict, **options)
    graph.node(name="ask")(asks)
    return graph


async def lasts_ms(hf: Holdfast, graph: Graph, **options: Any) -> float:
    row = await (await hf.start(graph, **options)).get()
    return row.expires_at.timestamp() * 1000 - row.created_at.timestamp() * 1000


async def test_a_graph_says_when_its_runs_expire_and_a_start_wins(hf: Holdfast) -> None:
    assert await lasts_ms(hf, asking()) == 7 * DAY_MS
    assert await lasts_ms(hf, asking(expires=days(30))) == 30 * DAY_MS
    assert await lasts_ms(hf, asking(expires=days(30)), expires=hours(1)) == 3_600_000
    assert await lasts_ms(hf, asking(expires=hours(1)), expires=days(30)) == 30 * DAY_MS


async def test_children_expire_with_their_parent(house: House, hf: Holdfast) -> None:
    child = asking(expires=days(90))

    async def parent(state: Any, ctx: Any) -> Any:
        await ctx.run(child, id="child")

    graph = chain("parent", 1, lambda number: {}, node0=parent)
    async with house.worker(hf, graph, child) as worker:
        run = await hf.start(graph, expires=days(30))
        await house.quiet(worker)
        assert (await hf.run("child").get()).expires_at == (await run.get()).expires_at


@pytest.mark.parametrize("expires", [0, -1, "3", "0s", float("nan"), days(40_000), True])
def test_what_is_no_span_of_time_is_refused(expires: Any) -> None:
    with pytest.raises(InvalidRequest, match="expires must be"):
        Graph("g", dict, expires=expires)


async def test_a_wait_that_does_not_fit_is_told_once(
    hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    graph = asking()
    with caplog.at_level(logging.WARNING, "holdfast"):
        await hf.start(graph, expires=days(8))
        assert caplog.messages == []
        for _ in range(2):
            await hf.start(graph)
    assert caplog.messages == [
        "graph approval: node 'ask' waits up to 7d, and the run expires after 7d: the wait will "
        "time out at the expiry; pass a longer expires="
    ]


async def test_a_longer_expiry_of_the_graph_is_enough(
    hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "holdfast"):
        await hf.start(asking(expires=days(30)))
    assert caplog.messages == []
