"""What the checker demands of the text on screens, once their run has ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Graph
from holdfast.model.event import CallFinished
from holdfast.records.keys import RunKey
from tests.simulation.chronicle import Broken
from tests.simulation.faces import face_of
from tests.simulation.faults import calm
from tests.simulation.lot import Lot
from tests.simulation.promises import Promises
from tests.simulation.streams import Screen, Shown
from tests.simulation.world import World, simulate

RUN = RunKey("acme", "doc-42")
CALL = "model.sage#1"
OLD, NEW = "00011 sage", "00030 sage"


def recorded(visit: int, text: str) -> CallFinished:
    return CallFinished(
        at_ms=0, node="tells", visit=visit, call=CALL, digest=b"", result={"text": text}
    )


def scene(records: list[CallFinished], screen: Screen) -> None:
    """Let a run end whose second visit tells one answer, loses it, and tells another one.

    Check a screen that followed the run to its end, given what the run's journal says.
    """

    async def scenario(world: World) -> None:
        promises = Promises(world, skew_ms=100, stuck_ms=600_000, lease_seconds=20.0, lot=Lot())
        process, streams = world.process("p"), promises.streams
        graph = Graph("tells", dict)

        @graph.node
        async def is_silent(state: Any, ctx: Any) -> Any:
            return {}

        @graph.node
        async def tells(state: Any, ctx: Any) -> Any:
            streams.answered(ctx, OLD)
            streams.answered(ctx, NEW)
            return {}

        graph.route(is_silent, tells)
        hf = face_of(process, tenant=RUN.tenant)

        async def all_of_it() -> None:
            async with hf.worker([graph], poll=1.0):
                handle = await hf.start(graph, id=RUN.id)
                await handle.result()
            head = promises._runs.row(RUN)
            assert head is not None
            for event in records:
                streams.recorded(promises._runs.of_row(head), event, event)
            streams.screens.append(screen)
            leaving = asyncio.Event()
            serving = asyncio.ensure_future(streams.serve(process, hf, leaving))
            await process.clock.sleep(10)
            leaving.set()
            await serving
            assert screen.over
            assert promises.seen["answer followed to its end"] == 1

        await process.run(all_of_it())

    simulate(scenario, 1, calm())


def shows(visit: int, text: str, *, last: bool = True) -> dict[str, Shown]:
    return {f"{visit}.{CALL}": Shown(text=text, number=text[:5], last=last)}


def test_an_answer_that_another_visit_told_in_vain_need_not_be_shown() -> None:
    """The first visit records an answer and does not tell it; the second tells it, and is lost."""
    scene([recorded(0, OLD), recorded(1, NEW)], Screen(RUN, calls=shows(1, NEW)))


@pytest.mark.parametrize(
    "calls",
    [{}, shows(1, NEW, last=False), shows(1, OLD), shows(0, NEW)],
    ids=["nothing", "its beginning", "a lost one", "under another call"],
)
def test_an_answer_that_was_told_and_recorded_is_shown(calls: dict[str, Shown]) -> None:
    with pytest.raises(Broken, match=r"'00030 sage' of 1\.model\.sage#1 is recorded, and not"):
        scene([recorded(0, OLD), recorded(1, NEW)], Screen(RUN, calls=calls))
