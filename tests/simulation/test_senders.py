"""What the checker demands of signals while their run is extended, and when it is freed."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Graph, Holdfast, signal
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs import extension, removal, signalling
from holdfast.records.head import Head
from holdfast.records.keys import RunKey, inbox_key
from holdfast.storage import Put
from tests.simulation.chronicle import Broken
from tests.simulation.faces import face_of
from tests.simulation.faults import calm
from tests.simulation.lot import Lot
from tests.simulation.process import Process
from tests.simulation.promises import Promises
from tests.simulation.world import World, simulate

RUN = RunKey("acme", "doc-42")
EXPIRES = 100
GRAPH = Graph("asks", dict)


@GRAPH.node
async def asks(state: Any, ctx: Any) -> Any:
    return {"got": await ctx.wait(signal("go"))}


def scene(during: Any) -> None:
    """Start a run that waits, let something happen, and check the promises on the way."""

    async def scenario(world: World) -> None:
        promises = Promises(world, skew_ms=100, stuck_ms=600_000, lease_seconds=20.0, lot=Lot())
        process = world.process("p")
        hf = face_of(process, tenant=RUN.tenant)

        async def all_of_it() -> None:
            await hf.start(GRAPH, id=RUN.id, expires=EXPIRES)
            await during(process, hf, promises)

        await process.run(all_of_it())

    simulate(scenario, 1, calm())


@pytest.mark.parametrize("walks", [True, False], ids=["walks", "does not walk"])
def test_a_signal_that_meets_an_extension_lasts_when_that_is_done(
    monkeypatch: pytest.MonkeyPatch, walks: bool
) -> None:
    """Its sender is told that it counts when only the row lasts longer: that is in time.

    It must last as long as the run when the row says that the run expires later.
    """
    prolong_all = extension.extend_signals
    met: list[str] = []

    async def during(process: Process, hf: Holdfast, promises: Promises) -> None:
        await hf.run(RUN.id).signal("go", signal_id="s1")

        async def between(kernel: Kernel, head: Head, taken: Any) -> None:
            assert head.extends_ms > head.expires_ms
            promises.signalled(RUN, "go", "s1")
            met.append("between")
            if walks:
                await prolong_all(kernel, head, taken)

        monkeypatch.setattr(extension, "extend_signals", between)
        await hf.run(RUN.id).extend(1_000_000)
        promises.signalled(RUN, "go", "s1")

    if walks:
        scene(during)
    else:
        with pytest.raises(Broken, match="go/s1 of doc-42 does not last"):
            scene(during)
    assert met == ["between"]


@pytest.mark.parametrize("whose", ["network", "sender"])
def test_what_the_network_repeats_in_a_freed_run_is_not_the_engines(
    monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """A signal is deleted, and comes back before the row says that the run was freed."""
    remove = removal.free_run
    sent: list[Put] = []
    signal_item = signalling.signal_write

    def remembered(*arguments: Any, **values: Any) -> Put:
        sent.append(signal_item(*arguments, **values))
        return sent[-1]

    async def during(process: Process, hf: Holdfast, promises: Promises) -> None:
        await hf.run(RUN.id).signal("other", signal_id="s1")

        async def repeated(kernel: Kernel, head: Head) -> None:
            if whose == "network":
                await remove(kernel, head)
                await kernel.inboxes.write(sent[0])
            item = await kernel.inboxes.get(inbox_key(RUN, head.generation, "other", "s1"))
            assert item is not None

        monkeypatch.setattr("holdfast.engine.execution.run_ending.free_run", repeated)
        async with hf.worker([GRAPH], poll=1.0):
            await process.clock.sleep(EXPIRES + 20)
        assert (await hf.run(RUN.id).get()).status == "expired"

    monkeypatch.setattr(signalling, "signal_write", remembered)
    if whose == "network":
        scene(during)
    else:
        with pytest.raises(Broken, match=r"doc-42 has expired, and .* are still there"):
            scene(during)


@pytest.mark.parametrize("again", [True, False], ids=["sent before", "left behind"])
def test_only_what_a_refused_sender_left_itself_is_held_against_it(
    monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """A signal that was told of goes when the run is freed, whatever the sender's clock says.

    The clock is set back before the signal is sent again, so that the first sending seems later.
    """
    remove = removal.free_run
    verdicts: list[str] = []

    async def during(process: Process, hf: Holdfast, promises: Promises) -> None:
        senders = promises.senders
        since = senders.begins(process, RUN, "other", "s1")
        await hf.run(RUN.id).signal("other", signal_id="s1")

        async def refused(kernel: Kernel, head: Head) -> None:
            process.clock.jump(-2 * EXPIRES)
            begun = senders.begins(process, RUN, "other", "s1") if again else since
            try:
                senders.refused(process, RUN, "other", "s1", status="expired", since=begun)
                verdicts.append("right")
            except Broken as broken:  # raised here, the worker would take it for its own
                verdicts.append(str(broken))
            process.clock.jump(2 * EXPIRES)
            await remove(kernel, head)

        monkeypatch.setattr("holdfast.engine.execution.run_ending.free_run", refused)
        async with hf.worker([GRAPH], poll=1.0):
            await process.clock.sleep(EXPIRES + 20)

    scene(during)
    left = "P7: the signal other/s1 of doc-42 is refused, and left in a run that has expired"
    assert verdicts == ["right" if again else left]
