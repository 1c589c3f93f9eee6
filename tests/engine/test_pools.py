"""Pools: a run goes only to workers that serve its pool, whichever way it comes to them."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Graph, Holdfast, RunFilter, WorkerOptions, signal
from holdfast.errors import InvalidName, InvalidRequest
from holdfast.records.head import head_of
from tests.engine.support import Gate, House, chain, item_of_head, kill, reached

GRAPH = chain("g", 1, lambda number: {"done": True})


def asking(name: str = "asking") -> Graph:
    async def ask(state: Any, ctx: Any) -> Any:
        return {"answer": await ctx.wait(signal("go"))}

    return chain(name, 1, lambda number: {}, node0=ask)


async def test_a_worker_takes_only_the_pools_that_it_serves(either: House) -> None:
    client, plain, gpu = (either.open() for _ in range(3))
    await client.start(GRAPH, id="unnamed")
    await client.start(GRAPH, id="gpu", pool="gpu")
    await client.start(GRAPH, id="tpu", pool="tpu")
    async with (
        either.worker(plain, GRAPH) as first,
        either.worker(gpu, GRAPH, pools=["gpu"]) as second,
    ):
        await either.move(1, first, second)
        assert (await client.run("tpu").get()).status == "ready"
    assert (first.counts["finished"], second.counts["finished"]) == (1, 1)
    assert (await client.run("gpu").get()).status == "finished"
    async with either.worker(plain, GRAPH, pools=[None, "tpu"]) as third:
        await client.start(GRAPH, id="another")
        await either.move(1, third)
        assert third.counts["finished"] == 2


async def test_a_run_is_handed_over_in_process_only_to_workers_of_its_pool(house: House) -> None:
    hf = house.open()
    async with house.worker(hf, GRAPH, poll=1_000_000) as worker:
        await house.quiet(worker)
        run = await hf.start(GRAPH, id="doc-42", pool="gpu")
        await house.quiet(worker)
        assert worker.running == 0
        assert (await run.get()).owner is None
        item = await item_of_head(hf, "doc-42")
        assert item["GSI1PK"].startswith("DUE#g@gpu#")
        async with house.worker(hf, GRAPH, pools=["gpu"], poll=1_000_000) as second:
            await run.result(timeout=60)
            await hf.start(GRAPH, id="doc-43", labels={"pool": "gpu"})
            await hf.run("doc-43").result(timeout=60)
            assert second.counts["finished"] == 2
        assert worker.counts["finished"] == 0


async def test_a_run_keeps_its_pool_when_it_pauses_and_is_woken(house: House) -> None:
    graph = asking()
    hf, client = house.open(), house.open()
    async with house.worker(hf, graph, pools=["gpu"]) as gpu, house.worker(hf, graph) as plain:
        await hf.start(graph, id="doc-42", pool="gpu")
        await reached(hf, "doc-42", "waiting")
        assert (await item_of_head(hf, "doc-42"))["GSI1PK"].startswith("DUE#asking@gpu#")
        await gpu.stop()
        await hf.run("doc-42").signal("go", 1)  # the plain worker has room, and must not take it
        await house.move(1, plain)
        row = await hf.run("doc-42").get()
        assert (row.status, row.owner) == ("ready", None)
    async with house.worker(client, graph, pools=["gpu"]) as gpu:
        await house.quiet(gpu)
        assert (await client.run("doc-42").result(timeout=60))["answer"] == 1


async def test_a_run_keeps_its_pool_when_its_worker_dies(either: House) -> None:
    gate = Gate()

    async def blocked(state: Any) -> Any:
        await gate.pass_through()

    graph = chain("g", 1, lambda number: {}, node0=blocked)
    one, other, third = (either.open() for _ in range(3))
    lost = one.worker([graph], pools=["gpu"])
    await lost.start()
    await one.start(graph, id="doc-42", pool="gpu")
    await gate.waited_at()
    kill(lost)
    gate.open()
    either.clock.advance(61)
    async with other.worker([graph]) as plain:
        await either.quiet(plain)
        assert plain.counts["taken over"] == 1
        assert (await other.run("doc-42").get()).status == "ready"
        assert (await item_of_head(other, "doc-42"))["GSI1PK"].startswith("DUE#g@gpu#")
        async with third.worker([graph], pools=["gpu"]) as gpu:
            await either.quiet(plain, gpu)
            assert gpu.counts["finished"] == 1


async def test_a_run_keeps_its_pool_when_it_is_retried(house: House) -> None:
    async def fails(state: Any) -> Any:
        raise ValueError("no")

    graph = chain("failing", 1, lambda number: {}, node0=fails)
    hf = house.open()
    async with house.worker(hf, graph, pools=["gpu"]) as gpu:
        await hf.start(graph, id="doc-42", pool="gpu")
        await house.quiet(gpu)
    async with house.worker(hf, graph) as plain:
        await hf.run("doc-42").retry()
        await house.move(1, plain)
        assert (await hf.run("doc-42").get()).status == "ready"
    assert (await item_of_head(hf, "doc-42"))["GSI1PK"].startswith("DUE#failing@gpu#")


async def test_a_pool_is_a_label_that_lists_show(hf: Holdfast) -> None:
    await hf.start(GRAPH, id="one", pool="gpu", labels={"desk": "sales"})
    await hf.start(GRAPH, id="two", labels={"pool": "gpu"})
    await hf.start(GRAPH, id="three")
    found = await hf.list(RunFilter(labels={"pool": "gpu"}))
    assert {run.id for run in found.runs} == {"one", "two"}
    assert (await hf.run("one").get()).labels == {"desk": "sales", "pool": "gpu"}
    for id in ("one", "two"):
        assert (await item_of_head(hf, id))["GSI1PK"].startswith("DUE#g@gpu#")


async def test_a_row_that_had_the_label_before_there_were_pools_stays_where_it_is(
    hf: Holdfast,
) -> None:
    await hf.start(GRAPH, id="doc-42", labels={"desk": "sales"})
    item = await item_of_head(hf, "doc-42")
    old = head_of({**item, "show": {**item["show"], "labels": {"pool": "gpu"}}})
    assert old.due_index_key(5, 1).pk == item["GSI1PK"]


@pytest.mark.parametrize("labels", [{"pool": "cpu"}, {"pool": ""}])
async def test_a_pool_and_a_label_that_disagree_are_refused(hf: Holdfast, labels: Any) -> None:
    with pytest.raises(InvalidName):
        await hf.start(GRAPH, pool="gpu", labels=labels)
    assert hf.meter.report().calls == 0


@pytest.mark.parametrize("pools", ["gpu", [], [""], ["a#b"], 7, [7], None], ids=repr)
async def test_pools_that_make_no_sense_are_refused(hf: Holdfast, pools: Any) -> None:
    with pytest.raises(InvalidRequest):
        hf.worker([GRAPH], pools=pools)


def test_each_pool_is_served_once() -> None:
    assert WorkerOptions().pools == (None,)
    assert WorkerOptions(pools=["gpu", None, "gpu"]).pools == ("gpu", None)
