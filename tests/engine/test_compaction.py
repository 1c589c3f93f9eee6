"""Snapshots: what a resume reads stays small, and nobody can tell but by the reading."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import END, Graph, Holdfast, Retry, signal
from holdfast.engine.journal.reader import load_run, new_run
from holdfast.engine.journal.writer import JournalWriter, PositionTaken
from holdfast.engine.kernel.compaction import (
    SNAPSHOT_CEILING_BYTES,
    SNAPSHOT_FLOOR_BYTES,
    JournalTail,
    needs_snapshot,
)
from holdfast.engine.kernel.kernel import ClaimLost, Kernel
from holdfast.errors import ConditionFailed, JournalDamaged
from holdfast.model.event import Event, Expired, Fenced, NodeFinished, Snapshot
from holdfast.model.execution import Execution
from holdfast.records import owner_writes
from holdfast.records.codec import unpack_events
from holdfast.records.head import Head, JournalExtent, head_of
from holdfast.records.keys import journal_key, journal_position
from holdfast.storage import Delete, Update
from tests.engine.support import (
    Gate,
    House,
    blob_keys,
    calls_of,
    incompressible,
    item_of_head,
    journal_items,
    kill,
    run_units,
    store_of,
    store_without_blobs,
    tenant_key,
    units_of,
)
from tests.engine.test_units import ordinary

sizes = st.integers(0, 2**22)


# --- the rule -------------------------------------------------------------------------------------


@given(sizes, sizes)
def test_a_snapshot_is_due_once_it_is_outweighed(snapshot_bytes: int, since_bytes: int) -> None:
    wanted = needs_snapshot(JournalTail(snapshot_bytes, since_bytes))
    if since_bytes <= SNAPSHOT_FLOOR_BYTES:
        assert not wanted
    elif since_bytes > SNAPSHOT_CEILING_BYTES:
        assert wanted
    else:
        assert wanted == (since_bytes > snapshot_bytes)


# --- what runs cost -------------------------------------------------------------------------------


def loop(turns: int, step: Any, *, then: Any = None) -> Graph:
    """Return a graph of two nodes that take turns, and a last one."""
    graph = Graph("loop", dict)

    @graph.node
    async def even(state: Any) -> Any:
        return step(state["n"]) | {"n": state["n"] + 1}

    @graph.node
    async def odd(state: Any) -> Any:
        return step(state["n"]) | {"n": state["n"] + 1}

    async def last(state: Any, ctx: Any) -> Any:
        return None if then is None else await then(state, ctx)

    last = graph.node(name="last")(last)
    graph.route(even, odd)
    graph.choose(odd, lambda state: last if state["n"] >= turns else even, to=[last, even])
    graph.route(last, END)
    return graph


async def asks(state: Any, ctx: Any) -> Any:
    return {"answer": await ctx.wait(signal("decision"))}


def four_kb(number: int) -> dict[str, Any]:
    """Return 1 KB of JSON text that replaces a quarter of the state."""
    return {f"part{number % 4}": ordinary(number)[f"step{number}"]}


async def snapshots_of(hf: Holdfast, id: str) -> list[int]:
    """Return the positions of a run's snapshots."""
    items = [item for item in await journal_items(hf, id) if "#IN#" not in item["SK"]]
    return [
        journal_position(item["SK"])
        for item in items
        if "data" in item and isinstance(unpack_events(item["data"])[0], Snapshot)
    ]


def noise(number: int) -> dict[str, Any]:
    """Return 700 bytes of text that nothing makes smaller, a sixth of the state."""
    return {f"part{number % 6}": base64.b85encode(incompressible(number, 540)).decode()}


@pytest.mark.parametrize("step", [four_kb, noise])
async def test_a_thousand_nodes_with_4_kb_of_state_cost_at_most_1100_units(
    house: House, step: Any
) -> None:
    graph = loop(998, step, then=asks)
    hf, second = house.open(), house.open()
    async with house.worker(hf, graph) as worker:
        hf.meter.reset()
        run = await hf.start(graph, {"n": 0}, id="doc-42")
        await house.quiet(worker)
        assert (await run.get()).nodes_run == 998
    pointer = (await item_of_head(hf, "doc-42"))["snapshot"]
    snapshots = await snapshots_of(hf, "doc-42")
    assert pointer == snapshots[-1] > 800
    follows = [item for item in await journal_items(hf, "doc-42") if item["SK"][-8:].isdigit()]
    read = [item for item in follows if journal_position(item["SK"]) >= pointer]
    async with house.worker(second, graph) as worker:
        await second.run("doc-42").signal("decision", True)
        await house.quiet(worker)
    assert (await run.result(timeout=60))["answer"] is True
    # made 3, 999 nodes, the pause 4, the signal 1, woken 4, ended 3; and the snapshots in
    # front of some of the records, with a write of the row each
    assert run_units(hf, second) <= 1_100
    assert 6 <= len(snapshots) <= 12
    # The claim, one Query that brought what follows the snapshot, and no more than that.
    assert calls_of(second, "journal")["journal", "query"] == 1
    weight = sum(len(item["data"]) + 200 for item in read)
    assert units_of(second, "journal").reads <= weight / 4096 + 1
    assert len(read) < 250


async def test_a_resume_of_5000_turns_reads_no_more_than_one_of_1000(house: House) -> None:
    async def read_units(turns: int) -> float:
        gate = Gate()

        async def stops(state: Any, ctx: Any) -> Any:
            await gate.pass_through()

        graph = loop(turns, lambda number: {}, then=stops)
        first, second = house.open(), house.open()
        lost = first.worker([graph])
        await lost.start()
        run = await first.start(graph, {"n": 0}, id=f"loop-{turns}")
        await gate.waited_at()
        kill(lost)
        gate.open()
        house.clock.advance(61)
        second.meter.reset()
        async with second.worker([graph]) as worker:
            await house.quiet(worker)
        assert (await run.result(timeout=60))["n"] == turns
        assert calls_of(second, "journal")["journal", "query"] == 1
        return units_of(second, "journal").reads

    assert await read_units(5_000) <= 2 * await read_units(1_000)


async def test_ten_small_nodes_are_not_worth_a_snapshot(house: House, hf: Holdfast) -> None:
    graph = loop(10, four_kb)
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, {"n": 0}, id="doc-42")
        await house.quiet(worker)
    assert await snapshots_of(hf, "doc-42") == []
    assert "snapshot" not in await item_of_head(hf, "doc-42")


async def test_an_input_counts_as_the_first_snapshot(house: House, hf: Holdfast) -> None:
    graph = loop(4, lambda number: {f"text{number}": incompressible(number, 30_000)})
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, {"n": 0, "scan": incompressible(9, 200_000)}, id="doc-42")
        await house.quiet(worker)
    # 120 KB since, but to begin with the snapshot would be to read more than to begin with them
    head = head_of(await item_of_head(hf, "doc-42"))
    assert head.snapshot == 0
    # So it does where the run is read again.
    assert (await load_run(hf._kernel, head)).tail.snapshot_bytes > 200_000


# --- nobody can tell ------------------------------------------------------------------------------


def eager(hf: Holdfast, floor_bytes: int = 0) -> Holdfast:
    """Let an instance write a snapshot whenever what was written since outweighs the last."""
    hf._kernel.snapshot_floor_bytes = floor_bytes
    return hf


async def forget_what_is_covered(hf: Holdfast, id: str) -> int:
    """Delete whatever stands before the snapshot at which readers begin; return its position."""
    head = await item_of_head(hf, id)
    table = store_of(hf).table
    for position in range(head["snapshot"]):
        key = journal_key(tenant_key(id), head["generation"], position)
        await table.write(Delete(key))
    return head["snapshot"]


async def test_readers_need_nothing_that_is_before_the_snapshot(either: House) -> None:
    graph = loop(40, four_kb, then=asks)
    first, second = eager(either.open(), 3_000), eager(either.open(), 3_000)
    large = {"n": 0, "scan": incompressible(1, 900)}
    async with either.worker(first, graph) as worker:
        run = await first.start(graph, large, id="doc-42")
        await either.quiet(worker)
        expected = await first.run("doc-42").get()
    records = len(await journal_items(first, "doc-42"))
    assert await forget_what_is_covered(first, "doc-42") > 1
    async with either.worker(second, graph) as worker:
        await second.run("doc-42").signal("decision", "yes")
        await either.quiet(worker)
    state = await run.result(timeout=60)
    assert state["answer"] == "yes"
    assert (state["n"], state["scan"]) == (40, large["scan"])
    row = await second.run("doc-42").get()
    assert row.nodes_run == expected.nodes_run + 1
    # The input is no record of its number; the last node is, with the signal that it took.
    assert row.journal_records == records
    assert row.journal_bytes > expected.journal_bytes


async def test_nothing_is_deleted_and_the_history_shows_no_snapshots(house: House) -> None:
    graph = loop(40, four_kb)
    hf = eager(house.open(), 3_000)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {"n": 0}, id="doc-42")
        await house.quiet(worker)
    assert len(await snapshots_of(hf, "doc-42")) > 2
    positions = [journal_position(item["SK"]) for item in await journal_items(hf, "doc-42")]
    assert positions == list(range(1, 42))
    kinds = [entry.kind for entry in (await run.history()).entries]
    assert kinds == ["node"] * 41 + ["finished"]
    row = await run.get()
    items = await journal_items(hf, "doc-42")
    assert row.journal_bytes == sum(len(item["data"]) for item in items)


async def test_a_signal_that_was_taken_before_the_snapshot_does_not_count_again(
    house: House,
) -> None:
    graph = Graph("asks", dict)

    @graph.node
    async def first(state: Any, ctx: Any) -> Any:
        return {"first": await ctx.wait(signal("go"))}

    @graph.node
    async def fills(state: Any) -> Any:
        return {"text": incompressible(1, 2_000)}

    @graph.node
    async def next(state: Any) -> Any:
        return {}

    @graph.node
    async def again(state: Any, ctx: Any) -> Any:
        return {"again": await ctx.wait(signal("go"))}

    graph.route(first, fills, next, again)
    hf, other = eager(house.open(), 1_000), house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await run.signal("go", "one", signal_id="s1")
        await house.quiet(worker)
    assert await forget_what_is_covered(hf, "doc-42") > 1
    async with house.worker(eager(other), graph) as worker:
        await other.run("doc-42").signal("go", "one", signal_id="s1")
        await house.quiet(worker)
        assert (await run.get()).status == "waiting"
        await other.run("doc-42").signal("go", "two", signal_id="s2")
        await house.quiet(worker)
    state = await run.result(timeout=60)
    assert (state["first"], state["again"]) == ("one", "two")


async def test_answers_and_attempts_of_an_unfinished_visit_are_in_the_snapshot(
    house: House,
) -> None:
    seen: list[tuple[int, Any]] = []
    graph = Graph("tries", dict)

    @graph.node(retry=Retry(attempts=9, backoff=600, jitter=0))
    async def node(state: Any, ctx: Any) -> Any:
        first = await ctx.wait(signal("go"))
        seen.append((ctx.attempt, first))
        if len(seen) < 4:
            raise OSError("x" * 300)
        return {"second": await ctx.wait(signal("go")), "first": first}

    hf = eager(house.open(), 150)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await run.signal("go", "one")
        await house.quiet(worker)
        for wait in (601, 1201, 2401):
            await house.move(wait, worker)
    assert await forget_what_is_covered(hf, "doc-42") > 1
    async with house.worker(hf, graph) as worker:
        await run.signal("go", "two")
        await house.quiet(worker)
    assert await run.result(timeout=60) == {"first": "one", "second": "two"}
    assert [attempt for attempt, _ in seen][:4] == [1, 2, 3, 4]
    assert {first for _, first in seen} == {"one"}


async def test_a_crash_before_the_pointer_moved_only_means_to_read_more(house: House) -> None:
    graph = loop(40, four_kb, then=asks)
    hf = eager(house.open(), 3_000)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {"n": 0}, id="doc-42")
        await house.quiet(worker)
    snapshots = await snapshots_of(hf, "doc-42")
    bytes_before = (await run.get()).journal_bytes
    for pointer in (None, snapshots[0]):
        change = {"remove": ("snapshot",)} if pointer is None else {"set": {"snapshot": pointer}}
        await store_of(hf).table.write(Update(key=tenant_key("doc-42").head, **change))
        head = head_of(await item_of_head(hf, "doc-42"))
        loaded = await load_run(hf._kernel, head)
        assert loaded.execution.nodes_run == 40
        assert loaded.extent.size == bytes_before
        assert loaded.extent.position == 41
    async with house.worker(hf, graph) as worker:
        await run.signal("decision", "yes")
        await house.quiet(worker)
    assert (await run.result(timeout=60))["answer"] == "yes"


async def test_a_cancellation_and_a_result_read_from_the_snapshot(house: House) -> None:
    graph = loop(40, four_kb, then=asks)
    hf, client = eager(house.open(), 3_000), house.open()
    async with house.worker(hf, graph) as worker:
        done = await hf.start(graph, {"n": 0}, id="done")
        await hf.start(graph, {"n": 0}, id="stopped")
        await house.quiet(worker)
        await done.signal("decision", "yes", signal_id="s1")
        await house.quiet(worker)
    for id in ("done", "stopped"):
        assert await forget_what_is_covered(hf, id) > 1
    loaded = await load_run(client._kernel, head_of(await item_of_head(client, "done")))
    assert ("decision", "s1") in loaded.execution.taken
    await client.run("stopped").cancel("enough")
    assert (await client.run("stopped").get()).status == "cancelled"
    assert (await done.result(timeout=60))["n"] == 40
    kinds = [entry.kind for entry in (await client.run("stopped").history()).entries]
    assert kinds[-1] == "cancelled"
    assert len(kinds) < 41


async def test_a_snapshot_may_be_a_blob(either: House) -> None:
    graph = loop(6, lambda number: {"scan": incompressible(number, 20_000)}, then=asks)
    hf = eager(either.open(), 30_000)
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, {"n": 0}, id="doc-42")
        await either.quiet(worker)
        pointer = (await item_of_head(hf, "doc-42"))["snapshot"]
        items = await journal_items(hf, "doc-42")
        assert "blob" in items[pointer - 1]
        await run.signal("decision", "yes")
        await either.quiet(worker)
        assert (await run.result(timeout=60))["scan"] == incompressible(5, 20_000)
        large = [item for item in await journal_items(hf, "doc-42") if "blob" in item]
        assert len(await blob_keys(hf)) == len(large) >= 6
        ttl_seconds = (await item_of_head(hf, "doc-42"))["ttl"]
        await either.move(ttl_seconds - 3599 - either.clock.now_ms() / 1000, worker)
        assert await blob_keys(hf) == []


async def test_a_state_that_no_item_holds_goes_on_without_snapshots(house: House) -> None:
    graph = loop(20, lambda number: {f"scan{number}": incompressible(number, 40_000)}, then=asks)
    hf = eager(house.open(store=store_without_blobs(house.clock)), 50_000)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {"n": 0}, id="doc-42")
        await house.quiet(worker)
        await run.signal("decision", "yes")
        await house.quiet(worker)
        state = await run.result(timeout=60)
    assert len(await snapshots_of(hf, "doc-42")) >= 2
    assert (state["n"], state["answer"], state["scan19"]) == (20, "yes", incompressible(19, 40_000))


# --- the protocol ---------------------------------------------------------------------------------


class Table:
    """A run's row and journal, without anybody who drives it."""

    def __init__(self, house: House) -> None:
        self.hf = eager(house.open(), 10)
        self.kernel: Kernel = self.hf._kernel
        self.graph = loop(2, lambda number: {})

    async def started(self) -> Head:
        await self.hf.start(self.graph, {"n": 0}, id="doc-42")
        return await self.head()

    async def head(self) -> Head:
        return head_of(await item_of_head(self.hf, "doc-42"))

    async def resumed(self, head: Head) -> JournalWriter:
        return JournalWriter(
            self.kernel, head, await load_run(self.kernel, head), alive=lambda: True
        )

    async def events(self) -> list[list[Event]]:
        return [unpack_events(item["data"]) for item in await journal_items(self.hf, "doc-42")]


def node(number: int) -> NodeFinished:
    return NodeFinished(number, "even", number, {"n": number, "text": f"{number:050d}"}, "odd")


def kinds(events: list[list[Event]]) -> list[list[str]]:
    return [[type(event).__name__ for event in record] for record in events]


async def test_a_snapshot_travels_in_front_of_the_next_record(house: House) -> None:
    table = Table(house)
    journal = await table.resumed(await table.started())
    for number in range(3):
        await journal.append([node(number)])
    assert kinds(await table.events())[:2] == [["NodeFinished"], ["Snapshot", "NodeFinished"]]
    # What it holds is what stood before it, and not what was asked to be written with it.
    (_, (first, *_), *_) = await table.events()
    assert isinstance(first, Snapshot)
    assert (await table.head()).snapshot == 2
    assert calls_of(table.hf, "journal")["journal", "write"] == 3


async def test_what_stays_when_a_run_is_freed_holds_no_state(house: House) -> None:
    table = Table(house)
    journal = await table.resumed(await table.started())
    await journal.append([node(0)])
    await journal.append([Fenced(1, 1, "w")])
    await journal.append([Expired(2)])
    assert kinds(await table.events()) == [["NodeFinished"], ["Fenced"], ["Expired"]]


async def test_records_under_way_are_not_lost_to_a_snapshot_made_meanwhile(house: House) -> None:
    """The fold of a snapshot is that of the records before it, whoever appends in which order."""
    table = Table(house)
    journal = await table.resumed(await table.started())
    await asyncio.gather(*(journal.append([node(number)]) for number in range(20)))
    await journal.append([node(20)])
    loaded = await load_run(table.kernel, await table.head())
    assert (await table.head()).snapshot > 1
    assert loaded.execution.nodes_run == 21


async def test_the_pointer_never_goes_back(house: House) -> None:
    table = Table(house)
    head = await table.started()
    late = owner_writes.snapshot_pointer_write(head, 2, now_ms=1, token="t")
    await table.kernel.heads.write(
        owner_writes.snapshot_pointer_write(head, 5, now_ms=1, token="u")
    )
    with pytest.raises(ConditionFailed):
        await table.kernel.heads.write(late)
    assert (await table.head()).snapshot == 5


async def test_an_owner_that_lost_its_run_learns_so_from_the_pointer(house: House) -> None:
    table = Table(house)
    head = await table.started()
    journal = await table.resumed(head)
    await journal.append([node(0)])
    await table.kernel.heads.write(Update(key=head.key.head, set={"epoch": head.epoch + 1}))
    with pytest.raises(ClaimLost):
        await journal.append([node(1)])
    assert (await table.head()).snapshot == 0


async def test_a_stalled_owner_meets_the_fence_though_snapshots_came_after_it(
    house: House,
) -> None:
    table = Table(house)
    head = await table.started()
    stalled = await table.resumed(head)
    await stalled.append([node(0)])
    await table.kernel.heads.write(Update(key=head.key.head, set={"epoch": head.epoch + 1}))
    successor = await table.resumed(await table.head())
    await successor.append([Fenced(1, head.epoch + 1, "w")])
    for number in range(1, 5):
        await successor.append([node(number)])
    fenced, pointer = 2, (await table.head()).snapshot
    assert pointer > fenced  # whoever begins there does not see the fence, and need not
    assert (await load_run(table.kernel, await table.head())).fence == 0
    with pytest.raises(PositionTaken):
        await stalled.append([node(9)])
    # It reads from where its own row pointed, which was before any fence of a higher epoch.
    assert (await load_run(table.kernel, head)).fence == head.epoch + 1


async def test_a_pointer_to_what_is_no_snapshot_is_damage(house: House) -> None:
    table = Table(house)
    head = await table.started()
    journal = await table.resumed(head)
    await journal.append([node(0)])
    for wrong in (1, 7):
        update = Update(key=head.key.head, set={"snapshot": wrong})
        await table.kernel.heads.write(update)
        with pytest.raises(JournalDamaged, match=f"record {wrong} of run 'doc-42' is missing"):
            await load_run(table.kernel, await table.head())


def test_a_new_run_has_only_its_input_to_read() -> None:
    loaded = new_run(Execution(seed="s", state={}, node="a"), JournalExtent(), 123, plain_bytes=0)
    assert (loaded.tail, loaded.fence, loaded.inbox) == (JournalTail(123), 0, [])
