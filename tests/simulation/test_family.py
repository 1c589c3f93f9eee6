"""What the checker demands of the children of a run that ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from holdfast import Graph, Retry, signal
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs import children
from holdfast.records import run_writes
from holdfast.records.child import child_write
from holdfast.records.head import Head
from holdfast.records.keys import RunKey
from tests.simulation.chronicle import Broken
from tests.simulation.faces import face_of
from tests.simulation.faults import calm
from tests.simulation.lot import Lot
from tests.simulation.process import Process
from tests.simulation.promises import Promises
from tests.simulation.world import World, simulate

LATE = RunKey("acme", "doc-42.late")
KID = Graph("kid", dict)
PARENT = Graph("parent", dict)


@KID.node
async def asks(state: Any, ctx: Any) -> Any:
    return {"got": await ctx.wait(signal("go"))}


@PARENT.node(retry=Retry(attempts=1))
async def starts(state: Any, ctx: Any) -> Any:
    await ctx.start(KID, {})
    await ctx.sleep(60)
    raise ValueError("it has a child, and fails")


def scene(during: Callable[[Process, Process], Awaitable[None]]) -> Counter[str]:
    """Let a run fail whose child goes on; return what was seen.

    ``during`` gets the process that holds the run, and another one.
    """
    seen: list[Counter[str]] = []

    async def scenario(world: World) -> None:
        promises = Promises(world, skew_ms=100, stuck_ms=600_000, lease_seconds=20.0, lot=Lot())
        seen.append(promises.seen)
        owner, other = world.process("owner"), world.process("other")
        hf = face_of(owner, tenant="acme")

        async def all_of_it() -> None:
            async with hf.worker([PARENT, KID], poll=1.0):
                await hf.start(PARENT, id="doc-42")
                await owner.clock.sleep(10)
                await during(owner, other)
                await owner.clock.sleep(90)
            assert (await hf.run("doc-42").get()).status == "failed"

        await owner.run(all_of_it())

    simulate(scenario, 1, calm())
    return seen[0]


def let_name(
    monkeypatch: pytest.MonkeyPatch, process: Process, *, then: Callable[[Kernel, Head], Any]
) -> None:
    """Let a process name a child right after the run that ends has listed its children."""
    rows = children.load_child_rows
    kernel = Kernel(process.store, process.clock, process.ids)

    async def then_named(payer: Kernel, head: Head) -> Any:
        found = await rows(payer, head)
        if head.key.id == "doc-42":
            item = child_write(head, LATE.id, graph="kid", token=kernel.ids.new())
            await kernel.journals.write(item)
            await then(kernel, head)
        return found

    monkeypatch.setattr(children, "load_child_rows", then_named)


async def is_dropped(kernel: Kernel, parent: Head) -> None:
    """Do as a process that finds the run in other hands."""


async def makes_it(kernel: Kernel, parent: Head) -> None:
    """Do as a process that does not look whether it still holds the run."""
    never = children._cancelled_placeholder(kernel, parent, LATE, "kid")
    child = msgspec.structs.replace(never, status="running", freed=False, input=parent.input)
    write = run_writes.create_write(child, now_ms=kernel.clock.now_ms(), token=kernel.ids.new())
    await kernel.heads.write(write)


def test_a_name_that_comes_late_from_a_lost_owner_is_not_owed_a_child(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lost owner looks at the row after its write, and makes no child."""

    async def during(owner: Process, other: Process) -> None:
        let_name(monkeypatch, other, then=is_dropped)

    assert scene(during)["named by an owner that lost the run"] == 1


def test_a_name_that_the_owner_wrote_is_owed_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner may yet make the child."""

    async def during(owner: Process, other: Process) -> None:
        let_name(monkeypatch, owner, then=is_dropped)

    with pytest.raises(Broken, match=r"to its children \['doc-42.late'\]"):
        scene(during)


def test_a_lost_owner_must_not_make_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    async def during(owner: Process, other: Process) -> None:
        let_name(monkeypatch, other, then=makes_it)

    with pytest.raises(Broken, match=r"other made doc-42\.late, and named it when"):
        scene(during)


def test_a_name_that_another_process_prolongs_is_still_the_owners() -> None:
    async def during(owner: Process, other: Process) -> None:
        await other.run(face_of(other, tenant="acme").run("doc-42").extend(100 * 24 * 3600))

    seen = scene(during)
    assert seen["extended"] == 1
    assert seen["named by an owner that lost the run"] == 0
