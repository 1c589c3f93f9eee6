"""Events that are not recorded: they cost nothing, come once, and a snapshot supersedes them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from random import Random
from typing import Any

import msgspec
import pytest

from holdfast import Graph, HistoryEntry, Holdfast, Retry, RunStream, signal
from holdfast.engine.execution import live_reports
from holdfast.engine.history import ephemeral, events
from holdfast.engine.kernel import live_events
from holdfast.engine.runs.rows import read_row
from holdfast.errors import InvalidQuery, InvalidRequest, NodeError, RunNotFound
from holdfast.model.node_progress import NodeProgress
from holdfast.records.codec import pack, unpack_value
from holdfast.records.row_events import paused_entry
from holdfast.records.streamed_text import ProgressEntry, TextBatch, TextEntry, TextStream, text_of
from holdfast.records.times import utc_datetime
from tests.engine.support import (
    WAIT_SECONDS_MAX,
    Gate,
    House,
    chain,
    reached,
    run_units,
    units_of,
)

NEVER_SECONDS = 10_000
HOUR = timedelta(hours=1)


async def waits(state: Any, ctx: Any) -> Any:
    return {"decision": await ctx.wait(signal("decision"), about={"amount": 3}, max_wait=3600)}


def asking() -> Graph:
    return chain("asking", 3, lambda number: {}, node1=waits)


async def collected(stream: RunStream[HistoryEntry]) -> list[HistoryEntry]:
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        return [entry async for entry in stream]


async def next_of(stream: RunStream[HistoryEntry], kind: str) -> HistoryEntry:
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        async for entry in stream:
            if entry.kind == kind:
                return entry
    raise AssertionError(f"no {kind}")


async def follow_decision(
    hf: Holdfast, run_id: str, gate: Gate | None = None
) -> list[HistoryEntry]:
    """Follow a run to its end, and answer its wait as soon as an event shows it."""
    gate = gate or Gate()
    found: list[HistoryEntry] = []
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        async with hf.run(run_id).events(ephemeral=True) as stream:
            async for entry in stream:
                found.append(entry)
                gate.open()
                if entry.kind == "paused":
                    await hf.run(run_id).signal("decision", "yes")
    return found


def short(entries: list[HistoryEntry]) -> list[tuple[str, str | None]]:
    return [(entry.kind, entry.node) for entry in entries]


async def test_a_follower_here_sees_everything_as_it_happens(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_POLL_FIRST_SECONDS", NEVER_SECONDS)
    gate = Gate()

    async def first(state: Any) -> Any:
        await gate.pass_through()
        return {}

    graph = chain("asking", 3, lambda number: {}, node0=first, node1=waits)
    async with house.worker(hf, graph):
        await hf.start(graph, id="doc-42")
        await gate.waited_at()
        found = await follow_decision(hf, "doc-42", gate)
    assert short(found) == [
        ("snapshot", "node0"),
        ("started", "node0"),
        ("node", "node0"),
        ("node_started", "node1"),
        ("paused", "node1"),
        ("resumed", "node1"),
        ("node_started", "node1"),
        ("about", "node1"),
        ("signal", "node1"),
        ("node", "node1"),
        ("node_started", "node2"),
        ("node", "node2"),
        ("finished", None),
        ("ended", "node2"),
    ]
    assert all(entry.ephemeral == (entry.cursor == "") for entry in found)
    assert {entry.kind for entry in found if entry.ephemeral} <= set(ephemeral.KINDS)
    (paused,) = [entry.details for entry in found if entry.kind == "paused"]
    assert paused["reason"] == "signal"
    assert paused["waits"][0]["signal"] == "decision"
    assert paused["waits"][0]["about"] == {"amount": 3}
    assert paused["since"] < paused["until"]
    assert found[-1].details == {"status": "finished", "failure": None, "into": None}


async def test_followers_cost_no_write_units(house: House, hf: Holdfast) -> None:
    graph = asking()
    async with house.worker(hf, graph):
        await hf.start(graph, id="alone")
        await reached(hf, "alone", "waiting")
        await hf.run("alone").signal("decision", "yes")
        await hf.run("alone").until("finished", timeout=WAIT_SECONDS_MAX)
        alone = run_units(hf)
        await hf.start(graph, id="followed")
        await follow_decision(hf, "followed")
    assert run_units(hf) == 2 * alone
    assert units_of(hf, "text").writes == 0


async def test_nothing_is_built_without_a_follower(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("an event without a follower")

    for name in ("node_started_entry", "paused_entry", "resumed_entry", "progress_entry"):
        monkeypatch.setattr(live_reports, name, refuse)

    async def reports(state: Any, ctx: Any) -> Any:
        ctx.progress(0.5)
        return await waits(state, ctx)

    graph = chain("asking", 3, lambda number: {}, node1=reports)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        await run.until("waiting", timeout=WAIT_SECONDS_MAX)
        await run.signal("decision", "yes")
        await run.result(timeout=WAIT_SECONDS_MAX)
    assert hf._kernel.live._progress == {}
    assert hf._kernel.live._feeds == {}


async def test_a_follower_in_another_process_derives_pauses_from_the_row(
    house: House, hf: Holdfast
) -> None:
    graph, other = asking(), house.open()
    async with house.worker(hf, graph):
        await hf.start(graph, id="doc-42")
        await reached(hf, "doc-42", "waiting")
        async with other.run("doc-42").events(ephemeral=True) as stream:
            snapshot = await anext(stream)
            assert (snapshot.kind, snapshot.details["status"]) == ("snapshot", "waiting")
            assert snapshot.details["waits"][0]["about"] == {"amount": 3}
            await hf.run("doc-42").signal("decision", "yes")
            found = await collected(stream)
    recorded = [entry for entry in found if not entry.ephemeral]
    assert [entry.kind for entry in recorded] == [
        "node", "about", "signal", "node", "node", "finished",
    ]  # fmt: skip
    assert found[0].kind == "started"
    assert found[-1].kind == "ended"


async def test_a_follower_in_another_process_sees_a_run_go_on(house: House, hf: Holdfast) -> None:
    gate, other = Gate(), house.open()

    async def slow(state: Any) -> Any:
        await gate.pass_through()
        return {}

    graph = chain("asking", 4, lambda number: {}, node1=waits, node3=slow)
    async with house.worker(hf, graph):
        await hf.start(graph, id="doc-42")
        await reached(hf, "doc-42", "waiting")
        async with other.run("doc-42").events(ephemeral=True) as stream:
            await next_of(stream, "node")
            await hf.run("doc-42").signal("decision", "yes")
            await gate.waited_at()
            resumed = await next_of(stream, "resumed")
            started = await next_of(stream, "node_started")
            gate.open()
            ended = await next_of(stream, "ended")
    assert resumed.node == "node1"
    assert started.node in ("node1", "node3")
    assert ended.details["status"] == "finished"


async def test_a_slow_follower_gets_a_snapshot_for_what_it_missed(
    house: House, hf: Holdfast
) -> None:
    gate = Gate()
    burst = 3 * live_events.BUFFERED_MAX

    async def busy(state: Any, ctx: Any) -> Any:
        for number in range(burst):
            entry = ephemeral.node_started_entry(f"n{number}", at_ms=ctx._visit.now_ms())
            live_reports._publish(ctx._visit.claimed, entry)
        ctx.progress(0.9, "nearly")
        await gate.pass_through()
        return {}

    graph = chain("busy", 2, lambda number: {}, node1=busy)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42", start_at=utc_datetime(house.clock.now_ms()) + HOUR)
        async with run.events(ephemeral=True) as stream:
            assert (await anext(stream)).details["status"] == "waiting"
            (feed,) = hf._kernel.live._feeds[run._key]
            await house.quiet(worker)  # the clock brings its next poll
            house.clock.advance(3601)
            await gate.waited_at()
            assert len(feed._unread) == live_events.BUFFERED_MAX
            kept = [entry async for entry in until_snapshot(stream)]
            assert kept[-1].details["progress"][0]["message"] == "nearly"
            assert kept[-2].kind == "progress"
            assert "n0" not in [entry.node for entry in kept]
            gate.open()
            assert (await next_of(stream, "ended")).details["status"] == "finished"


async def until_snapshot(stream: RunStream[HistoryEntry]) -> AsyncIterator[HistoryEntry]:
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        async for entry in stream:
            yield entry
            if entry.kind == "snapshot":
                return


# --- progress -------------------------------------------------------------------------------------


async def test_progress_reaches_followers_and_the_next_snapshot(house: House, hf: Holdfast) -> None:
    gate, second = Gate(), Gate()

    async def reads(state: Any, ctx: Any) -> Any:
        await gate.pass_through()
        ctx.progress(0.4, "page 12 of 30")
        await second.pass_through()
        return {}

    graph = chain("reads", 1, lambda number: {}, node0=reads)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        async with run.events(ephemeral=True) as stream:
            await gate.waited_at()
            gate.open()
            found = await next_of(stream, "progress")
            assert found.node == "node0"
            assert found.details == {"fraction": 0.4, "message": "page 12 of 30"}
            async with run.events(ephemeral=True) as late:
                (shown,) = (await anext(late)).details["progress"]
            assert (shown["node"], shown["fraction"]) == ("node0", 0.4)
            second.open()
            await next_of(stream, "ended")
        async with run.events(ephemeral=True) as after:
            assert (await anext(after)).details["progress"] == []


async def test_plain_functions_and_tools_report_progress(house: House, hf: Holdfast) -> None:
    def fetch(ctx: Any) -> str:
        ctx.progress(None, "fetching")
        return "page"

    def plain(state: Any, ctx: Any) -> Any:
        for number in range(100_000):
            ctx.progress(number / 100_000)
        ctx.progress(1, "done")
        return {"page": ctx.call(fetch)}

    graph = chain("plain", 2, lambda number: {}, node1=plain)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42", start_at=utc_datetime(house.clock.now_ms()) + HOUR)
        async with run.events(ephemeral=True) as stream:
            await anext(stream)
            await house.quiet(worker)  # it sleeps until its next poll, which the clock brings
            house.clock.advance(3601)
            found = await collected(stream)
    messages = [entry.details["message"] for entry in found if entry.kind == "progress"]
    assert {"done", "fetching"} & set(messages)
    assert len(messages) < 20_000


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((1.5,), "fraction must be a number from 0 to 1 or None, got 1.5"),
        ((float("nan"),), "fraction must be a number from 0 to 1 or None, got nan"),
        ((True,), "fraction must be a number from 0 to 1 or None, got True"),
        (("0.4",), "fraction must be a number from 0 to 1 or None, got '0.4'"),
        ((0.5, 3), "message must be a string, got 3"),
        ((0.5, "é" * 513), "message must have at most 1,024 bytes, got 1,026"),
    ],
)
@pytest.mark.parametrize("plain", [False, True])
async def test_wrong_progress_is_refused(
    house: House, hf: Holdfast, given: tuple[Any, ...], told: str, plain: bool
) -> None:
    def node(state: Any, ctx: Any) -> Any:
        with pytest.raises(InvalidRequest, match=re.escape(told)):
            ctx.progress(*given)
        return {}

    async def async_node(state: Any, ctx: Any) -> Any:
        return node(state, ctx)

    graph = chain("wrong", 1, lambda number: {}, node0=node if plain else async_node)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        await run.result(timeout=WAIT_SECONDS_MAX)


async def test_streamed_progress_reaches_other_processes_and_not_the_text(
    house: House, hf: Holdfast
) -> None:
    gate, other = Gate(), house.open()

    async def reads(state: Any, ctx: Any) -> Any:
        for number in range(1_000):
            ctx.progress(number / 1_000, "reading", stream=True)
        await gate.pass_through()
        return {}

    graph = chain("reads", 1, lambda number: {}, node0=reads)
    async with house.worker(hf, graph):
        await hf.start(graph, id="doc-42")
        await gate.waited_at()
        async with other.run("doc-42").events(ephemeral=True) as stream:
            found = await next_of(stream, "progress")
            assert found.details == {"fraction": 0.999, "message": "reading"}
        assert units_of(hf, "text").writes <= 4
        gate.open()
        await hf.run("doc-42").result(timeout=WAIT_SECONDS_MAX)
    for each in (hf, other):
        assert [piece async for piece in each.run("doc-42").tokens(follow=False)] == []


def test_progress_changes_no_bytes_of_text_and_older_releases_read_it() -> None:
    class OldBatch(msgspec.Struct, frozen=True, array_like=True):
        streams: dict[int, TextStream]
        entries: list[TextEntry]

    said = TextEntry(0, "hello", True)
    old = pack(OldBatch({0: TextStream("c", "small")}, [said]))
    assert pack(TextBatch({0: TextStream("c", "small")}, [said])) == old
    progress = NodeProgress(1, "read", "", 0.5, "half")
    entries = [said, ProgressEntry(1, "", progress=progress)]
    data = pack(TextBatch({0: TextStream("c", "small")}, entries))
    read = msgspec.convert(unpack_value(data, 10_000), OldBatch)
    assert [entry.text for entry in read.entries] == ["hello", ""]
    stored = text_of({"PK": "p", "SK": "s", "data": data}, 10_000)
    assert [entry.progress for entry in stored.entries] == [None, progress]


# --- opening --------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"ephemeral": True}])
async def test_an_unknown_run_or_cursor_is_refused_before_the_stream(
    house: House, hf: Holdfast, options: dict[str, Any]
) -> None:
    for stream in (hf.run("nothing").events(**options), hf.run("nothing").tokens()):
        with pytest.raises(RunNotFound):
            async with stream:
                raise AssertionError("opened")
        assert await anext(stream, None) is None
    graph = chain("ten", 1, lambda number: {})
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        await run.result(timeout=WAIT_SECONDS_MAX)
    entries = await collected(run.events())
    generation = entries[0].cursor.split(".")[0]
    for cursor in (f"{generation}.99.0", f"{generation}.1.7", f"{'0' * 36}.1.0"):
        with pytest.raises(InvalidQuery, match="has no event"):
            async with run.events(after=cursor, **options):
                raise AssertionError("opened")
    with pytest.raises(InvalidQuery, match="not a cursor"):
        run.events(after="", **options)
    async with run.events(**options) as stream:
        assert [e.kind async for e in stream if not e.ephemeral] == ["node", "finished"]
    assert hf._kernel.notifier._listeners == {}
    assert hf._kernel.live._feeds == {}


# --- exactly once, whatever is between ------------------------------------------------------------


def restless(random: Random) -> Graph:
    """Return a graph with pauses, failures, retries and branches."""
    graph = Graph("restless", dict)
    failures = {f"node{number}": random.randrange(3) for number in range(5)}
    waiting = {f"node{number}" for number in range(5) if random.random() < 0.4}

    def node(name: str) -> Any:
        async def run(state: Any, ctx: Any) -> Any:
            if name in waiting:
                await ctx.wait(signal(f"go-{name}"))
            ctx.progress(random.random(), name)
            if ctx.attempt <= failures[name]:
                raise NodeError("not yet")
            return {}

        return run

    async def item(state: Any, ctx: Any) -> Any:
        ctx.progress(0.5)
        return {}

    names = [
        graph.node(name=name, retry=Retry(attempts=3, backoff=0.001, backoff_max=0.001))(node(name))
        for name in failures
    ]
    graph.node(name="left", writes=[])(item)
    graph.node(name="right", writes=[])(item)
    graph.node(name="fork")(item)
    graph.node(name="join")(item)
    graph.route(*names, "fork")
    graph.fork("fork", ["left", "right"], join="join")
    return graph


async def answer_waits(hf: Holdfast, house: House) -> None:
    """Answer whatever the run waits for, and let its backoffs pass."""
    while True:
        for wait in (await hf.run("doc-42").get()).waits:
            if wait.signal is not None:
                await hf.run("doc-42").signal(wait.signal)
        house.clock.advance(0.01)


@pytest.mark.parametrize("seed", range(12))
async def test_recorded_events_come_once_and_in_order_across_reconnects(
    house: House, hf: Holdfast, seed: int
) -> None:
    random = Random(seed)
    graph, other = restless(random), house.open()
    seen: list[HistoryEntry] = []
    async with house.worker(hf, graph, hold=10), asyncio.TaskGroup() as tasks:
        await hf.start(graph, id="doc-42")
        answering = tasks.create_task(answer_waits(hf, house))
        last: str | None = None
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while not seen or seen[-1].kind != "ended":
                opened = random.choice([hf, other]).run("doc-42")
                limit = random.randrange(1, 9)
                async with opened.events(after=last, ephemeral=True) as stream:
                    assert (await anext(stream)).kind == "snapshot"
                    async for entry in stream:
                        seen.append(entry)
                        last = entry.cursor or last
                        limit -= 1
                        if limit < 0:
                            break
        answering.cancel()
    recorded = [entry for entry in seen if not entry.ephemeral]
    assert recorded == (await hf.run("doc-42").history(limit=1000)).entries
    assert {entry.kind for entry in seen if entry.ephemeral} <= set(ephemeral.KINDS)


async def test_an_older_pause_or_a_resume_without_a_pause_is_no_news(
    house: House, hf: Holdfast
) -> None:
    graph, feed = chain("short", 1, lambda number: {}), live_events.Feed()
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        await run.until("finished", timeout=WAIT_SECONDS_MAX)
    head = await read_row(hf._kernel, run._key)
    paused = paused_entry(await run.get())
    resumed = ephemeral.resumed_entry("node0", at_ms=0)
    live = ephemeral.EphemeralEvents(hf._kernel, feed, hf._workers)
    list(live.open(head, from_start=True))

    def told(entry: HistoryEntry, epochs_later: int) -> bool:
        feed.add(entry, position=1, epoch=head.epoch + epochs_later)
        return list(live.take(1)) == [entry]

    assert not told(paused, 0)
    assert not told(resumed, 1)
    assert told(paused, 2)
    assert not told(paused, 2)
    assert told(resumed, 3)
    assert not told(paused, 2)
    assert not told(resumed, 4)
