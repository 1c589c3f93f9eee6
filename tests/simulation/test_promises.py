"""What the checker demands: that no run is stuck, and that none forgets that it is to end."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from holdfast import Graph, Holdfast
from holdfast.engine.execution.run_ending import RunEnding
from holdfast.engine.execution.run_exit import RunExit
from holdfast.model.event import Failure
from holdfast.model.run import Status
from holdfast.records import owner_writes
from holdfast.records.head import Head
from holdfast.records.keys import RunKey
from holdfast.storage import Equals
from tests.simulation import fleet as fleets
from tests.simulation.chronicle import Broken
from tests.simulation.faces import face_of
from tests.simulation.faults import calm
from tests.simulation.lot import Lot
from tests.simulation.members import LEASE_SECONDS, POLL_SECONDS, Fleet
from tests.simulation.process import Process
from tests.simulation.promises import Promises
from tests.simulation.script import Script
from tests.simulation.verdict import statuses_of
from tests.simulation.world import World, simulate

RUN = RunKey("acme", "doc-42")
NAP_SECONDS = LEASE_SECONDS + 5
GRAPH = Graph("naps", dict)

During = Callable[[World, Process, Holdfast, Promises], Coroutine[Any, Any, None]]


@GRAPH.node
async def naps(state: Any, ctx: Any) -> None:
    await ctx.sleep(NAP_SECONDS)


def scene(during: During) -> None:
    """Start a run that sleeps for longer than a lease, and let something happen."""

    async def scenario(world: World) -> None:
        promises = Promises(
            world, skew_ms=100, stuck_ms=600_000, lease_seconds=LEASE_SECONDS, lot=Lot()
        )
        process = world.process("p")
        hf = face_of(process, tenant=RUN.tenant)

        async def all_of_it() -> None:
            await hf.start(GRAPH, id=RUN.id)
            await during(world, process, hf, promises)

        await process.run(all_of_it())

    simulate(scenario, 1, calm())


async def worked(process: Process, hf: Holdfast, seconds: float) -> None:
    """Let a worker do what is due for so long."""
    async with hf.worker([GRAPH], lease=LEASE_SECONDS, poll=POLL_SECONDS):
        await process.clock.sleep(seconds)


# --- nothing is stuck -----------------------------------------------------------------------------


@pytest.mark.parametrize("dismissed", ["before it is due", "after it is due", "never"])
def test_a_run_is_stuck_unless_it_became_due_after_the_last_worker_left(dismissed: str) -> None:
    async def during(world: World, process: Process, hf: Holdfast, promises: Promises) -> None:
        await worked(process, hf, LEASE_SECONDS)
        if dismissed == "before it is due":
            promises.dismissed()
        promises.settled()  # it waits
        await process.clock.sleep(10)
        if dismissed == "after it is due":
            promises.dismissed()
        promises.settled()

    if dismissed == "before it is due":
        scene(during)
    else:
        with pytest.raises(Broken, match="doc-42 is waiting at naps and stuck for 5 s"):
            scene(during)


def test_a_run_that_its_last_worker_still_holds_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    async def during(world: World, process: Process, hf: Holdfast, promises: Promises) -> None:
        worker = hf.worker([GRAPH], lease=LEASE_SECONDS, poll=POLL_SECONDS)
        promises.dismissed()
        await worker.start()
        await process.clock.sleep(5)
        promises.settled()

    async def never_pauses(leaving: RunExit, waits: Any) -> None:
        await leaving._claimed.sleep(1_000)

    monkeypatch.setattr(RunExit, "pause", never_pauses)
    with pytest.raises(Broken, match="doc-42 is running at naps and stuck for"):
        scene(during)


def test_what_lay_still_while_no_worker_was_there_is_stuck_if_it_lies_on_when_they_are_back() -> (
    None
):
    async def during(world: World, process: Process, hf: Holdfast, promises: Promises) -> None:
        await worked(process, hf, LEASE_SECONDS)
        promises.dismissed()
        await process.clock.sleep(10)
        promises.settled()
        promises.forgive()
        await process.clock.sleep(10)
        promises.settled()

    with pytest.raises(Broken, match="doc-42 is waiting at naps and stuck for 10 s"):
        scene(during)


def test_a_fleet_is_not_sent_home_while_a_run_is_due_in_a_moment() -> None:
    """No user expects an end of the run: the fleet stays, though all that is expected is done."""
    came_to_rest: list[float] = []

    async def during(world: World, process: Process, hf: Holdfast, promises: Promises) -> None:
        state = Fleet(world, promises, Script(), 0, GRAPH, cast("Any", None), Lot())
        async with hf.worker([GRAPH], lease=LEASE_SECONDS, poll=POLL_SECONDS):
            began = world.loop.time()
            await fleets._come_to_rest(world, state)
            came_to_rest.append(world.loop.time() - began)
            assert statuses_of(world) == {RUN.id: "finished"}

    scene(during)
    assert came_to_rest == pytest.approx([2 * LEASE_SECONDS])


# --- nothing is forgotten -------------------------------------------------------------------------


@pytest.mark.parametrize("forgets", [False, True])
def test_a_run_that_is_to_be_cancelled_must_not_be_quarantined(
    monkeypatch: pytest.MonkeyPatch, forgets: bool
) -> None:
    other = Graph("naps", dict, version=2)  # lacks the node at which the run stands
    other.node(name="other")(naps)
    end = RunEnding.end

    async def during(world: World, process: Process, hf: Holdfast, promises: Promises) -> None:
        async def meanwhile(ending: RunEnding, status: Status, failure: Failure | None) -> None:
            if status == "quarantined":
                await hf.run(RUN.id).cancel()
            await end(ending, status, failure)

        monkeypatch.setattr(RunEnding, "end", meanwhile)
        async with hf.worker([other], resumes_max=1, poll=POLL_SECONDS):
            await process.clock.sleep(LEASE_SECONDS)
        assert statuses_of(world) == {RUN.id: "cancelled"}

    def as_it_is(head: Head) -> Equals:
        return Equals("epoch", head.epoch)

    if forgets:
        monkeypatch.setattr(owner_writes, "cancel_known", as_it_is)
        with pytest.raises(Broken, match="it is quarantined, and was to be cancelled"):
            scene(during)
    else:
        scene(during)
