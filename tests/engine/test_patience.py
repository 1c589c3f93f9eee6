"""A run whose store fails is held for one patience: nothing else is tried for it after that."""

from __future__ import annotations

from typing import Any

from holdfast import Graph
from holdfast.errors import StoreFull
from holdfast.records.keys import RunKey
from tests.engine.streets import Street, holding
from tests.engine.support import incompressible

PATIENCE_SECONDS = 20.0

graph = Graph("large", dict)


@graph.node
async def work(state: dict[str, Any]) -> dict[str, Any]:
    return {"done": True}


async def test_a_run_is_released_at_once_though_it_was_extended_meanwhile(street: Street) -> None:
    """Its row refuses the first release; what lies in its inbox need not be read for another."""
    good, bad = street.place(), street.place()
    await good.hf.start(graph, {"text": incompressible(1, 20_000)}, id="one", expires=3600)
    bad.blobs.error = StoreFull("full")
    async with holding(bad, graph) as cut_off:
        cut_off._owner.store_retry_seconds = PATIENCE_SECONDS
        await street.until(lambda: bad.blobs.failed >= 1)
        await good.hf.run("one").signal("told", incompressible(2, 20_000))
        await good.hf.run("one").extend(7200)
        await street.until(lambda: cut_off.counts["cut off"] == 1)
        await street.until(lambda: not cut_off.running)
        row = await good.hf.run("one").get()
        assert (row.owner, row.reason, row.resume_failures) == (None, "store_unusable", 0)


async def test_a_worker_that_leaves_stops_reading_for_a_run(street: Street) -> None:
    """It interrupts what is in a node, then cancels all: that is no interruption."""
    good, bad = street.place(), street.place()
    await good.hf.start(graph, {"text": incompressible(1, 20_000)}, id="one")
    bad.blobs.error = StoreFull("full")
    async with holding(bad, graph) as leaving:
        await street.until(lambda: bad.blobs.failed >= 1)
        run = RunKey("default", "one")
        driver, driving = leaving.drivers._drivers[run], leaving.drivers._tasks[run]
        driver.interrupt(journal_changed=False)
        driving.cancel()
        failed = bad.blobs.failed
        await street.until(lambda: driving.done() or bad.blobs.failed >= failed + 3)
        assert driving.cancelled()
