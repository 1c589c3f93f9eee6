"""Signals near the expiry of a run: sent again, refused and taken back; and what follows an end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Graph, Holdfast, signal
from holdfast.engine.runs.local_workers import NO_WORKERS
from holdfast.engine.runs.signalling import send_signal
from holdfast.errors import AlreadyExists, OutcomeUnknown, RunClosing, RunEnded
from holdfast.model.child import child_signal
from holdfast.records.keys import is_inbox
from holdfast.records.times import utc_datetime
from holdfast.storage import Put, Update
from holdfast.storage.operations import GetItem, Operation, WriteItem, WriteItems
from tests.engine.families import PARENT, starting
from tests.engine.staging import staged
from tests.engine.support import (
    Gate,
    House,
    StepClock,
    blob_keys,
    calls_of,
    chain,
    incompressible,
    item_of_head,
    journal_items,
    kill,
    reached,
    store_of,
    tenant_key,
)

EXPIRES = 3600
LARGE = incompressible(9, 50_000)


async def waits(state: Any, ctx: Any) -> Any:
    return {"got": await ctx.wait(signal("decision"))}


GRAPH = Graph("g", dict)
GRAPH.node(name="node")(waits)


async def waiting(house: House, hf: Holdfast, graph: Graph = GRAPH) -> None:
    """Start a run, and let it come to its wait."""
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, id="doc-42", expires=EXPIRES)
        await house.quiet(worker)


def is_signal(operation: Operation) -> bool:
    """Return whether an operation puts a signal into an inbox."""
    if not isinstance(operation, WriteItem) or not isinstance(operation.write, Put):
        return False
    return "#IN#" in operation.write.key.sk


async def inbox_of(hf: Holdfast, id: str) -> list[str]:
    return [item["SK"] for item in await journal_items(hf, id) if is_inbox(item["SK"])]


# --- sent again -----------------------------------------------------------------------------------


async def test_a_signal_accepted_in_time_and_sent_again_past_the_expiry_is_accepted(
    either: House,
) -> None:
    hf, client = either.open(), either.open()
    await waiting(either, hf)
    await client.run("doc-42").signal("decision", 42, signal_id="mail-7")
    either.clock.advance(EXPIRES)
    await client.run("doc-42").signal("decision", 42, signal_id="mail-7")
    await hf.run("doc-42").signal("decision", 42, signal_id="mail-7")  # another process sends it
    with pytest.raises(AlreadyExists):
        await client.run("doc-42").signal("decision", 43, signal_id="mail-7")
    with pytest.raises(RunEnded):
        await client.run("doc-42").signal("decision", 42, signal_id="mail-8")
    async with either.worker(hf, GRAPH) as worker:
        await either.quiet(worker)
    assert await hf.run("doc-42").result(timeout=60) == {"got": 42}
    await client.run("doc-42").signal("decision", 42, signal_id="mail-7")


async def test_a_signal_whose_sender_died_is_sent_again_past_the_expiry(house: House) -> None:
    """It lies in the inbox, and its sender was not told so: it counts if the run waits for it."""
    hf, client = house.open(), house.open()
    sender, stage = staged(house)
    await waiting(house, hf)
    put = stage.hold(is_signal, side="after")
    sending = asyncio.ensure_future(sender.run("doc-42").signal("decision", 1, signal_id="mail-7"))
    await put.reached()
    sending.cancel()
    house.clock.advance(EXPIRES)
    await client.run("doc-42").signal("decision", 1, signal_id="mail-7")
    async with house.worker(hf, GRAPH) as worker:
        await house.quiet(worker)
    assert await hf.run("doc-42").result(timeout=60) == {"got": 1}


@pytest.mark.parametrize("again", [True, False], ids=["sent again", "new"])
async def test_a_sender_that_read_the_row_before_the_run_was_extended_is_not_refused(
    house: House, again: bool
) -> None:
    hf = house.open()
    sender, stage = staged(house)
    await waiting(house, hf)
    read = stage.hold(
        lambda asked: isinstance(asked, GetItem) and asked.key.sk == "HEAD", side="after"
    )
    sending = asyncio.ensure_future(sender.run("doc-42").signal("decision", 1, signal_id="mail-7"))
    await read.reached()
    await hf.run("doc-42").extend(2 * EXPIRES)
    house.clock.advance(EXPIRES + 1)
    if again:
        await hf.run("doc-42").signal("decision", 1, signal_id="mail-7")
    read.release()
    await sending
    async with house.worker(hf, GRAPH) as worker:
        await house.quiet(worker)
    assert await hf.run("doc-42").result(timeout=60) == {"got": 1}


async def test_while_a_run_is_closed_only_what_it_has_taken_is_accepted_again(
    house: House,
) -> None:
    gate = Gate()

    async def goes_on(state: Any, ctx: Any) -> Any:
        await gate.pass_through()

    graph = chain("g", 2, lambda number: {}, node0=waits, node1=goes_on)
    hf, client = house.open(), house.open()
    await waiting(house, hf, graph)
    house.clock.advance(EXPIRES - 1)
    await client.run("doc-42").signal("decision", 1, signal_id="taken")
    await client.run("doc-42").signal("decision", 2, signal_id="left")
    house.clock.advance(1)
    async with house.worker(hf, graph) as worker:
        await gate.waited_at()
        assert (await client.run("doc-42").get()).status == "closing"
        await client.run("doc-42").signal("decision", 1, signal_id="taken")
        with pytest.raises(RunClosing, match="with the same signal_id") as unknown:
            await client.run("doc-42").signal("decision", 2, signal_id="left")
        assert isinstance(unknown.value, OutcomeUnknown)
        assert unknown.value.retryable
        gate.open()
        await house.quiet(worker)
    # Asked again, as it says, there is an answer.
    await client.run("doc-42").signal("decision", 1, signal_id="taken")
    with pytest.raises(RunEnded):
        await client.run("doc-42").signal("decision", 2, signal_id="left")


async def test_a_run_that_is_freed_while_a_signal_is_sent_again_refuses_it(house: House) -> None:
    hf = house.open()
    sender, stage = staged(house)
    await waiting(house, hf)
    await sender.run("doc-42").signal("another", LARGE, signal_id="mail-7")
    house.clock.advance(EXPIRES)
    looked = stage.hold(
        lambda asked: isinstance(asked, GetItem) and "#IN#" in asked.key.sk, side="after"
    )
    sending = asyncio.ensure_future(
        sender.run("doc-42").signal("another", LARGE, signal_id="mail-7")
    )
    await looked.reached()
    async with house.worker(hf, GRAPH) as worker:
        await house.quiet(worker)
        assert (await hf.run("doc-42").get()).status == "expired"
        looked.release()
        with pytest.raises(RunEnded) as refused:
            await sending
    assert refused.value.status == "expired"


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", ["small", LARGE], ids=["small", "large"])
async def test_a_refused_signal_leaves_nothing_in_a_run_that_was_freed(
    either: House, payload: Any
) -> None:
    """Its sender read the row in time, and its item came when the run had been freed."""
    hf = either.open()
    sender, stage = staged(either)
    await waiting(either, hf)
    put = stage.hold(is_signal)
    sending = asyncio.ensure_future(sender.run("doc-42").signal("decision", payload))
    await put.reached()
    either.clock.advance(EXPIRES)
    async with either.worker(hf, GRAPH) as worker:
        await either.quiet(worker)
        assert (await hf.run("doc-42").get()).status == "expired"
        put.release()
        with pytest.raises(RunEnded) as refused:
            await sending
    assert refused.value.status == "expired"
    assert await inbox_of(hf, "doc-42") == []
    assert await blob_keys(hf) == []


@pytest.mark.parametrize("payload", ["small", LARGE], ids=["small", "large"])
async def test_a_signal_that_is_sent_again_and_refused_leaves_nothing_in_a_run_that_was_freed(
    house: House, payload: Any
) -> None:
    """It lay there when it was sent again, and the network carried its first sending out late."""
    hf = house.open()
    sender, stage = staged(house)
    await waiting(house, hf)
    await sender.run("doc-42").signal("another", payload, signal_id="mail-7")
    sent: list[WriteItem] = []

    def is_sent_again(operation: Operation) -> bool:
        if is_signal(operation) and isinstance(operation, WriteItem):
            sent.append(operation)
        return is_signal(operation)

    stage.lose(is_sent_again, carried_out=False)
    told = stage.hold(lambda asked: isinstance(asked, WriteItem) and asked.write.key.sk == "HEAD")
    sending = asyncio.ensure_future(
        sender.run("doc-42").signal("another", payload, signal_id="mail-7")
    )
    await house.clock.asleep(1)
    house.clock.advance(1)
    await told.reached()  # so it was sent once more, and refused
    house.clock.advance(EXPIRES)
    async with house.worker(hf, GRAPH) as worker:
        await house.quiet(worker)
        assert (await hf.run("doc-42").get()).status == "expired"
        assert await inbox_of(hf, "doc-42") == []
        await store_of(hf).table.write(sent[0].write)
        told.release()
        with pytest.raises(RunEnded) as refused:
            await sending
    assert refused.value.status == "expired"
    assert await inbox_of(hf, "doc-42") == []
    assert await blob_keys(hf) == []


async def test_a_large_signal_that_is_sent_again_while_its_run_is_freed_leaves_no_blob(
    house: House,
) -> None:
    """A clock is behind. The payload comes when the blobs were freed, and the inbox was not."""
    behind = House(house.url, StepClock())
    sender, stage = staged(behind)
    freeing, freed = staged(house)
    await waiting(house, freeing)
    await sender.run("doc-42").signal("another", LARGE, signal_id="mail-7")
    row = stage.hold(
        lambda asked: isinstance(asked, GetItem) and asked.key.sk == "HEAD", side="after"
    )
    sending = asyncio.ensure_future(
        sender.run("doc-42").signal("another", LARGE, signal_id="mail-7")
    )
    await row.reached()
    house.clock.advance(EXPIRES)
    inbox = freed.hold(lambda asked: isinstance(asked, WriteItems))
    async with house.worker(freeing, GRAPH) as worker:
        await inbox.reached()
        assert await blob_keys(freeing) == []
        row.release()
        with pytest.raises(RunEnded) as refused:
            await sending
        inbox.release()
        await house.quiet(worker)
    await behind.close()
    assert refused.value.status == "expired"
    assert await inbox_of(freeing, "doc-42") == []
    assert await blob_keys(freeing) == []


async def test_a_payload_that_is_kept_too_late_leaves_no_blob(house: House) -> None:
    """The run expires while the payload of its signal is on its way into a blob."""
    hf, client = house.open(), house.open()
    await waiting(house, hf)
    blobs = client._store.blobs
    put = type(blobs).put

    async def slow(*arguments: Any, **options: Any) -> Any:
        house.clock.advance(EXPIRES)
        return await put(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(blobs), "put", slow)
        with pytest.raises(RunEnded):
            await client.run("doc-42").signal("decision", LARGE)
    assert await blob_keys(hf) == []
    assert await inbox_of(hf, "doc-42") == []


async def test_the_end_of_a_child_leaves_nothing_in_a_parent_that_was_freed(
    house: House,
) -> None:
    """A worker ends the child, and stalls; meanwhile its parent expires and is freed."""
    gate = Gate()
    inside = Graph("inside", dict)

    @inside.node
    async def stands(state: Any) -> Any:
        await gate.pass_through()

    async def node(state: Any, ctx: Any) -> Any:
        child = await ctx.start(inside, {}, id="child")
        return {"child": await child.result()}

    graph = starting(node)
    hf = house.open()
    inner, stage = staged(house)
    told = stage.hold(is_signal)
    async with house.worker(hf, graph) as worker, house.worker(inner, inside) as other:
        await hf.start(graph, id=PARENT, expires=EXPIRES)
        await house.quiet(worker, other)
        house.clock.advance(1)  # the other one looks for work
        await gate.waited_at()
        gate.open()
        await told.reached()
        house.clock.advance(EXPIRES)
        await reached(hf, PARENT, "expired")
        told.release()
        await house.patiently_quiet(worker, other)
    assert await inbox_of(hf, PARENT) == []


async def test_an_end_of_a_child_that_is_told_twice_leaves_no_blob(house: House) -> None:
    """The one who told it first died before the parent's row; the second has less to tell."""
    gate = Gate()

    async def goes_on(state: Any) -> Any:
        await gate.pass_through()

    graph = chain("g", 1, lambda number: {}, node0=goes_on)
    hf = house.open()
    sender, stage = staged(house)
    end: dict[str, Any] = {"name": child_signal("child"), "id": "end", "ends_child": True}
    put = stage.hold(is_signal, side="after")
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, id="doc-42", expires=EXPIRES)
        await gate.waited_at()  # its owner has read the inbox
        first = send_signal(sender._kernel, NO_WORKERS, tenant_key("doc-42"), payload=LARGE, **end)
        telling = asyncio.ensure_future(first)
        await put.reached()
        telling.cancel()
        await send_signal(hf._kernel, NO_WORKERS, tenant_key("doc-42"), payload="small", **end)
        assert len(await blob_keys(hf)) == 1
        gate.open()
        await house.quiet(worker)
        row = await item_of_head(hf, "doc-42")
        assert row["status"] == "finished"
        await house.move(row["ttl"] - house.clock.now_ms() / 1000 - 1, worker)
    assert await blob_keys(hf) == []


# --- extended meanwhile ---------------------------------------------------------------------------


async def test_an_extension_reads_the_inbox_once_where_the_run_goes_on_meanwhile(
    house: House,
) -> None:
    """Only a run that waits has to be woken; all that came since lasts by its sender's care."""
    gate = Gate()

    async def goes_on(state: Any) -> Any:
        await gate.pass_through()

    graph = chain("g", 2, lambda number: {}, node0=waits, node1=goes_on)
    hf, client = house.open(), house.open()
    settle = client._kernel.resolve_write

    async def overtaken(table: Any, write: Any, **options: Any) -> Any:
        if "expires_ms" in getattr(write, "set", ()) and not gate.entered:
            await hf.run("doc-42").signal("decision", 1)
            await gate.waited_at()
        return await settle(table, write, **options)

    client._kernel.resolve_write = overtaken  # type: ignore[method-assign]
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, id="doc-42", expires=EXPIRES)
        await house.quiet(worker)
        await client.run("doc-42").extend(2 * EXPIRES)
        assert calls_of(client, "inbox") == {("inbox", "query"): 1}
        row = await hf.run("doc-42").get()
        assert row.expires_at == utc_datetime(house.clock.now_ms() + 2 * EXPIRES * 1000)
        gate.open()
        await house.quiet(worker)


# --- behind an end --------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["finished", "failed"])
async def test_a_run_that_is_taken_over_when_its_journal_has_ended_gets_no_fence(
    house: House, ending: str
) -> None:
    async def node(state: Any) -> Any:
        if ending == "failed" and not state.get("again"):
            raise ValueError("no")
        return {"done": True}

    graph = Graph("g", dict)
    graph.node(name="node")(node)
    hf = house.open()
    first, stage = staged(house)

    def ends(operation: Operation) -> bool:
        if not isinstance(operation, WriteItem) or not isinstance(operation.write, Update):
            return False
        return operation.write.set.get("status") == ending

    row = stage.hold(ends)
    lost = first.worker([graph])
    await lost.start()
    run = await first.start(graph, id="doc-42")
    await row.reached()
    kill(lost)
    async with hf.worker([graph]) as worker:
        for seconds in (10,) * 8:
            await house.move(seconds, worker)
        assert worker.counts["taken over"] == 1
        assert (await hf.run("doc-42").get()).status == ending
        kinds = [entry.kind for entry in (await run.history()).entries]
        assert kinds[-1] == ending
        assert "fence" not in kinds
        if ending == "failed":
            # A retry opens the run again: now the fence keeps the lost worker from writing.
            await hf.run("doc-42").retry()
            await house.move(1, worker)
            kinds = [entry.kind for entry in (await run.history()).entries]
            assert kinds[kinds.index("failed") + 1 :][:2] == ["fence", "reroute"]
