"""A node is left before its end, and the run goes on: with whatever error the node is left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import RunCancelled
from tests.engine.support import WAIT_SECONDS_MAX, Gate, House, chain, tenant_key

RUN = tenant_key("doc-42")


async def test_a_run_that_is_cancelled_by_its_own_node_ends_at_once(
    house: House, hf: Holdfast
) -> None:
    """The node returns before it hears that it was interrupted."""

    async def cancels_itself(state: Any) -> Any:
        await hf.run("doc-42").cancel("enough")
        return {"done": True}

    graph = chain("g", 1, lambda number: {}, node0=cancels_itself)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        row = await hf.run("doc-42").get()
        assert (row.status, row.owner) == ("cancelled", None)
        with pytest.raises(RunCancelled):
            await run.result(timeout=WAIT_SECONDS_MAX)


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice before it hears of it"])
async def test_a_node_that_answers_an_interruption_with_an_error_leaves_none_behind(
    house: House, hf: Holdfast, times: int
) -> None:
    """Else the end of the worker would pass for one, and its run would go on without it."""
    gate = Gate()

    async def stubborn(state: Any) -> Any:
        try:
            await gate.pass_through()
        except asyncio.CancelledError:
            if gate.entered == 1:
                raise ValueError("not now") from None
            raise

    graph = chain("g", 1, lambda number: {}, node0=stubborn)
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, id="doc-42")
        await gate.waited_at()
        for _ in range(times):
            worker.drivers.interrupt(RUN)
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while gate.entered < 2:
                await house.clock.sleep(0)
        driving = worker.drivers._tasks[RUN]
        assert not driving.cancelling()
        driving.cancel()
        await asyncio.wait({driving}, timeout=WAIT_SECONDS_MAX)
        assert driving.cancelled()
        assert gate.entered == 2


async def test_a_task_that_is_interrupted_and_cancelled_ends(house: House, hf: Holdfast) -> None:
    gate = Gate()

    async def waits(state: Any) -> Any:
        await gate.pass_through()

    graph = chain("g", 1, lambda number: {}, node0=waits)
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, id="doc-42")
        await gate.waited_at()
        driving = worker.drivers._tasks[RUN]
        worker.drivers.interrupt(RUN)
        driving.cancel()
        await asyncio.wait({driving}, timeout=WAIT_SECONDS_MAX)
        assert driving.cancelled()
        assert gate.entered == 1
