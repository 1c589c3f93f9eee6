"""A new kind of wait is its class and the code that begins it: nothing else has to know it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Graph, Holdfast
from holdfast.cli.facts import facts_of
from holdfast.engine.runs.local_workers import NO_WORKERS
from holdfast.engine.runs.signalling import send_signal
from holdfast.model import wait as waits
from holdfast.model.wait import RecheckedKind, ReportedKind
from tests.engine.support import House, item_of_head, tenant_key


class ParcelWait(ReportedKind, frozen=True):
    """The node waits until the engine hears of a parcel."""

    tag = "parcel"
    reason = "parcel"

    def description(self, about: str) -> str:
        return f"parcel {self.subject} from {about}"


class TideWait(RecheckedKind, frozen=True):
    """The node waits for high water, and has to look again."""

    tag = "tide"
    reason = "tide"

    def description(self, about: str) -> str:
        return f"high water in {about}"


def graph_of(function: Any) -> Graph:
    """Return a graph of one node."""
    graph = Graph("g", dict)
    graph.node(name="node")(function)
    return graph


@pytest.fixture(autouse=True)
def new_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "WAIT_KINDS", (ParcelWait, TideWait, *waits.WAIT_KINDS))


async def test_a_new_kind_that_a_signal_answers(house: House, hf: Holdfast) -> None:
    kind = ParcelWait("p-1")

    async def receives(state: Any, ctx: Any) -> Any:
        visit = ctx._visit
        answer = visit.strand.answers.get(kind.key())
        if answer is None:
            wait = await ctx._waits.begin(kind, None, about="Kiel")
            answer = await ctx._waits.resolve(wait)
        return {"got": answer.payload}

    graph = graph_of(receives)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        row = await run.get()
        assert (row.status, row.reason, row.waits[0].kind) == ("waiting", "parcel", kind)
        (stored,) = (await item_of_head(hf, "doc-42"))["waits"]
        assert (stored["key"], stored["signal"]) == ("%parcel.p-1#1", "%parcel.p-1")
        assert dict(facts_of(row))["waits for"].startswith("parcel p-1 from Kiel, since ")
        assert row.as_dict()["waits"][0]["kind"] == "parcel"
    async with house.worker(house.open(), graph) as worker:
        await house.quiet(worker)
        sent = {"name": kind.signal, "id": "s1", "payload": "books"}
        await send_signal(hf._kernel, NO_WORKERS, tenant_key("doc-42"), **sent)
        await house.move(1, worker)
        assert await run.result(timeout=60) == {"got": "books"}


async def test_a_new_kind_whose_node_asks_again(house: House, hf: Holdfast) -> None:
    kind, looks = TideWait("Kiel"), list[int]()

    async def sails(state: Any, ctx: Any) -> Any:
        visit = ctx._visit
        looks.append(visit.now_ms())
        if len(looks) < 3:
            await visit.pause_until(kind, visit.now_ms() + 60_000, "Kiel")
        return {"got": len(looks)}

    graph = graph_of(sails)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        row = await run.get()
        assert (row.status, row.reason, row.waits[0].kind) == ("waiting", "tide", kind)
        told = dict(facts_of(row))["waits for"]
        assert told.startswith("high water in Kiel, since ")
        assert ", rechecks at " in told
        await house.move(61, worker)
        assert (await run.get()).status == "waiting"
        await house.move(61, worker)
        assert await run.result(timeout=60) == {"got": 3}
    assert looks[1] - looks[0] >= 60_000
