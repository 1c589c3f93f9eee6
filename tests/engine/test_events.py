"""Events of a run, live and page by page: nothing is lost, nothing comes twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from random import Random
from typing import Any

import pytest

from holdfast import Graph, HistoryEntry, Holdfast, signal
from holdfast.engine.history import events, views
from holdfast.engine.journal.reader import load_run
from holdfast.engine.journal.writer import JournalWriter
from holdfast.errors import InvalidQuery, JournalDamaged, RunNotFound
from holdfast.model.event import Event, NodeFinished
from holdfast.records.codec import unpack_events
from holdfast.records.head import Head, head_of
from holdfast.records.journal import content_of
from holdfast.storage import Delete, Key
from tests.engine.support import (
    WAIT_SECONDS_MAX,
    Gate,
    House,
    blob_keys,
    calls_of,
    chain,
    incompressible,
    item_of_head,
    journal_items,
    kill,
    reached,
    store_of,
    units_of,
)

NEVER_SECONDS = 10_000


async def waits(state: Any, ctx: Any) -> Any:
    return {"decision": await ctx.wait(signal("decision"))}


def grouped() -> Graph:
    """Return a graph whose records hold several events: nodes without a checkpoint share a Put."""
    graph = Graph("grouped", dict)
    for number in range(9):
        graph.node(name=f"node{number}", pausable="yes" if number % 3 == 2 else "no")(_nothing)
    graph.route(*(f"node{number}" for number in range(9)))
    return graph


async def _nothing(state: Any) -> Any:
    return {}


async def _finished(hf: Holdfast, house: House, graph: Graph, id: str = "doc-42") -> None:
    async with house.worker(hf, graph):
        await (await hf.start(graph, id=id)).result(timeout=WAIT_SECONDS_MAX)


async def collected(stream: AsyncIterator[HistoryEntry]) -> list[HistoryEntry]:
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        return [entry async for entry in stream]


def kinds(entries: list[HistoryEntry]) -> list[str]:
    return [entry.kind for entry in entries]


async def recorded(hf: Holdfast, id: str) -> list[tuple[int, int, Event]]:
    """Return position, index and event of everything in a journal, as it is stored."""
    return [
        (int(item["SK"].split("#")[2]), index, event)
        for item in await journal_items(hf, id)
        if item["SK"].split("#")[2] != "IN"
        for index, event in enumerate(unpack_events(content_of(item).data or b""))
    ]


def listeners(hf: Holdfast) -> dict[Any, Any]:
    return hf._kernel.notifier._listeners


# --- live -----------------------------------------------------------------------------------------


async def test_who_follows_in_the_same_process_is_woken_by_every_commit(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_POLL_FIRST_SECONDS", NEVER_SECONDS)  # asking would find it too
    gates = [Gate(), Gate()]

    def gated(gate: Gate) -> Any:
        async def node(state: Any) -> Any:
            await gate.pass_through()
            return {}

        return node

    graph = chain("g", 3, lambda number: {}, node1=gated(gates[0]), node2=gated(gates[1]))
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        async with asyncio.timeout(WAIT_SECONDS_MAX), aclosing(run.events()) as stream:
            assert (await anext(stream)).node == "node0"
            gates[0].open()
            assert (await anext(stream)).node == "node1"
            gates[1].open()
            assert kinds([entry async for entry in stream]) == ["node", "finished"]
    assert listeners(hf) == {}


async def test_who_follows_in_the_same_process_hears_of_a_cancellation(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_POLL_FIRST_SECONDS", NEVER_SECONDS)
    run = await hf.start(grouped(), id="doc-42")
    following = asyncio.create_task(collected(run.events()))
    while not listeners(hf):
        await house.clock.sleep(0)
    await run.cancel("enough")
    assert kinds(await following) == ["cancelled"]


async def test_another_process_sees_the_same(either: House) -> None:
    graph = chain("g", 4, lambda number: {"n": number}, node2=waits)
    hf, other = either.open(), either.open()
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        stream = other.run("doc-42").events()
        async with asyncio.timeout(WAIT_SECONDS_MAX), aclosing(stream):
            assert [(await anext(stream)).node for _ in range(2)] == ["node0", "node1"]
            await either.quiet(worker)
            await run.signal("decision", "yes")
            rest = [entry async for entry in stream]
        assert kinds(rest) == ["signal", "node", "node", "finished"]
    assert kinds((await other.run("doc-42").history()).entries)[2:] == kinds(rest)


async def test_without_following_it_yields_what_is_there_and_stops(
    house: House, hf: Holdfast
) -> None:
    graph = chain("g", 2, lambda number: {}, node1=waits)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        assert kinds(await collected(run.events(follow=False))) == ["node"]


async def test_a_retry_goes_on_from_the_cursor(house: House, hf: Holdfast) -> None:
    broken = True
    graph = Graph("g", dict)

    @graph.node
    async def fragile(state: Any) -> Any:
        if broken:
            raise ValueError("broken")

    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        first = await collected(run.events())
        assert kinds(first) == ["failed"]
        assert await collected(run.events(after=first[-1].cursor)) == []
        await house.quiet(worker)
        broken = False
        await run.retry()
        # Its journal may still end with the failure: the row says that it goes on.
        rest = await collected(run.events(after=first[-1].cursor))
        assert kinds(rest) == ["reroute", "node", "finished"]
        assert kinds(await collected(run.events())) == ["failed", *kinds(rest)]


async def test_a_stream_ends_with_a_run_that_is_quarantined_without_an_event(
    house: House, hf: Holdfast
) -> None:
    graph = chain("g", 2, lambda number: {}, node1=waits)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
    renamed = Graph("g", dict)
    renamed.node(name="another")(_nothing)
    following = asyncio.create_task(collected(run.events()))
    await run.signal("decision", "yes")
    async with house.worker(hf, renamed, resumes_max=1) as worker:
        await house.quiet(worker)
        await house.move(10, worker)
        await reached(hf, "doc-42", "quarantined")
        assert kinds(await following) == ["node"]


async def test_a_takeover_shows_its_fence(house: House) -> None:
    gate = Gate()

    async def stays(state: Any) -> Any:
        await gate.pass_through()
        return {}

    graph = chain("g", 2, lambda number: {}, node1=stays)
    first, second = house.open(), house.open()
    worker = first.worker([graph])
    await worker.start()
    run = await first.start(graph, id="doc-42")
    await gate.waited_at()
    stream = second.run("doc-42").events()
    assert (await anext(stream)).kind == "node"
    kill(worker)
    gate.open()
    async with second.worker([graph]) as successor:
        for _ in range(10):
            await house.move(14, successor)
        assert kinds(await collected(stream)) == ["fence", "node", "finished"]
    assert kinds((await run.history()).entries) == ["node", "fence", "node", "finished"]


async def test_a_cancelled_follower_leaves_nothing_behind(house: House, hf: Holdfast) -> None:
    run = await hf.start(grouped(), id="doc-42")
    before = asyncio.all_tasks()
    following = asyncio.create_task(collected(run.events()))
    while not listeners(hf):
        await house.clock.sleep(0)
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    assert listeners(hf) == {}
    assert asyncio.all_tasks() == before


# --- the end of what is kept ----------------------------------------------------------------------


async def test_an_unknown_run_has_no_events(hf: Holdfast) -> None:
    with pytest.raises(RunNotFound):
        await collected(hf.run("nothing").events())


@pytest.mark.parametrize("together", [True, False], ids=["same process", "another"])
async def test_who_follows_a_run_that_expires_sees_that_and_later_comers_find_nothing(
    house: House, hf: Holdfast, together: bool
) -> None:
    graph = chain("g", 2, lambda number: {}, node1=waits)
    watching = hf if together else house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42", expires=3600)
        await house.quiet(worker)
        stream = watching.run("doc-42").events()
        first = await anext(stream)
        await house.move(3600, worker)
        await reached(hf, "doc-42", "expired")
        assert kinds(await collected(stream)) == ["expired"]
        for after in (None, first.cursor):
            with pytest.raises(RunNotFound):
                await collected(run.events(after=after))


async def test_who_comes_too_late_for_a_record_is_told_that_it_is_gone(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_RECORDS_PER_PAGE", 1)
    graph = chain("g", 4, lambda number: {}, node3=waits)
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, id="doc-42", expires=3600)
        await house.quiet(worker)
        stream = hf.run("doc-42").events()
        assert (await anext(stream)).node == "node0"
        await house.move(3600, worker)
        await reached(hf, "doc-42", "expired")
        with pytest.raises(RunNotFound, match="not kept"):
            await collected(stream)


async def test_a_blob_that_was_freed_meanwhile_is_no_damage(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_BATCH_BYTES_MAX", 1)
    graph = chain("g", 3, lambda number: {"blob": incompressible(number, 20_000)})
    await _finished(hf, house, graph)
    stream = hf.run("doc-42").events()
    assert (await anext(stream)).node == "node0"
    ttl = (await item_of_head(hf, "doc-42"))["ttl"]
    house.clock.advance(ttl - 1800 - house.clock.now_ms() / 1000)
    for key in await blob_keys(hf):
        await store_of(hf).blobs.delete(key)
    with pytest.raises(RunNotFound, match="not kept"):
        await collected(stream)


@pytest.mark.parametrize("position", [1, 2, 3])
async def test_a_record_that_is_missing_is_damage(
    house: House, hf: Holdfast, position: int
) -> None:
    await _finished(hf, house, grouped())
    items = await journal_items(hf, "doc-42")
    assert len(items) == 3
    gone = items[position - 1]
    await store_of(hf).table.write(Delete(Key(gone["PK"], gone["SK"])))
    with pytest.raises(JournalDamaged, match=f"record {position} "):
        await hf.run("doc-42").history()


async def test_a_run_whose_id_has_another_life_is_gone(house: House, hf: Holdfast) -> None:
    graph = chain("g", 2, lambda number: {}, node1=waits)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42", expires=3600)
        await house.quiet(worker)
    stream = run.events()
    assert (await anext(stream)).node == "node0"
    house.clock.advance(3600 + 3 * 24 * 3600)
    await hf.start(graph, {"another": True}, id="doc-42")
    with pytest.raises(RunNotFound, match="another has its id"):
        await collected(stream)


# --- cursors and pages ----------------------------------------------------------------------------


async def test_every_cursor_leads_to_exactly_what_follows(house: House, hf: Holdfast) -> None:
    await _finished(hf, house, grouped())
    whole = await collected(hf.run("doc-42").events())
    assert kinds(whole) == ["node"] * 9 + ["finished"]
    assert any(entry.cursor.endswith(".2") for entry in whole), "records hold several events"
    assert len({entry.cursor for entry in whole}) == len(whole)
    for number, entry in enumerate(whole, 1):
        assert await collected(hf.run("doc-42").events(after=entry.cursor)) == whole[number:]
        assert (await hf.run("doc-42").history(cursor=entry.cursor)).entries == whole[number:]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 10, 1000])
async def test_pages_bring_everything_once(house: House, hf: Holdfast, limit: int) -> None:
    await _finished(hf, house, grouped())
    found: list[HistoryEntry] = []
    cursor = None
    while True:
        page = await hf.run("doc-42").history(limit=limit, cursor=cursor)
        assert len(page.entries) <= limit
        found += page.entries
        cursor = page.cursor
        if cursor is None:
            break
        assert cursor == page.entries[-1].cursor
    assert found == await collected(hf.run("doc-42").events())


@pytest.mark.parametrize("limit", [0, -1, 1001, "5", None, True, 1.5])
async def test_a_wrong_limit_is_refused(hf: Holdfast, limit: Any) -> None:
    with pytest.raises(InvalidQuery) as refused:
        await hf.run("doc-42").history(limit=limit)
    assert refused.value.field == "limit"


GARBAGE: list[Any] = ["", "x", 5, b"x", "1.2.3", "0" * 36, "0" * 36 + ".1", "0" * 36 + ".1.-1"]


@pytest.mark.parametrize("cursor", GARBAGE, ids=repr)
async def test_garbage_is_no_cursor_and_reads_nothing(hf: Holdfast, cursor: Any) -> None:
    await hf.start(grouped(), id="doc-42")
    hf.meter.reset()
    with pytest.raises(InvalidQuery) as refused:
        await hf.run("doc-42").history(cursor=cursor)
    assert refused.value.field == "cursor"
    with pytest.raises(InvalidQuery) as refused:
        hf.run("doc-42").events(after=cursor)
    assert refused.value.field == "after"
    assert hf.meter.report().calls == 0


async def test_a_cursor_of_another_run_or_of_no_event_is_refused(
    house: House, hf: Holdfast
) -> None:
    await _finished(hf, house, grouped())
    await _finished(hf, house, grouped(), "doc-43")
    generation = (await hf.run("doc-42").get()).generation
    foreign = (await hf.run("doc-43").history()).entries[0].cursor
    for cursor in (
        foreign,
        f"{generation}.0.0",
        f"{generation}.1.3",
        f"{generation}.5.0",
        f"{generation}.99999999.0",
    ):
        for follow in (True, False):
            with pytest.raises(InvalidQuery) as refused:
                await collected(hf.run("doc-42").events(after=cursor, follow=follow))
            assert refused.value.field == "after"
        with pytest.raises(InvalidQuery) as refused:
            await hf.run("doc-42").history(cursor=cursor)
        assert refused.value.field == "cursor"


async def test_a_cursor_of_an_earlier_life_of_the_id_is_refused(house: House, hf: Holdfast) -> None:
    await _finished(hf, house, grouped())
    cursor = (await hf.run("doc-42").history(limit=1)).cursor
    house.clock.advance(10 * 24 * 3600)
    await hf.start(grouped(), {"another": True}, id="doc-42")
    with pytest.raises(InvalidQuery):
        await hf.run("doc-42").history(cursor=cursor)


async def test_what_is_for_the_engine_alone_is_not_shown(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _finished(hf, house, grouped())
    whole = await collected(hf.run("doc-42").events())
    monkeypatch.setattr(views, "_HIDDEN_KINDS", frozenset({"node"}))
    assert await collected(hf.run("doc-42").events()) == whole[-1:]
    assert (await hf.run("doc-42").history(cursor=whole[0].cursor)).entries == whole[-1:]


# --- what it costs --------------------------------------------------------------------------------


async def test_a_long_journal_is_read_a_page_at_a_time(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_RECORDS_PER_PAGE", 5)
    graph = chain("g", 40, lambda number: {})
    await _finished(hf, house, graph)
    hf.meter.reset()
    async with aclosing(hf.run("doc-42").events()) as stream:
        for number in range(6):
            assert (await anext(stream)).node == f"node{number}"
    assert calls_of(hf, "journal") == {("journal", "query"): 2}
    hf.meter.reset()
    page = await hf.run("doc-42").history(limit=3)
    assert len(page.entries) == 3
    assert calls_of(hf, "journal", "head") == {("journal", "query"): 1, ("head", "get"): 1}
    assert units_of(hf, "journal", "head").reads == 2
    cursor = page.cursor
    hf.meter.reset()
    page = await hf.run("doc-42").history(cursor=cursor, limit=30)
    # From its place on, and not from the first record: the cursor's own record is read once more.
    assert calls_of(hf, "journal") == {("journal", "query"): 7}
    assert page.entries[0].node == "node3"


async def test_large_records_are_in_memory_a_few_at_a_time(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_BATCH_BYTES_MAX", 50_000)
    graph = chain("g", 8, lambda number: {"blob": incompressible(number, 20_000)})
    await _finished(hf, house, graph)
    hf.meter.reset()
    async with aclosing(hf.run("doc-42").events()) as stream:
        await anext(stream)
        assert calls_of(hf, "journal") == {("journal", "query"): 1, ("journal", "blob_get"): 2}
        assert len([entry async for entry in stream]) == 8
    assert calls_of(hf, "journal")["journal", "blob_get"] == 8


# --- at random ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
async def test_over_all_reconnects_the_stream_is_the_journal(
    house: House, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Append and hold at random, and follow from here and from elsewhere, broken off at random."""
    random = Random(seed)
    monkeypatch.setattr(events, "_RECORDS_PER_PAGE", random.choice([1, 2, 3, 200]))
    monkeypatch.setattr(events, "_POLL_FIRST_SECONDS", 0.001)
    monkeypatch.setattr(events, "_POLL_SECONDS_MAX", 0.002)
    writer, other = house.open(), house.open()
    await writer.start(grouped(), id="doc-42")
    head = head_of(await item_of_head(writer, "doc-42"))
    readers = [
        asyncio.create_task(_with_reconnects(random.choice([writer, other]), Random(seed * 10 + n)))
        for n in range(3)
    ]
    await _appended(writer, head, random)
    await writer.run("doc-42").cancel()
    expected = await recorded(writer, "doc-42")
    assert len(expected) > 40
    wanted = [(f"{head.generation}.{p}.{i}", e.__struct_config__.tag) for p, i, e in expected]
    for reader in readers:
        seen = await reader
        assert [(entry.cursor, entry.kind) for entry in seen] == wanted
        visits = [entry.details["visit"] for entry in seen if entry.kind == "node"]
        assert visits == list(range(len(visits)))


async def _appended(hf: Holdfast, head: Head, random: Random) -> None:
    journal = JournalWriter(hf._kernel, head, await load_run(hf._kernel, head), alive=lambda: True)
    number = 0
    under_way: set[asyncio.Task[None]] = set()
    while number < 60:
        size = random.randrange(1, 4)
        some = [NodeFinished(0, "n", number + n, {}, "n") for n in range(size)]
        number += size
        if random.random() < 0.3:
            journal.buffer(some)
        else:
            # In the order in which they are begun; several may share a Put.
            under_way.add(asyncio.create_task(journal.append(some)))
            await hf._kernel.clock.sleep(0)
        if random.random() < 0.5 and under_way:
            await asyncio.wait(under_way)
    await asyncio.gather(*under_way)
    await journal.flush()


async def _with_reconnects(hf: Holdfast, random: Random) -> list[HistoryEntry]:
    seen: list[HistoryEntry] = []
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while True:
            left = random.randrange(1, 12)
            after = seen[-1].cursor if seen else None
            follow = random.random() < 0.7
            async with aclosing(hf.run("doc-42").events(after=after, follow=follow)) as stream:
                async for entry in stream:
                    seen.append(entry)
                    left -= 1
                    if left == 0:
                        break
                else:
                    if follow:
                        return seen
