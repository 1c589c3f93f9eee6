"""Expiry: exact to the millisecond, and final."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Graph, Holdfast, Retry, days, hours, signal
from holdfast.engine.journal.reader import load_run
from holdfast.engine.journal.writer import JournalWriter, PositionTaken
from holdfast.errors import (
    RunEnded,
    RunExpired,
    RunFailed,
    RunNotFound,
    WaitBeyondExpiry,
)
from holdfast.model.event import NodeFinished
from holdfast.records.head import head_of
from tests.engine.support import (
    Gate,
    House,
    blob_keys,
    chain,
    incompressible,
    item_of_head,
    journal_items,
)


def one(function: Any, **options: Any) -> Graph:
    graph = Graph("g", dict)
    graph.node(name="node", **options)(function)
    return graph


async def waits(state: Any, ctx: Any) -> Any:
    return {"got": await ctx.wait(signal("decision"))}


LARGE = {"scan": incompressible(7, 100_000)}


async def test_a_waiting_run_expires_exactly_and_frees_everything(either: House) -> None:
    graph = chain("g", 2, lambda number: LARGE, node1=waits)
    hf = either.open()
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, {"input": incompressible(8, 50_000)}, id="doc-42", expires=3600)
        await run.signal("another", incompressible(9, 50_000))
        await run.signal("another", "small")
        await either.quiet(worker)
        assert len(await blob_keys(hf)) == 3
        assert len(await journal_items(hf, "doc-42")) == 4
        claims = worker.counts["claimed"]
        await either.move(3599.999, worker)
        assert (await run.get()).status == "waiting"
        assert worker.counts["claimed"] == claims
        assert len(await blob_keys(hf)) == 3
        await either.move(0.001 + 0.2, worker)
        row = await run.get()
        assert (row.status, row.owner, row.due_at, row.waits) == ("expired", None, None, ())
        assert await blob_keys(hf) == []
        # The places of its records stay until their ttl, so that no late write takes one of them.
        left = await journal_items(hf, "doc-42")
        assert [item["stays"] for item in left] == ["emptied", "emptied", "whole"]
        assert [item.keys() & {"data", "blob"} for item in left] == [set(), set(), {"data"}]
        assert "input" not in await item_of_head(hf, "doc-42")
        with pytest.raises(RunExpired):
            await run.result(timeout=60)
        with pytest.raises(RunNotFound):
            await run.history()


async def test_who_waits_for_the_result_hears_of_the_expiry(house: House, hf: Holdfast) -> None:
    async with house.worker(hf, one(waits)) as worker:
        run = await hf.start(one(waits), id="doc-42", expires=3600)
        await house.quiet(worker)
        house.clock.advance(3600)
        with pytest.raises(RunExpired, match="doc-42"):
            await run.result(timeout=60)


async def test_a_late_signal_is_refused_and_changes_nothing(either: House) -> None:
    hf, client = either.open(), either.open()
    async with either.worker(hf, one(waits)) as worker:
        run = await hf.start(one(waits), id="doc-42", expires=3600)
        await either.quiet(worker)
    either.clock.advance(3600)
    # Nobody has closed the run yet: it is past its time nevertheless.
    before = await item_of_head(client, "doc-42"), await journal_items(client, "doc-42")
    for _ in range(2):
        with pytest.raises(RunEnded) as refused:
            await client.run("doc-42").signal("decision", "late")
        assert refused.value.status == "expired"
    after = await item_of_head(client, "doc-42"), await journal_items(client, "doc-42")
    assert after == before
    async with either.worker(hf, one(waits)) as worker:
        await either.quiet(worker)
        assert (await run.get()).status == "expired"
        with pytest.raises(RunEnded) as refused:
            await client.run("doc-42").signal("decision", "later still")
        assert refused.value.status == "expired"
        await either.move(1, worker)
        assert (await run.get()).status == "expired"


async def test_a_signal_accepted_in_time_is_carried_out_after_the_expiry(either: House) -> None:
    graph = chain("g", 3, lambda number: {f"step{number}": 1}, node0=waits)
    hf, client = either.open(), either.open()
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42", expires=3600)
        await either.quiet(worker)
    either.clock.advance(3599.999)
    await client.run("doc-42").signal("decision", "in time")
    either.clock.advance(hours(5).total_seconds())
    async with either.worker(hf, graph) as worker:
        await either.quiet(worker)
    assert await run.result(timeout=60) == {"got": "in time", "step1": 1, "step2": 1}


async def test_a_signal_in_time_for_another_wait_does_not_save_the_run(house: House) -> None:
    entered = []

    async def counts(state: Any, ctx: Any) -> Any:
        entered.append(house.clock.now_ms())
        await ctx.wait(signal("decision"))

    hf = house.open()
    async with house.worker(hf, one(counts)) as worker:
        run = await hf.start(one(counts), id="doc-42", expires=3600)
        await house.quiet(worker)
    house.clock.advance(3599)
    await run.signal("another", "in time")
    house.clock.advance(1)
    async with house.worker(hf, one(counts)) as worker:
        await house.quiet(worker)
    assert (await run.get()).status == "expired"
    assert len(entered) == 1  # never past its expiry


async def test_a_late_write_finds_its_place_taken_when_the_run_was_freed(house: House) -> None:
    """It was sent before another record stood there, and arrives when that one is freed."""
    graph, hf = chain("g", 2, lambda number: {"page": number}, node1=waits), house.open()
    await hf.start(graph, id="doc-42", expires=3600)
    head = head_of(await item_of_head(hf, "doc-42"))
    late = JournalWriter(hf._kernel, head, await load_run(hf._kernel, head), alive=lambda: True)
    async with house.worker(hf, graph) as worker:
        await house.quiet(worker)
        await house.move(3601, worker)
    assert (await hf.run("doc-42").get()).status == "expired"
    with pytest.raises(PositionTaken):
        await late.append([NodeFinished(0, "node0", 0, {"page": 7}, "node1")])
    assert all(item["stays"] for item in await journal_items(hf, "doc-42"))


async def test_a_run_that_goes_on_past_its_expiry_takes_nothing_more(house: House) -> None:
    async def waits_twice(state: Any, ctx: Any) -> Any:
        await ctx.wait(signal("decision"))
        await ctx.wait(signal("another"))

    hf = house.open()
    graph = one(waits_twice)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42", expires=3600)
        await house.quiet(worker)
    house.clock.advance(3599)
    await run.signal("decision", "in time")
    house.clock.advance(1)
    async with house.worker(hf, graph) as worker:
        await house.quiet(worker)
    assert (await run.get()).status == "expired"
    left = await journal_items(hf, "doc-42")
    assert [item.get("stays") for item in left] == ["emptied", "whole"]


async def test_a_run_that_was_never_claimed_expires(house: House, hf: Holdfast) -> None:
    ran = []

    async def node(state: Any) -> Any:
        ran.append(True)

    run = await hf.start(one(node), id="doc-42", expires=60)
    house.clock.advance(60)
    async with house.worker(hf, one(node)) as worker:
        await house.quiet(worker)
    assert (await run.get()).status == "expired"
    assert ran == []


async def test_a_node_under_way_at_the_expiry_may_end_the_run(house: House, hf: Holdfast) -> None:
    gate = Gate()

    async def blocked(state: Any) -> Any:
        await gate.pass_through()
        return {"done": True}

    async with house.worker(hf, one(blocked)):
        run = await hf.start(one(blocked), id="doc-42", expires=60)
        await gate.waited_at()
        house.clock.advance(61)
        with pytest.raises(RunEnded) as refused:
            await run.signal("decision")
        assert refused.value.status == "expired"
        gate.open()
        assert await run.result(timeout=60) == {"done": True}


async def test_a_node_that_begins_to_wait_past_the_expiry_ends_the_run(
    house: House, hf: Holdfast
) -> None:
    gate = Gate()

    async def late(state: Any, ctx: Any) -> Any:
        await gate.pass_through()
        await ctx.wait(signal("decision"))

    async with house.worker(hf, one(late)) as worker:
        run = await hf.start(one(late), id="doc-42", expires=60)
        await gate.waited_at()
        house.clock.advance(61)
        gate.open()
        await house.quiet(worker)
    assert (await run.get()).status == "expired"


async def test_a_backoff_that_outlasts_the_run_expires_with_it(house: House, hf: Holdfast) -> None:
    async def fails(state: Any) -> Any:
        raise OSError

    graph = one(fails, retry=Retry(attempts=9, backoff=300, jitter=0))
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42", expires=60)
        await house.quiet(worker)
        await house.move(59.999, worker)
        assert (await run.get()).status == "waiting"
        await house.move(0.201, worker)
        assert (await run.get()).status == "expired"


@pytest.mark.parametrize("plain", [False, True])
async def test_a_sleep_that_would_outlast_the_run_is_an_error(
    house: House, hf: Holdfast, plain: bool
) -> None:
    async def beyond(state: Any, ctx: Any) -> Any:
        await ctx.sleep(3600.001)

    def beyond_plainly(state: Any, ctx: Any) -> Any:
        ctx.sleep(3600.001)

    graph = one(beyond_plainly if plain else beyond)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42", expires=3600)
        with pytest.raises(RunFailed, match="start it with a longer expires=, or extend") as failed:
            await run.result(timeout=60)
    assert failed.value.kind == "WaitBeyondExpiry"


async def test_a_sleep_that_would_outlast_the_run_can_be_caught(house: House) -> None:
    async def careful(state: Any, ctx: Any) -> Any:
        try:
            await ctx.sleep(days(30))
        except WaitBeyondExpiry:
            return {"got": await ctx.wait(signal("decision"), max_wait=3600)}

    hf = house.open()
    async with house.worker(hf, one(careful)) as worker:
        run = await hf.start(one(careful), id="doc-42", expires=3600)
        await house.quiet(worker)
        await run.signal("decision", "yes")
        await house.quiet(worker)
        assert await run.result(timeout=60) == {"got": "yes"}


async def test_an_expired_run_cannot_be_cancelled_or_retried(house: House, hf: Holdfast) -> None:
    async with house.worker(hf, one(waits)) as worker:
        run = await hf.start(one(waits), id="doc-42", expires=60)
        await house.quiet(worker)
        await house.move(60.2, worker)
        with pytest.raises(RunEnded) as refused:
            await run.cancel("late")
        assert refused.value.status == "expired"
        assert (await run.get()).status == "expired"


async def test_a_run_past_its_expiry_cannot_be_cancelled_before_anybody_closed_it(
    house: House, hf: Holdfast
) -> None:
    run = await hf.start(one(waits), id="doc-42", expires=60)
    house.clock.advance(60)
    with pytest.raises(RunEnded) as refused:
        await run.cancel("late")
    assert refused.value.status == "expired"


async def test_the_blobs_of_a_finished_run_are_freed_before_its_rows(house: House) -> None:
    graph = chain("g", 1, lambda number: LARGE)
    hf = house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42", expires=60)
        await house.quiet(worker)
        ttl_seconds = (await item_of_head(hf, "doc-42"))["ttl"]
        assert (await run.result(timeout=60)) == LARGE
        await house.move(ttl_seconds - 3601 - house.clock.now_ms() / 1000, worker)
        assert len(await blob_keys(hf)) == 1
        await house.move(1.2, worker)
        assert await blob_keys(hf) == []
        assert (await run.get()).status == "finished"
        with pytest.raises(RunNotFound, match="not kept"):
            await run.result(timeout=60)


async def test_the_blob_of_a_signal_that_nobody_took_is_freed_too(house: House) -> None:
    gate = Gate()

    async def blocked(state: Any) -> Any:
        await gate.pass_through()

    hf = house.open()
    async with house.worker(hf, one(blocked)) as worker:
        run = await hf.start(one(blocked), id="doc-42", expires=60)
        await gate.waited_at()
        await run.signal("decision", incompressible(5, 50_000))
        gate.open()
        await house.quiet(worker)
        assert (await run.get()).status == "finished"
        assert len(await blob_keys(hf)) == 1
        ttl_seconds = (await item_of_head(hf, "doc-42"))["ttl"]
        await house.move(ttl_seconds - 3599 - house.clock.now_ms() / 1000, worker)
        assert await blob_keys(hf) == []
