"""More time for a run that failed: after that it can be retried."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Graph, Holdfast, days, signal
from holdfast.engine.execution import run_ending
from holdfast.engine.runs import retrying
from holdfast.errors import ExpiryNotLater, RunEnded
from holdfast.storage import Delete, Key
from tests.engine.support import (
    Gate,
    House,
    blob_keys,
    chain,
    incompressible,
    item_of_head,
    journal_items,
    store_of,
)

HOUR = 3600
DAY = 24 * HOUR


class Bank:
    """Makes a node fail until it is open."""

    def __init__(self) -> None:
        self.open = False
        self.calls = 0

    def pay(self) -> str:
        self.calls += 1
        return "paid"

    async def node(self, state: Any, ctx: Any) -> Any:
        receipt = await ctx.call(self.pay)
        if not self.open:
            raise OSError("the bank is closed")
        return {"receipt": receipt}


def text(number: int) -> dict[str, Any]:
    return {f"step{number}": f"text {number}"}


DONE = {"step0": "text 0", "receipt": "paid", "step2": "text 2"}


async def failed(house: House, hf: Holdfast, graph: Graph, **input: Any) -> None:
    """Let a run fail within its hour."""
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, input, id="doc-42", expires=HOUR)
        await house.quiet(worker)
        assert (await run.get()).status == "failed"


@pytest.mark.parametrize("after", [HOUR - 1, HOUR, 46 * HOUR])
async def test_a_failed_run_is_extended_and_retried(either: House, after: float) -> None:
    """Also after its expiry, as long as its journal is there; its calls are not made again."""
    bank = Bank()
    graph = chain("g", 3, text, node1=bank.node)
    hf = either.open()
    await failed(either, hf, graph)
    run = hf.run("doc-42", graph=graph)
    either.clock.advance(after)
    if after >= HOUR:
        with pytest.raises(RunEnded, match="extend it first, then retry it") as refused:
            await run.retry()
        assert refused.value.status == "expired"
    before = await item_of_head(hf, "doc-42")
    await run.extend(days(30))
    row = await run.get()
    assert (row.status, row.failure is None) == ("failed", False)
    assert row.expires_at.timestamp() * 1000 == either.clock.now_ms() + 30 * DAY * 1000
    items = [*await journal_items(hf, "doc-42"), await item_of_head(hf, "doc-42")]
    either.clock.advance(before["ttl"] + 1 - either.clock.now_ms() / 1000)
    for item in items:
        if item["ttl"] <= before["ttl"]:  # they may be gone by now
            await store_of(hf).table.write(Delete(Key(item["PK"], item["SK"])))
    bank.open = True
    await run.retry()
    async with either.worker(hf, graph) as worker:
        await either.quiet(worker)
        assert await run.result(timeout=60) == DONE
    assert bank.calls == 1


async def test_an_approval_that_failed_its_run_can_be_asked_for_again(house: House) -> None:
    """The node of a closing run failed: more time opens the run again for signals."""

    async def asks(state: Any, ctx: Any) -> Any:
        return {"got": await ctx.wait(signal(f"decision-{ctx.visit}"), max_wait=days(1))}

    graph = chain("g", 1, text, node0=asks)
    hf = house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42", expires=HOUR)
        await house.quiet(worker)
        await house.move(HOUR, worker)
        assert (await run.get()).status == "failed"
        await run.extend(days(5))
        await run.retry(from_node="node0")
        await house.quiet(worker)
        assert (await run.get()).status == "waiting"
        await run.signal("decision-1", "yes")
        await house.quiet(worker)
        assert await run.result(timeout=60) == {"got": "yes"}


async def test_its_blobs_last_and_go_when_the_new_time_is_over(house: House, hf: Holdfast) -> None:
    bank = Bank()
    graph = chain("g", 2, lambda number: {"scan": incompressible(1, 50_000)}, node1=bank.node)
    await failed(house, hf, graph)
    old_ttl = (await item_of_head(hf, "doc-42"))["ttl"]
    await hf.run("doc-42").extend(days(30))
    ttl = (await item_of_head(hf, "doc-42"))["ttl"]
    async with house.worker(hf, graph) as worker:
        await house.move(old_ttl - HOUR + 1 - house.clock.now_ms() / 1000, worker)
        assert len(await blob_keys(hf)) > 0
        assert not (await item_of_head(hf, "doc-42")).get("freed")
        await house.move(ttl - HOUR + 1 - house.clock.now_ms() / 1000, worker)
        assert await blob_keys(hf) == []
        assert (await item_of_head(hf, "doc-42"))["freed"]
    with pytest.raises(RunEnded, match="its journal is deleted or soon will be"):
        await hf.run("doc-42").extend(days(60))


async def test_a_snapshot_that_is_the_first_blob_of_a_failed_run_goes_too(
    house: House, hf: Holdfast
) -> None:
    bank = Bank()
    graph = chain("g", 9, lambda n: {f"s{n}": incompressible(n, 3_000)}, node8=bank.node)
    await failed(house, hf, graph)
    assert await blob_keys(hf) == []
    assert "GSI1PK" not in await item_of_head(hf, "doc-42")
    await hf.run("doc-42").extend(days(30))
    assert len(await blob_keys(hf)) == 1
    ttl = (await item_of_head(hf, "doc-42"))["ttl"]
    async with house.worker(hf, graph) as worker:
        await house.move(ttl - HOUR + 1 - house.clock.now_ms() / 1000, worker)
    assert await blob_keys(hf) == []


async def test_a_failed_run_is_not_extended_when_its_data_is_about_to_go(
    house: House, hf: Holdfast
) -> None:
    graph = chain("g", 2, text, node1=Bank().node)
    await failed(house, hf, graph)
    house.clock.advance(47 * HOUR)
    before = await item_of_head(hf, "doc-42"), await journal_items(hf, "doc-42")
    with pytest.raises(RunEnded, match="its journal is deleted or soon will be") as refused:
        await hf.run("doc-42").extend(days(5))
    assert refused.value.status == "failed"
    assert (await item_of_head(hf, "doc-42"), await journal_items(hf, "doc-42")) == before


async def test_a_worker_that_is_about_to_free_it_looks_again(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It claimed the run to settle what the run owes, and that took until the free time."""
    bank, gate = Bank(), Gate()
    graph = chain("g", 2, lambda number: {"scan": incompressible(1, 50_000)}, node1=bank.node)
    await failed(house, hf, graph)
    old_ttl = (await item_of_head(hf, "doc-42"))["ttl"]
    settle = run_ending.RunEnding._settle_obligations

    async def slowly(self: Any) -> None:
        await gate.pass_through()
        await settle(self)

    monkeypatch.setattr(run_ending.RunEnding, "_settle_obligations", slowly)
    clock = house.clock
    async with house.worker(hf, graph) as worker:
        clock.advance(old_ttl - HOUR + 1 - clock.now_ms() / 1000)
        await gate.waited_at()
        # The clock of the process that extends it is behind.
        clock.advance(-2 * HOUR)
        await hf.run("doc-42").extend(days(30))
        clock.advance(2 * HOUR)
        gate.open()
        await house.quiet(worker)
        assert not (await item_of_head(hf, "doc-42")).get("freed")
        bank.open = True
        await hf.run("doc-42").retry()
        await house.quiet(worker)
        assert (await hf.run("doc-42").get()).status == "finished"


async def test_extensions_and_retries_at_once_lose_nothing(house: House) -> None:
    bank = Bank()
    graph = chain("g", 3, text, node1=bank.node)
    hf = house.open()
    await failed(house, hf, graph)
    clients = [house.open().run("doc-42") for _ in range(3)]
    bank.open = True
    results = await asyncio.gather(
        clients[0].extend(days(5)),
        clients[1].extend(days(9)),
        clients[2].retry(),
        return_exceptions=True,
    )
    assert results[1:] == [None, None]
    assert results[0] is None or isinstance(results[0], ExpiryNotLater)
    async with house.worker(hf, graph) as worker:
        await house.quiet(worker)
        assert await hf.run("doc-42").result(timeout=60) == DONE
    row = await hf.run("doc-42").get()
    assert row.expires_at.timestamp() * 1000 == house.clock.now_ms() + 9 * DAY * 1000


async def test_a_retry_that_meets_an_extension_tries_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = Bank()
    graph = chain("g", 3, text, node1=bank.node)
    hf, client = house.open(), house.open()
    await failed(house, hf, graph)
    update, extensions = retrying.update_head, [days(9), days(5)]

    async def meanwhile(*arguments: Any) -> Any:
        if extensions:
            await client.run("doc-42").extend(extensions.pop())
        return await update(*arguments)

    monkeypatch.setattr(retrying, "update_head", meanwhile)
    bank.open = True
    await hf.run("doc-42").retry()
    async with house.worker(hf, graph) as worker:
        await house.quiet(worker)
        assert await hf.run("doc-42").result(timeout=60) == DONE


async def test_a_quarantined_run_is_extended_too(house: House) -> None:
    graph = chain("g", 2, text)
    hf = house.open()
    await hf.start(graph, id="doc-42", expires=HOUR)
    missing = Graph("g", dict)
    missing.node(name="another")(lambda state: None)
    async with house.worker(hf, missing, resumes_max=1) as worker:
        await house.quiet(worker)
        assert (await hf.run("doc-42").get()).status == "quarantined"
    house.clock.advance(2 * HOUR)
    await hf.run("doc-42").extend(days(5))
    await hf.run("doc-42").retry()
    async with house.worker(hf, graph) as worker:
        await house.quiet(worker)
        assert (await hf.run("doc-42").get()).status == "finished"
