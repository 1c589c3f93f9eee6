"""An inbox is bounded: the row counts what waits in it, and senders are refused when it is full."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest

from holdfast import Graph, Holdfast, PayloadLimits, SignalReceipt, signal
from holdfast.engine.journal import signal_payloads
from holdfast.engine.kernel.deliveries import CONCURRENT_DELIVERIES_MAX
from holdfast.engine.runs import signalling
from holdfast.engine.runs.cancelling import cancel_run
from holdfast.engine.runs.local_workers import NO_WORKERS
from holdfast.errors import InboxFull
from holdfast.model.child import child_signal
from holdfast.records import owner_writes
from holdfast.records.codec import unpack_value
from holdfast.records.head import InboxSize
from holdfast.records.keys import RunKey, inbox_key
from holdfast.storage import Update
from holdfast.storage.operations import Operation, WriteItem
from tests.engine.branching import forked
from tests.engine.staging import Stage, staged
from tests.engine.support import (
    Gate,
    House,
    calls_of,
    item_of_head,
    journal_items,
    kill,
    store_of,
    units_of,
)

KB = 1024
FEW = PayloadLimits(inbox_items_max=3, signal_bytes_max=10 * KB, inbox_bytes_max=20 * KB)
RUN = RunKey("default", "doc-42")


def graph_of(function: Any) -> Graph:
    """Return a graph of one node."""
    graph = Graph("g", dict)
    graph.node(name="node")(function)
    return graph


async def takes_until_the_end(state: Any, ctx: Any) -> Any:
    taken: list[Any] = []
    while not taken or taken[-1] != "end":
        taken.append(await ctx.wait(signal("msg")))
    return {"taken": taken}


async def sleeps(state: Any, ctx: Any) -> Any:
    await ctx.sleep(3600)
    return {"taken": [await ctx.wait(signal("msg")) for _ in range(2)]}


GRAPH = graph_of(takes_until_the_end)


async def counted(hf: Holdfast) -> tuple[int, int]:
    item = await item_of_head(hf, "doc-42")
    return item.get("inbox_items", 0), item.get("inbox_bytes", 0)


# --- full -----------------------------------------------------------------------------------------


async def test_a_signal_that_exceeds_the_items_is_refused_and_writes_nothing(either: House) -> None:
    hf = either.open(limits=FEW)
    run = await hf.start(GRAPH, id="doc-42")
    for number in range(3):
        await run.signal("noise", number)
    before = await item_of_head(hf, "doc-42")
    with pytest.raises(InboxFull, match="inbox_items_max is 3") as refused:
        await run.signal("noise", 3)
    assert refused.value.retryable
    assert (refused.value.size, refused.value.limit) == (4, 3)
    assert await item_of_head(hf, "doc-42") == before
    assert len(await journal_items(hf, "doc-42")) == 3
    assert await counted(hf) == (3, 3)


async def test_a_signal_that_exceeds_the_bytes_is_refused(house: House) -> None:
    hf = house.open(limits=FEW)
    run = await hf.start(GRAPH, id="doc-42")
    await run.signal("noise", "a" * 9 * KB)  # compresses to almost nothing
    await run.signal("noise", "a" * 9 * KB)
    with pytest.raises(InboxFull, match="inbox_bytes_max is 20,480") as refused:
        await run.signal("noise", "a" * 9 * KB)
    assert refused.value.limit == 20 * KB
    await run.signal("noise", "small")
    assert await counted(hf) == (3, 2 * (9 * KB + 3) + 6)


async def test_a_signal_that_lies_there_may_be_sent_again_and_counts_once(house: House) -> None:
    hf = house.open(limits=FEW)
    run = await hf.start(GRAPH, id="doc-42")
    for _ in range(4):
        await run.signal("noise", "same", signal_id="s1")
    assert await counted(hf) == (1, 5)
    for number in range(2):
        await run.signal("noise", number)
    await run.signal("noise", "same", signal_id="s1")  # though the inbox is full
    assert await counted(hf) == (3, 7)


async def test_a_run_makes_room_by_taking_signals(either: House) -> None:
    hf, client = either.open(limits=FEW), either.open(limits=FEW)
    async with either.worker(hf, GRAPH) as worker:
        run = await client.start(GRAPH, id="doc-42")
        for _ in range(4):
            for number in range(3):
                await client.run("doc-42").signal("msg", number)
            await either.move(1, worker)
            assert await counted(hf) == (0, 0)
        await client.run("doc-42").signal("noise", "x")
        await either.move(1, worker)
        assert await counted(hf) == (1, 2)
        await client.run("doc-42").signal("msg", "end")
        await either.move(1, worker)
        assert (await run.result(timeout=60))["taken"] == [0, 1, 2] * 4 + ["end"]


async def test_a_full_inbox_does_not_keep_a_run_from_ending(house: House) -> None:
    hf = house.open(limits=FEW)
    run = await hf.start(GRAPH, id="doc-42")
    for number in range(2):
        await run.signal("noise", number)
    await run.signal("msg", "end")
    with pytest.raises(InboxFull):
        await run.signal("noise", 3)
    async with house.worker(hf, GRAPH) as worker:
        await house.quiet(worker)
    assert await run.result(timeout=60) == {"taken": ["end"]}


async def test_a_run_that_only_sleeps_counts_what_comes_meanwhile(house: House) -> None:
    hf = house.open(limits=FEW)
    graph = graph_of(sleeps)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        for number in range(3):
            await run.signal("msg", number)
        with pytest.raises(InboxFull):
            await run.signal("msg", 3)
        await house.move(3600, worker)
        assert await run.result(timeout=60) == {"taken": [0, 1]}


async def test_how_a_child_ended_is_told_to_a_run_with_a_full_inbox(house: House) -> None:
    child = Graph("child", dict)
    child.node(name="node")(takes_until_the_end)

    async def parent(state: Any, ctx: Any) -> Any:
        return await ctx.run(child, {}, id="child")

    hf = house.open(limits=FEW)
    async with house.worker(hf, graph_of(parent), child) as worker:
        run = await hf.start(graph_of(parent), id="doc-42")
        await house.quiet(worker)
        for number in range(3):
            await run.signal("noise", number)
        await hf.run("child").signal("msg", "end")
        await house.patiently_quiet(worker)
        assert await run.result(timeout=60) == {"taken": ["end"]}


async def test_senders_of_one_process_overshoot_by_few(house: House) -> None:
    hf = house.open(limits=FEW)
    await hf.start(GRAPH, id="doc-42")
    sent = await asyncio.gather(
        *(hf.run("doc-42").signal("noise", 0) for _ in range(100)), return_exceptions=True
    )
    accepted = sum(isinstance(each, SignalReceipt) for each in sent)
    assert {type(each) for each in sent} == {SignalReceipt, InboxFull}
    assert 3 <= accepted <= 2 + CONCURRENT_DELIVERIES_MAX
    assert await counted(hf) == (accepted, accepted)
    assert not hf._kernel.delivery_limiter._semaphores


# --- counting -------------------------------------------------------------------------------------


async def test_a_row_without_counters_is_counted_when_the_run_pauses(house: House) -> None:
    hf = house.open(limits=FEW)
    async with house.worker(hf, GRAPH) as worker:
        run = await hf.start(GRAPH, id="doc-42")
        for number in range(2):
            await run.signal("noise", number)
        await (
            store_of(hf)
            .records("head")
            .write(Update(key=RUN.head, remove=("inbox_items", "inbox_bytes")))
        )
        await run.signal("msg", 1)  # the run is woken, takes it, and pauses again
        await house.quiet(worker)
        assert await counted(hf) == (2, 2)


def pause_as_earlier_releases(patch: pytest.MonkeyPatch) -> None:
    """Let owners pause runs without a word about the counters."""
    counters = ("inbox_items", "inbox_bytes", "inbox_epoch")
    paused = owner_writes.pause_write

    def unaware(*args: Any, **options: Any) -> Update:
        write = paused(*args, **options)
        return msgspec.structs.replace(
            write,
            set={name: value for name, value in write.set.items() if name not in counters},
            remove=tuple(name for name in write.remove if name not in counters),
        )

    patch.setattr(owner_writes, "pause_write", unaware)


async def test_what_an_owner_of_an_earlier_release_took_does_not_fill_an_inbox(
    either: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf, client = either.open(limits=FEW), either.open(limits=FEW)
    pause_as_earlier_releases(monkeypatch)
    async with either.worker(hf, GRAPH) as worker:
        run = await client.start(GRAPH, id="doc-42")
        for number in range(8):
            await client.run("doc-42").signal("msg", number)
            await either.move(1, worker)
        for number in range(2):
            await client.run("doc-42").signal("noise", number)
        await either.move(1, worker)
        monkeypatch.undo()
        await client.run("doc-42").signal("msg", "a")
        await either.move(1, worker)
        assert (await counted(hf))[0] == 2  # what waits, as an owner of this release says
        await client.run("doc-42").signal("noise", 2)
        with pytest.raises(InboxFull):
            await client.run("doc-42").signal("msg", "b")
        await cancel_run(hf._kernel, RUN, reason="done")
        assert (await run.get()).status == "cancelled"


async def test_senders_count_anew_where_an_owner_of_an_earlier_release_paused(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = graph_of(sleeps)
    hf = house.open(limits=FEW)
    run = await hf.start(graph, id="doc-42")
    for number in range(3):
        await run.signal("msg", number)
    pause_as_earlier_releases(monkeypatch)
    async with house.worker(hf, graph) as worker:
        await house.quiet(worker)
        assert await counted(hf) == (3, 3)
        await asyncio.gather(*(run.signal("noise", number) for number in range(2)))
        assert await counted(hf) == (2, 2)
        await run.signal("noise", 2)
        with pytest.raises(InboxFull):
            await run.signal("noise", 3)
        await house.move(3601, worker)
        assert (await run.result(timeout=60))["taken"] == [0, 1]


async def test_a_signal_whose_sender_died_is_counted_when_the_run_pauses(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = house.open(limits=FEW)
    run = await hf.start(GRAPH, id="doc-42")

    async def dies(*args: Any, **kwargs: Any) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(signalling, "_notify_run", dies)
        with pytest.raises(asyncio.CancelledError):
            await run.signal("noise", "x", signal_id="s1")
    await run.signal("noise", "x", signal_id="s1")
    assert await counted(hf) == (0, 0)
    async with house.worker(hf, GRAPH) as worker:
        await house.quiet(worker)
        assert await counted(hf) == (1, 2)


async def test_a_large_payload_counts_as_what_it_has_before_compression(house: House) -> None:
    hf = house.open()
    async with house.worker(hf, GRAPH) as worker:
        run = await hf.start(GRAPH, id="doc-42")
        payload = [str(number) for number in range(50_000)]  # in a blob, for all that
        await run.signal("noise", payload)
        _, sent = await counted(hf)
        assert sent > 250_000
        await house.quiet(worker)
        assert await counted(hf) == (1, sent)


async def test_a_run_that_never_pauses_says_what_it_took(house: House) -> None:
    """Where one branch is busy for days, another takes signals, and the run does not pause."""
    gate, taken = Gate(), [asyncio.Event() for _ in range(12)]

    async def busy(state: Any) -> None:
        await gate.pass_through()

    async def listens(state: Any, ctx: Any) -> None:
        for _ in taken:
            taken[await ctx.wait(signal("msg"))].set()

    graph = forked(busy, listens)
    hf = house.open(limits=FEW)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await gate.waited_at()
        for number, event in enumerate(taken):
            await run.signal("msg", number)
            async with asyncio.timeout(60):
                await event.wait()
        assert (await counted(hf))[0] <= 3
        gate.open()
        await house.quiet(worker)
        await run.result(timeout=60)


async def test_an_owner_knows_what_those_before_it_took(house: House) -> None:
    """Each of them took less than half of what the inbox holds, and was lost before it paused."""
    gate, taken = Gate(), [asyncio.Event() for _ in range(4)]

    async def busy(state: Any) -> None:
        await gate.pass_through()

    async def listens(state: Any, ctx: Any) -> None:
        for _ in taken:
            taken[await ctx.wait(signal("msg"))].set()

    graph = forked(busy, listens)
    hf = house.open(limits=FEW)
    run = await hf.start(graph, id="doc-42")
    async with asyncio.timeout(60):
        for number, event in enumerate(taken):
            worker = hf.worker([graph])
            await worker.start()
            while gate.entered == number:  # the one before it is lost once its lease has lapsed
                house.clock.advance(5)
                await item_of_head(hf, "doc-42")
            await run.signal("msg", number)
            while not event.is_set():
                house.clock.advance(0.25)
                await item_of_head(hf, "doc-42")
            if event is not taken[-1]:
                kill(worker)
        gate.open()
        while worker.drivers._tasks:
            await asyncio.wait(worker.drivers._tasks.values())
        await worker.stop()
    await run.result(timeout=60)


def lose_what_it_says(stage: Stage, *, carried_out: bool) -> asyncio.Event:
    """Lose an answer to an owner that says what it took; return what tells when that happened.

    What it says first is refused: it has seen the inbox, and not how many signals the row counts.
    """
    lost, said = asyncio.Event(), itertools.count()

    def says_what_it_took(operation: Operation) -> bool:
        write = operation.write if isinstance(operation, WriteItem) else None
        if not isinstance(write, Update) or "inbox_items" not in write.remove or not next(said):
            return False
        lost.set()
        return True

    stage.lose(says_what_it_took, carried_out=carried_out)
    return lost


async def test_an_owner_that_says_what_it_took_does_not_overlook_the_end_of_a_child(
    house: House,
) -> None:
    """It came after that was carried out, and before its answer was found: no counter tells."""
    gate, taken = Gate(), [asyncio.Event() for _ in range(3)]

    async def busy(state: Any) -> None:
        await gate.pass_through()

    async def listens(state: Any, ctx: Any) -> None:
        for _ in taken:
            taken[await ctx.wait(signal("msg"))].set()

    graph = forked(busy, listens)
    hf, stage = staged(house, limits=FEW)
    client = house.open(limits=FEW)
    lost = lose_what_it_says(stage, carried_out=True)
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, id="doc-42")
        await gate.waited_at()
        held = worker.drivers._drivers[RUN].claimed
        async with asyncio.timeout(60):
            for number in range(2):
                await client.run("doc-42").signal("msg", number)
            while not lost.is_set():
                house.clock.advance(0.005)
                await item_of_head(client, "doc-42")
            end: dict[str, Any] = {"name": child_signal("child"), "id": "end", "payload": {}}
            await signalling.send_signal(client._kernel, NO_WORKERS, RUN, **end, ends_child=True)
            while held.inbox._taken_since_update.items:
                house.clock.advance(0.005)
                await item_of_head(client, "doc-42")
        assert held.head.signals < (await item_of_head(client, "doc-42"))["signals"]
        gate.open()
        await client.run("doc-42").signal("msg", 2)
        await house.quiet(worker)


async def test_what_an_owner_took_is_said_again_where_it_was_not_carried_out(house: House) -> None:
    """Its answer was lost, and a signal came before it was sent again: it must be refused then."""
    gate, taken = Gate(), [asyncio.Event() for _ in range(6)]

    async def busy(state: Any) -> None:
        await gate.pass_through()

    async def listens(state: Any, ctx: Any) -> None:
        for _ in taken:
            taken[await ctx.wait(signal("msg"))].set()

    graph = forked(busy, listens)
    hf, stage = staged(house, limits=FEW)
    client = house.open(limits=FEW)
    lost = lose_what_it_says(stage, carried_out=False)

    async def until(event: asyncio.Event) -> None:
        async with asyncio.timeout(60):
            while not event.is_set():
                house.clock.advance(0.005)
                await item_of_head(client, "doc-42")

    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await gate.waited_at()
        for number in range(2):
            await client.run("doc-42").signal("msg", number)
            await until(taken[number])
        await until(lost)
        for number in range(2, 6):
            await client.run("doc-42").signal("msg", number)
            await until(taken[number])
        gate.open()
        await house.quiet(worker)
        await run.result(timeout=60)


# --- unpacking ------------------------------------------------------------------------------------


async def test_only_the_signal_that_is_taken_is_unpacked(
    either: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked: list[Any] = []

    def watched(data: bytes, bytes_max: int) -> Any:
        unpacked.append(unpack_value(data, bytes_max))
        return unpacked[-1]

    monkeypatch.setattr(signal_payloads, "unpack_value", watched)
    hf = either.open()
    run = await hf.start(GRAPH, id="doc-42")
    for number in range(5):
        await run.signal("noise", "a" * 100_000, signal_id=f"noise-{number}")
    await run.signal("msg", "first", signal_id="first")
    async with either.worker(hf, GRAPH) as worker:
        await either.quiet(worker)
        await run.signal("msg", "end", signal_id="end")
        await either.move(1, worker)
    assert await run.result(timeout=60) == {"taken": ["first", "end"]}
    assert unpacked == ["first", "end"]


async def test_to_cancel_reads_nothing_of_the_inbox(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = house.open()
    run = await hf.start(GRAPH, id="doc-42")
    generation = (await item_of_head(hf, "doc-42"))["generation"]
    for number in range(5):
        # Not only is it not unpacked: whatever it is, nobody looks at it.
        await run.signal("noise", "x", signal_id=str(number))
        key = inbox_key(RUN, generation, "noise", str(number))
        spoilt = {"data": b"\x07damaged", "accepted_ms": "never"}
        await store_of(hf).records("test").write(Update(key=key, set=spoilt))
    before = calls_of(hf, "inbox")
    await run.cancel(reason="flood")
    assert (await run.get()).status == "cancelled"
    assert calls_of(hf, "inbox") == before
    assert (await hf.list()).runs[0].id == "doc-42"


async def test_signals_sent_again_to_a_run_that_ended_read_it_two_at_a_time(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reading takes as much memory as the run."""
    hf, load, at_once, most = house.open(), signalling.load_journal, 0, 0

    async def watched(*args: Any) -> Any:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        try:
            return await load(*args)
        finally:
            at_once -= 1

    run = await hf.start(GRAPH, id="doc-42")
    await run.signal("msg", "end", signal_id="end")
    async with house.worker(hf, GRAPH) as worker:
        await house.quiet(worker)
        await run.result(timeout=60)
    monkeypatch.setattr(signalling, "load_journal", watched)
    again = [run.signal("msg", "end", signal_id="end") for _ in range(CONCURRENT_DELIVERIES_MAX)]
    await asyncio.gather(*again)
    assert most == 2


async def test_branches_that_relieve_an_inbox_at_once_write_its_size_once(house: House) -> None:
    writes: list[int] = []
    hf = house.open(limits=FEW)

    async def relieves(state: Any, ctx: Any) -> Any:
        inbox = ctx._visit.claimed.inbox
        inbox._taken_since_update = InboxSize(FEW.inbox_items_max, 0)
        before = units_of(hf, "head").writes
        await asyncio.gather(inbox.update_size(), inbox.update_size())
        writes.append(round(units_of(hf, "head").writes - before))

    graph = graph_of(relieves)
    async with house.worker(hf, graph):
        await (await hf.start(graph, id="doc-42")).result(timeout=60)
    assert writes == [1]
