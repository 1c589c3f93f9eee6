"""More time for a run: nothing of it is gone before that time is over, whoever dies on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast import Graph, Holdfast, days, fail, hours, signal
from holdfast.engine.journal.reader import load_run
from holdfast.engine.journal.writer import JournalWriter, PositionTaken
from holdfast.errors import (
    EndpointUnreachable,
    ExpiryNotLater,
    InvalidRequest,
    RunEnded,
    RunExpired,
    RunNotFound,
    WaitBeyondExpiry,
)
from holdfast.model.event import Extended, NodeFinished, Snapshot
from holdfast.records.codec import unpack_events
from holdfast.records.head import head_of
from holdfast.records.times import utc_datetime
from holdfast.storage import Blobs, Delete, Key
from tests.engine.support import (
    Gate,
    House,
    blob_keys,
    chain,
    incompressible,
    item_of_head,
    journal_items,
    kill,
    run_units,
    store_of,
    store_without_blobs,
)

HOUR = 3600
BROOM_SECONDS = 2 * 24 * HOUR


async def waits(state: Any, ctx: Any) -> Any:
    return {"got": await ctx.wait(signal("decision"))}


def text(number: int) -> dict[str, Any]:
    return {f"step{number}": f"text {number}"}


GRAPH = chain("g", 4, text, node2=waits)
DONE = {"step0": "text 0", "step1": "text 1", "got": "yes", "step3": "text 3"}


async def sweep_what_was_to_expire(house: House, hf: Holdfast, ttl: int) -> int:
    """Move on to the end of a life that was prolonged, and delete what has no longer one.

    Return how many items that are. SQLite may have deleted them by itself by then.
    """
    table = store_of(hf).table
    items = [*await journal_items(hf, "doc-42"), await item_of_head(hf, "doc-42")]
    house.clock.advance(ttl + 1 - house.clock.now_ms() / 1000)
    gone = [item for item in items if item["ttl"] < house.clock.now_ms() // 1000]
    for item in gone:
        await table.write(Delete(Key(item["PK"], item["SK"])))
    return len(gone)


async def test_a_waiting_run_gets_more_time(either: House) -> None:
    hf, client = either.open(), either.open()
    async with either.worker(hf, GRAPH) as worker:
        run = await hf.start(GRAPH, id="doc-42", expires=HOUR)
        await either.quiet(worker)
        before = await item_of_head(hf, "doc-42")
        await client.run("doc-42").extend(days(5))
        row = await run.get()
        after = await item_of_head(hf, "doc-42")
        asked_ms = either.clock.now_ms() + 5 * 24 * HOUR * 1000
        assert row.expires_at.timestamp() * 1000 == asked_ms
        assert row.due_at == row.expires_at  # it is not claimed at the old expiry
        assert after["ttl"] - before["ttl"] == (after["expires_ms"] - before["expires_ms"]) // 1000
        assert after["epoch"] == before["epoch"]
        await either.move(HOUR + 1, worker)
        assert (await run.get()).status == "waiting"
        # Where its first records are gone, as they may be by now, nobody misses them.
        assert await sweep_what_was_to_expire(either, hf, before["ttl"]) == 2
        await either.quiet(worker)
        await client.run("doc-42").signal("decision", "yes")
        await either.move(1, worker)
    assert await run.result(timeout=60) == DONE
    assert [entry.kind for entry in (await run.history()).entries] == [
        "extended", "signal", "node", "node", "finished",
    ]  # fmt: skip


async def test_it_still_expires_exactly_and_frees_everything(house: House, hf: Holdfast) -> None:
    graph = chain("g", 2, lambda number: {"scan": incompressible(1, 50_000)}, node1=waits)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42", expires=HOUR)
        await house.quiet(worker)
        await run.extend(days(30))
        classes = {key.split("/")[0] for key in await blob_keys(hf)}
        assert classes == {"keep-10d", "keep-40d"}
        await house.move(30 * 24 * HOUR - 0.001, worker)
        assert (await run.get()).status == "waiting"
        await house.move(0.001 + 0.2, worker)
        assert (await run.get()).status == "expired"
        assert await blob_keys(hf) == []
        left = await journal_items(hf, "doc-42")
        assert [item["stays"] for item in left] == ["emptied", "whole"]  # a place, and the end


async def test_the_blobs_of_a_run_that_finished_are_freed_under_both_classes(
    house: House, hf: Holdfast
) -> None:
    graph = chain("g", 2, lambda number: {"scan": incompressible(1, 50_000)}, node1=waits)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42", expires=HOUR)
        await house.quiet(worker)
        await run.extend(days(30))
        await run.signal("decision", incompressible(2, 50_000))
        await house.quiet(worker)
        assert (await run.result(timeout=60))["got"] == incompressible(2, 50_000)
        ttl_seconds = (await item_of_head(hf, "doc-42"))["ttl"]
        await house.move(ttl_seconds - 3601 - house.clock.now_ms() / 1000, worker)
        assert len(await blob_keys(hf)) > 2
        await house.move(1.2, worker)
        assert await blob_keys(hf) == []


async def test_what_its_owner_writes_from_then_on_lasts_and_no_node_runs_twice(
    either: House,
) -> None:
    gate, entered = Gate(), list[str]()

    async def blocked(state: Any, ctx: Any) -> Any:
        entered.append(ctx.node)
        await gate.pass_through()
        return {"scan": incompressible(3, 50_000)}

    async def waits_longer(state: Any, ctx: Any) -> Any:
        entered.append(ctx.node)
        return {"got": await ctx.wait(signal("decision"), max_wait=days(20))}

    graph = chain("g", 3, text, node1=blocked, node2=waits_longer)
    hf, client = either.open(), either.open()
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42", expires=HOUR)
        await gate.waited_at()
        before = await item_of_head(hf, "doc-42")
        await client.run("doc-42").extend(days(30))
        held = await item_of_head(hf, "doc-42")
        assert (held["owner"], held["epoch"]) == (before["owner"], before["epoch"])
        gate.open()
        await either.quiet(worker)
        # The owner heard of it by itself: its node may wait beyond the old expiry.
        assert (await run.get()).status == "waiting"
        ttls = [item["ttl"] for item in await journal_items(hf, "doc-42")]
        assert ttls == [before["ttl"], held["ttl"], held["ttl"]]
        assert [key.split("/")[0] for key in await blob_keys(hf)] == ["keep-40d"]
        assert await sweep_what_was_to_expire(either, hf, before["ttl"]) == 1
        await client.run("doc-42").signal("decision", "yes")
        await either.move(1, worker)
    expected = {"step0": "text 0", "scan": incompressible(3, 50_000), "got": "yes"}
    assert await run.result(timeout=60) == expected
    assert entered == ["node1", "node2", "node2"]
    row = await run.get()
    assert row.journal_records == 4


async def test_an_owner_that_pauses_meanwhile_does_not_undo_it(house: House) -> None:
    gate = Gate()

    async def blocked(state: Any, ctx: Any) -> Any:
        await gate.pass_through()
        return {"got": await ctx.wait(signal("decision"))}

    graph = chain("g", 1, text, node0=blocked)
    hf, client = house.open(), house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42", expires=HOUR)
        await gate.waited_at()
        await client.run("doc-42").extend(days(5))
        gate.open()
        await house.quiet(worker)  # it writes no record, but its row
        row = await run.get()
        assert row.due_at == row.expires_at
        await house.move(HOUR + 1, worker)
        assert (await run.get()).status == "waiting"


async def test_a_signal_is_not_overlooked_where_a_sleep_reads_the_row_again(house: House) -> None:
    gate = Gate()

    async def careful(state: Any, ctx: Any) -> Any:
        await gate.pass_through()
        with pytest.raises(WaitBeyondExpiry):
            await ctx.sleep(days(30))
        return {"got": await ctx.wait(signal("decision"))}

    graph = chain("g", 1, text, node0=careful)
    hf, client = house.open(), house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42", expires=HOUR)
        await gate.waited_at()
        await client.run("doc-42").signal("decision", "yes")  # its owner has not seen it yet
        gate.open()
        await house.quiet(worker)
        assert await run.result(timeout=60) == {"got": "yes"}


async def test_an_owner_past_the_old_expiry_does_not_close_the_run(house: House) -> None:
    gate = Gate()

    async def blocked(state: Any, ctx: Any) -> Any:
        await gate.pass_through()
        return {"got": await ctx.wait(signal("decision"))}

    graph = chain("g", 1, text, node0=blocked)
    hf, client = house.open(), house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42", expires=HOUR)
        await gate.waited_at()
        await client.run("doc-42").extend(days(5))
        house.clock.advance(2 * HOUR)  # the owner remembers the old expiry
        gate.open()
        await house.quiet(worker)
        assert (await run.get()).status == "waiting"
        await client.run("doc-42").signal("decision", "yes")
        await house.move(1, worker)
        assert await run.result(timeout=60) == {"got": "yes"}


async def test_a_wait_that_goes_stale_after_the_old_expiry_is_due_then(house: House) -> None:
    graph = Graph("g", dict)

    @graph.node(max_pause=hours(3), on_stale=fail())
    async def node(state: Any, ctx: Any) -> Any:
        await ctx.wait(signal("decision"))

    hf = house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42", expires=HOUR)
        await house.quiet(worker)
        since = house.clock.now_ms()
        await run.extend(days(5))
        row = await run.get()
        assert row.due_at is not None
        assert row.due_at.timestamp() * 1000 == since + 3 * HOUR * 1000


async def test_a_run_with_more_waits_than_its_row_may_show_finds_out_by_itself(
    house: House, hf: Holdfast
) -> None:
    async def many(state: Any, ctx: Any) -> Any:
        names = (f"decision{number}" for number in range(8))
        return {"got": await asyncio.gather(*(ctx.wait(signal(name)) for name in names))}

    graph = chain("g", 1, text, node0=many)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42", expires=HOUR)
        await house.quiet(worker)
        due = (await run.get()).due_at
        await run.extend(days(5))
        assert (await run.get()).due_at == due
        await house.move(HOUR + 1, worker)
        row = await run.get()
        assert row.status == "waiting"
        assert row.due_at == row.expires_at
        for number in range(8):
            await run.signal(f"decision{number}", number)
            await house.quiet(worker)
        assert await run.result(timeout=60) == {"got": list(range(8))}


async def test_a_scheduled_run_starts_when_it_was_to(house: House, hf: Holdfast) -> None:
    starts = utc_datetime(house.clock.now_ms() + HOUR * 1000)
    run = await hf.start(GRAPH, id="doc-42", start_at=starts, expires=HOUR)
    await run.extend(days(5))
    assert (await run.get()).due_at == starts


# --- what is refused ------------------------------------------------------------------------------


async def test_an_expiry_is_never_shortened(house: House, hf: Holdfast) -> None:
    run = await hf.start(GRAPH, id="doc-42", expires=days(5))
    before = await item_of_head(hf, "doc-42"), await journal_items(hf, "doc-42")
    await run.extend(days(5))  # as it is: nothing to do
    with pytest.raises(ExpiryNotLater, match="'doc-42' expires at 2096-"):
        await run.extend(days(4))
    assert (await item_of_head(hf, "doc-42"), await journal_items(hf, "doc-42")) == before


@pytest.mark.parametrize("expires", [0, -1, "3", None, float("nan"), days(40_000), True])
async def test_what_is_no_span_of_time_is_refused(hf: Holdfast, expires: Any) -> None:
    await hf.start(GRAPH, id="doc-42")
    with pytest.raises(InvalidRequest) as refused:
        await hf.run("doc-42").extend(expires)
    assert refused.value.field == "expires"


async def test_only_what_is_open_or_failed_can_be_extended(house: House, hf: Holdfast) -> None:
    short = chain("short", 1, text)
    async with house.worker(hf, short) as worker:
        await hf.start(short, id="finished")
        await hf.start(GRAPH, id="cancelled")
        await hf.run("cancelled").cancel()
        await house.quiet(worker)
    await hf.start(GRAPH, id="expired", expires=HOUR)
    house.clock.advance(HOUR)
    for status in ("finished", "cancelled", "expired"):
        with pytest.raises(RunEnded) as refused:
            await hf.run(status).extend(days(30))
        assert refused.value.status == status
    with pytest.raises(RunNotFound):
        await hf.run("nobody").extend(days(30))


async def test_a_run_that_has_ended_in_its_journal_is_refused(house: House, hf: Holdfast) -> None:
    """Its owner died before the row said so."""
    graph, dead = chain("g", 1, text), asyncio.Event()
    lost = house.worker(hf, graph)
    settle = hf._kernel.resolve_write

    async def dying(table: Any, write: Any, **options: Any) -> Any:
        if table is hf._kernel.heads and "status" in getattr(write, "set", {}):
            dead.set()
            await asyncio.Event().wait()
        return await settle(table, write, **options)

    hf._kernel.resolve_write = dying  # type: ignore[method-assign]
    await lost.start()
    await hf.start(graph, id="doc-42")
    async with asyncio.timeout(60):
        await dead.wait()
    kill(lost)
    with pytest.raises(RunEnded) as refused:
        await house.open().run("doc-42").extend(days(30))
    assert refused.value.status == "finished"


async def test_a_state_that_no_item_holds_is_refused_without_a_bucket(house: House) -> None:
    graph = chain("g", 13, lambda n: {f"s{n}": incompressible(n, 40_000)}, node12=waits)
    hf = house.open(store=store_without_blobs(house.clock))
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, id="doc-42", expires=HOUR)
        await house.quiet(worker)
        before = await journal_items(hf, "doc-42")
        with pytest.raises(InvalidRequest, match=r"cannot be extended: .* need a bucket"):
            await hf.run("doc-42").extend(days(5))
        assert await journal_items(hf, "doc-42") == before


# --- signals --------------------------------------------------------------------------------------


async def test_signals_that_wait_to_be_taken_last_as_well(either: House) -> None:
    large = incompressible(5, 50_000)

    async def twice(state: Any, ctx: Any) -> Any:
        first = await ctx.wait(signal("decision"))
        await ctx.wait(signal("go"))
        return {"got": [first, await ctx.wait(signal("decision"))]}

    graph = chain("g", 1, text, node0=twice)
    hf, client = either.open(), either.open()
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42", expires=HOUR)
        await client.run("doc-42").signal("decision", "one", signal_id="s1")
        await either.move(1, worker)
        await client.run("doc-42").signal("decision", large, signal_id="s2")
        await client.run("doc-42").signal("another", "small")
        await either.move(1, worker)
        before = await item_of_head(hf, "doc-42")
        await client.run("doc-42").extend(days(30))
        assert {key.split("/")[0] for key in await blob_keys(hf)} == {"keep-10d", "keep-40d"}
        # the record of the taken signal, and that signal itself
        assert await sweep_what_was_to_expire(either, hf, before["ttl"]) == 2
        for key in await blob_keys(hf):  # as a bucket's rule would
            if key.startswith("keep-10d/"):
                await store_of(hf).blobs.delete(key)
        # Sent again, now that its item is gone, the taken one does not count again.
        await client.run("doc-42").signal("decision", "one", signal_id="s1")
        await client.run("doc-42").signal("go")
        await either.move(1, worker)
    assert await run.result(timeout=60) == {"got": ["one", large]}


async def test_a_signal_that_is_put_while_the_run_is_extended_lasts(house: House) -> None:
    """Its sender read the row before, and wrote to the inbox after it was walked."""
    graph = chain("g", 1, text, node0=waits)
    hf, sender, client = house.open(), house.open(), house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42", expires=HOUR)
        await house.quiet(worker)
    ttl = (await item_of_head(hf, "doc-42"))["ttl"]
    settle = sender._kernel.resolve_write

    async def stalled(table: Any, write: Any, **options: Any) -> Any:
        if table is sender._kernel.inboxes and not hasattr(write, "set"):
            await client.run("doc-42").extend(days(30))
        return await settle(table, write, **options)

    sender._kernel.resolve_write = stalled  # type: ignore[method-assign]
    await sender.run("doc-42").signal("decision", incompressible(5, 50_000))
    assert (await item_of_head(hf, "doc-42"))["ttl"] > ttl
    assert await sweep_what_was_to_expire(house, hf, ttl) == 0
    async with house.worker(hf, graph) as worker:
        await house.quiet(worker)
    assert await run.result(timeout=60) == {"got": incompressible(5, 50_000)}


async def test_a_signal_sent_again_after_its_sender_died_lasts(house: House) -> None:
    graph = chain("g", 1, text, node0=waits)
    hf, sender, client = house.open(), house.open(), house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42", expires=HOUR)
        await house.quiet(worker)
    ttl = (await item_of_head(hf, "doc-42"))["ttl"]
    settle = sender._kernel.resolve_write

    async def dying(table: Any, write: Any, **options: Any) -> Any:
        await client.run("doc-42").extend(days(30))
        await settle(table, write, **options)
        raise Killed

    sender._kernel.resolve_write = dying  # type: ignore[method-assign]
    with pytest.raises(Killed):
        await sender.run("doc-42").signal("decision", "yes", signal_id="s1")
    await client.run("doc-42").signal("decision", "yes", signal_id="s1")
    assert await sweep_what_was_to_expire(house, hf, ttl) == 0
    async with house.worker(hf, graph) as worker:
        await house.quiet(worker)
    assert await run.result(timeout=60) == {"got": "yes"}


async def test_who_remembers_the_row_as_it_was_looks_again(house: House) -> None:
    hf, client = house.open(), house.open()
    async with house.worker(hf, GRAPH) as worker:
        run = await hf.start(GRAPH, id="doc-42", expires=HOUR)
        await house.quiet(worker)
        ttl = (await item_of_head(hf, "doc-42"))["ttl"]
        await client.run("doc-42").extend(days(30))
        await run.signal("decision", "yes", signal_id="s1")  # by a row that was paused here
        (sent,) = [item for item in await journal_items(hf, "doc-42") if "#IN#" in item["SK"]]
        assert sent["ttl"] > ttl
        await house.quiet(worker)
        assert await run.result(timeout=60) == DONE


# --- dying on the way -----------------------------------------------------------------------------


class Killed(BaseException):
    """The client is gone."""


def around_each_write(
    hf: Holdfast, around: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
) -> None:
    """Hand every write of an instance to a function, which carries it out or does not."""

    def handed_over(write: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def instead(*arguments: Any, **options: Any) -> Any:
            return await around(lambda: write(*arguments, **options))

        return instead

    for name in ("resolve_write", "resolve_transaction"):
        setattr(hf._kernel, name, handed_over(getattr(hf._kernel, name)))


def die_at(hf: Holdfast, count: int, *, after: bool) -> Callable[[], bool]:
    """Let an instance die at its write of that number; return what tells whether it got there."""
    writes = 0

    async def dying(write: Callable[[], Awaitable[Any]]) -> Any:
        nonlocal writes
        writes += 1
        if writes == count and not after:
            raise Killed
        item = await write()
        if writes == count:
            raise Killed
        return item

    around_each_write(hf, dying)
    return lambda: writes >= count


STEPS = 5
"""The class, the snapshot, the ttl, one signal, the expiry."""


async def half_extended(house: House, step: int, *, after: bool) -> tuple[Holdfast, int]:
    """Return a run whose extension was given up at one of its steps, and its ttl before that."""
    graph = chain("g", 4, text, node2=waits)
    hf, client = house.open(), house.open()
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, id="doc-42", expires=HOUR, retention=days(3))
        await hf.run("doc-42").signal("early", "kept")
        await house.quiet(worker)
    ttl = (await item_of_head(hf, "doc-42"))["ttl"]
    reached = die_at(client, step, after=after)
    with pytest.raises(Killed):
        await client.run("doc-42").extend(days(30))
    assert reached()
    return hf, ttl


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(1, STEPS + 1))
async def test_to_ask_again_finishes_what_was_begun(house: House, step: int, after: bool) -> None:
    hf, ttl = await half_extended(house, step, after=after)
    house.clock.advance(60)
    await house.open().run("doc-42").extend(days(30))
    row = await item_of_head(hf, "doc-42")
    assert row["expires_ms"] == house.clock.now_ms() + days(30).total_seconds() * 1000
    assert row["ttl"] == row["expires_ms"] // 1000 + days(3).total_seconds()  # as it was asked
    assert "extends_ms" not in row
    await sweep_what_was_to_expire(house, hf, ttl)
    assert any("#IN#early#" in item["SK"] for item in await journal_items(hf, "doc-42"))
    async with house.worker(hf, GRAPH) as worker:
        await house.quiet(worker)
        await hf.run("doc-42").signal("decision", "yes")
        await house.quiet(worker)
    assert await hf.run("doc-42").result(timeout=60) == DONE


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(1, STEPS + 1))
async def test_what_was_only_begun_changes_nothing(house: House, step: int, after: bool) -> None:
    hf, _ = await half_extended(house, step, after=after)
    done = step == STEPS and after
    async with house.worker(hf, GRAPH) as worker:
        await house.move(HOUR + 1, worker)
        if done:
            assert (await hf.run("doc-42").get()).status == "waiting"
            return
        assert (await hf.run("doc-42").get()).status == "expired"
        with pytest.raises(RunExpired):
            await hf.run("doc-42").result(timeout=60)


@pytest.mark.parametrize("step", range(1, STEPS + 1))
async def test_a_run_goes_on_whose_extension_was_only_begun(house: House, step: int) -> None:
    hf, _ = await half_extended(house, step, after=True)
    async with house.worker(hf, GRAPH) as worker:
        await hf.run("doc-42").signal("decision", "yes")
        await house.quiet(worker)
    assert await hf.run("doc-42").result(timeout=60) == DONE
    # Nothing stands after the snapshot that would be gone before it.
    records = [item for item in await journal_items(hf, "doc-42") if "#IN#" not in item["SK"]]
    ttls = [item["ttl"] for item in records]
    assert ttls == sorted(ttls)


async def test_a_shorter_one_after_one_that_was_only_begun_keeps_both_promises(
    house: House,
) -> None:
    hf, _ = await half_extended(house, 3, after=True)
    promised = (await item_of_head(hf, "doc-42"))["ttl"]
    await house.open().run("doc-42").extend(days(5))
    row = await item_of_head(hf, "doc-42")
    assert row["expires_ms"] == house.clock.now_ms() + days(5).total_seconds() * 1000
    assert row["ttl"] == promised
    await house.open().run("doc-42").extend(days(60))
    row = await item_of_head(hf, "doc-42")
    assert row["ttl"] == row["expires_ms"] // 1000 + days(3).total_seconds()


# --- racing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", range(1, STEPS + 1))
async def test_whoever_comes_first_wins_a_race_with_the_expiry(house: House, step: int) -> None:
    """The run expires, and is closed, between two steps of its extension."""
    hf, client = house.open(), house.open()
    async with house.worker(hf, GRAPH) as worker:
        await hf.start(GRAPH, id="doc-42", expires=HOUR)
        await hf.run("doc-42").signal("early", "kept")
        await house.quiet(worker)
        writes = 0

        async def racing(write: Callable[[], Awaitable[Any]]) -> Any:
            nonlocal writes
            writes += 1
            if writes == step:
                await house.move(HOUR, worker)
                await house.move(1, worker)
            return await write()

        around_each_write(client, racing)
        with pytest.raises(RunEnded) as refused:
            await client.run("doc-42").extend(days(30))
        assert refused.value.status == "expired"
        assert (await hf.run("doc-42").get()).status == "expired"
        left = await journal_items(hf, "doc-42")
        assert [item.get("stays") for item in left].count("whole") == 1


async def test_whoever_slept_while_extending_fills_no_position_that_was_freed(house: House) -> None:
    """The run went on past where the snapshot was to stand, expired and was freed."""

    async def waits_again(state: Any, ctx: Any) -> Any:
        return await waits(state, ctx)

    graph = chain("g", 2, text, node0=waits, node1=waits_again)
    hf, client = house.open(), house.open()
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, {"scan": incompressible(1, 50_000)}, id="doc-42", expires=HOUR)
        await house.quiet(worker)
        writes = 0

        async def sleeping(write: Callable[[], Awaitable[Any]]) -> Any:
            nonlocal writes
            writes += 1
            if writes == 2:
                await hf.run("doc-42").signal("decision", "yes")
                await house.quiet(worker)
                await house.move(HOUR, worker)
                await house.move(1, worker)
            return await write()

        around_each_write(client, sleeping)
        with pytest.raises(RunEnded) as refused:
            await client.run("doc-42").extend(days(30))
        assert (writes, refused.value.status) == (2, "expired")
        left = await journal_items(hf, "doc-42")
        assert [item.get("stays") for item in left] == ["emptied", "emptied", "whole"]
        assert await blob_keys(hf) == []


async def test_a_blob_that_cannot_be_deleted_does_not_fail_an_extension(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another extension takes the position; the store fails when the orphaned blob is deleted."""
    graph = chain("g", 2, text, node0=waits)
    client = house.open()
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, {"scan": incompressible(1, 50_000)}, id="doc-42", expires=HOUR)
        await house.quiet(worker)
        writes = 0

        async def overtaken(write: Callable[[], Awaitable[Any]]) -> Any:
            nonlocal writes
            writes += 1
            if writes == 2:
                await hf.run("doc-42").extend(days(20))
            return await write()

        async def fails(*arguments: Any) -> None:
            raise EndpointUnreachable("the bucket does not answer")

        around_each_write(client, overtaken)
        monkeypatch.setattr(Blobs, "delete", fails)
        await client.run("doc-42").extend(days(30))
        row = await item_of_head(hf, "doc-42")
        assert row["expires_ms"] == house.clock.now_ms() + days(30).total_seconds() * 1000


async def test_an_owner_that_slept_through_it_all_finds_its_place_taken(house: House) -> None:
    """It meant to write where the extension stands, and wakes when the run is freed."""
    hf = house.open()
    await hf.start(GRAPH, id="doc-42", expires=HOUR)
    head = head_of(await item_of_head(hf, "doc-42"))
    slept = JournalWriter(hf._kernel, head, await load_run(hf._kernel, head), alive=lambda: True)
    await hf.run("doc-42").extend(days(5))
    async with house.worker(hf, GRAPH) as worker:
        await house.move(days(5).total_seconds() + 1, worker)
    assert (await hf.run("doc-42").get()).status == "expired"
    with pytest.raises(PositionTaken):
        await slept.append([NodeFinished(0, "node0", 0, text(0), "node1")])
    (place, end) = await journal_items(hf, "doc-42")
    assert (place["stays"], end["stays"]) == ("emptied", "whole")
    assert not place.keys() & {"data", "blob"}  # only the place is kept, and none of the state


async def test_two_at_once_agree_on_the_later_one(house: House, hf: Holdfast) -> None:
    async with house.worker(hf, GRAPH) as worker:
        await hf.start(GRAPH, id="doc-42", expires=HOUR)
        await house.quiet(worker)
        clients = [house.open() for _ in range(4)]
        spans = [days(3), days(50), days(7), days(20)]
        results = await asyncio.gather(
            *(
                client.run("doc-42").extend(span)
                for client, span in zip(clients, spans, strict=True)
            ),
            return_exceptions=True,
        )
        assert all(result is None or isinstance(result, ExpiryNotLater) for result in results)
        assert results[1] is None
        row = await item_of_head(hf, "doc-42")
        assert row["expires_ms"] == house.clock.now_ms() + days(50).total_seconds() * 1000
        assert row["ttl"] == row["expires_ms"] // 1000 + BROOM_SECONDS
        await hf.run("doc-42").signal("decision", "yes")
        await house.quiet(worker)
        assert await hf.run("doc-42").result(timeout=60) == DONE


async def test_a_run_that_is_cancelled_after_it_was_extended_stays_cancelled_as_long(
    house: House, hf: Holdfast
) -> None:
    """The canceller read the row before the extension reached it."""
    hf, _ = await half_extended(house, 2, after=True)
    await house.open().run("doc-42").cancel("enough")
    *_, extended, cancelled = [
        item for item in await journal_items(hf, "doc-42") if "#IN#" not in item["SK"]
    ]
    first, second = unpack_events(extended["data"])
    assert isinstance(first, Snapshot)
    assert isinstance(second, Extended)
    assert cancelled["ttl"] == extended["ttl"] == second.ttl


async def test_to_extend_a_waiting_run_costs_five_units(either: House) -> None:
    hf, client = either.open(), either.open()
    async with either.worker(hf, GRAPH) as worker:
        await hf.start(GRAPH, id="doc-42", expires=days(20))
        await either.quiet(worker)
        client.meter.reset()
        await client.run("doc-42").extend(days(21))
    # the snapshot 1, the ttl 1, the expiry 3, for the run moves in the due index
    assert run_units(client) == 5
