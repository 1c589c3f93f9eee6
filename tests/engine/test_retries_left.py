"""How many more failures a run survives, as its row tells it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import Graph, Holdfast, Retry
from tests.engine.support import House

LONG = Retry(attempts=3, backoff=100, factor=1, jitter=0)
SHORT = Retry(attempts=3, backoff=0, jitter=0)


def failing(retry: Retry, *, until: int = 1_000) -> Graph:
    """Return a graph of one node that fails until an attempt of that number."""
    graph, attempts = Graph("failing", dict), []

    @graph.node(retry=retry)
    async def node(state: Any) -> Any:
        attempts.append(1)
        if len(attempts) < until:
            raise OSError("not today")

    return graph


async def test_each_failure_leaves_one_retry_less_and_the_last_none(either: House) -> None:
    hf, graph = either.open(), failing(LONG)
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph)
        left = []
        for _ in range(3):
            await either.quiet(worker)
            left.append(await standing(hf, run.id))
            either.clock.advance(100.2)
    assert left == [("waiting", 1), ("waiting", 0), ("failed", 0)]


@pytest.mark.parametrize("retry", [SHORT, LONG], ids=["in place", "paused"])
async def test_a_run_that_failed_for_good_has_none_and_a_retry_gives_all_of_them_back(
    house: House, hf: Holdfast, retry: Retry
) -> None:
    graph = failing(retry)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph)
        assert await standing(hf, run.id) == ("running", 2)
        for _ in range(3):
            await house.quiet(worker)
            house.clock.advance(100.2)
    assert await standing(hf, run.id) == ("failed", 0)
    await run.retry()
    assert await standing(hf, run.id) == ("ready", 2)


async def test_a_run_that_finished_or_was_cancelled_has_none(house: House, hf: Holdfast) -> None:
    graph = failing(SHORT, until=2)
    cancelled = await hf.start(graph)
    assert await standing(hf, cancelled.id) == ("ready", 2)
    await cancelled.cancel()
    assert await standing(hf, cancelled.id) == ("cancelled", 0)
    async with house.worker(hf, graph) as worker:
        finished = await hf.start(graph)
        await house.quiet(worker)
    assert await standing(hf, finished.id) == ("finished", 0)


async def test_the_branch_with_the_fewest_retries_counts(house: House, hf: Holdfast) -> None:
    graph, attempts = Graph("forked", dict), []

    @graph.node
    async def split(state: Any) -> Any: ...

    @graph.node(retry=Retry(attempts=5, backoff=100, factor=1, jitter=0), writes=())
    async def many(state: Any) -> Any:
        attempts.append("many")
        raise OSError("not today")

    @graph.node(retry=LONG, writes=())
    async def few(state: Any) -> Any:
        attempts.append("few")
        raise OSError("not today")

    @graph.node
    async def join(state: Any) -> Any: ...

    graph.fork(split, [many, few], join=join)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph)
        left = []
        for _ in range(3):
            await house.quiet(worker)
            left.append(await standing(hf, run.id))
            house.clock.advance(100.2)
    assert left == [("waiting", 1), ("waiting", 0), ("failed", 0)]
    await run.retry()
    assert await standing(hf, run.id) == ("ready", 2)
    assert attempts.count("few") == 3


def test_a_version_with_fewer_attempts_leaves_none() -> None:
    tried_twice = replace(failing(LONG).start({}, "seed"), failed_attempts=2)
    assert failing(Retry(attempts=1)).retries_left(tried_twice) == 0


async def standing(hf: Holdfast, id: str) -> tuple[str, int]:
    row = await hf.run(id).get()
    return row.status, row.retries_left
