"""A run's row: what an operator needs, about a kilobyte, and never over eight."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Graph, Holdfast, Retry, days, fail, signal
from holdfast.errors import InvalidName
from holdfast.storage.item import item_bytes
from tests.engine.support import (
    Gate,
    House,
    chain,
    incompressible,
    item_of_head,
    journal_items,
    store_of,
)

HEAD_BYTES_MAX = 8 * 1024
WIDE = "😀"  # four bytes


def wide(size: int) -> str:
    return WIDE * (size // 4)


LABELS = {f"{number}{wide(60)}": f"{number}{wide(60)}" for number in range(10)}
LARGEST_START: dict[str, Any] = {
    "id": wide(128),
    "user": wide(1024),
    "labels": LABELS,
    "expires": days(36_000),
}
LARGEST_TENANT = wide(64)
LONG_NAME = "n" * 64


async def largest_head(hf: Holdfast, house: House, graph: Graph, input: Any = None) -> int:
    """Start a run with the longest of everything; return its row's size once it stands still."""
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, input, **LARGEST_START)
        await house.quiet(worker)
    (item,) = [
        item
        async for item in store_of(hf).table.query_all(
            f"RUN#{LARGEST_TENANT}#{LARGEST_START['id']}"
        )
        if item["SK"] == "HEAD"
    ]
    return item_bytes(item)


def one_node(function: Any, **options: Any) -> Graph:
    graph = Graph("g" * 64, dict, version=2**31)
    graph.node(name=LONG_NAME, **options)(function)
    return graph


async def test_an_ordinary_row_takes_a_kilobyte_wherever_the_run_stands(house: House) -> None:
    hf = house.open()
    gate = Gate()

    async def blocked(state: Any) -> Any:
        await gate.pass_through()

    async def review(state: Any, ctx: Any) -> Any:
        await ctx.wait(signal("decision"), max_wait=days(1))

    async def broken(state: Any) -> Any:
        raise ValueError("the scan has no pages that could be read")

    graph = chain("warranty", 4, lambda number: {}, node1=blocked, node2=review, node3=broken)
    sizes = {}
    async with hf.worker([graph]) as worker:
        await hf.start(
            graph,
            {"uri": "s3://scans/2026/11/doc-42.pdf", "pages": 12},
            id="doc-42",
            user="anna@example.com",
            labels={"customer": "acme", "kind": "warranty"},
        )
        await gate.waited_at()
        sizes["running"] = item_bytes(await item_of_head(hf, "doc-42"))
        gate.open()
        await house.quiet(worker)
        sizes["waiting"] = item_bytes(await item_of_head(hf, "doc-42"))
        await hf.run("doc-42").signal("decision")
        await house.quiet(worker)
        sizes["failed"] = item_bytes(await item_of_head(hf, "doc-42"))
    assert (await hf.run("doc-42").get()).status == "failed"
    assert max(sizes.values()) <= 1024, sizes


@pytest.mark.parametrize("input_bytes", [0, 395, 100_000])
async def test_a_waiting_row_stays_small_with_the_longest_of_everything(
    house: House, input_bytes: int
) -> None:
    async def waits(state: Any, ctx: Any) -> Any:
        await ctx.wait(signal(wide(128)), max_wait=days(300))

    hf = house.open(tenant=LARGEST_TENANT)
    graph = one_node(waits, max_pause=days(30), on_stale=fail(), retry=Retry(attempts=2**31))
    input = {"text": incompressible(1, input_bytes)}
    assert await largest_head(hf, house, graph, input) <= HEAD_BYTES_MAX


async def test_a_row_stays_small_however_many_waits_there_are(house: House) -> None:
    async def waits(state: Any, ctx: Any) -> Any:
        names = [f"{number:04}{wide(120)}" for number in range(200)]
        await asyncio.gather(*(ctx.wait(signal(name), max_wait=days(300)) for name in names))

    hf = house.open(tenant=LARGEST_TENANT)
    assert await largest_head(hf, house, one_node(waits)) <= HEAD_BYTES_MAX


async def test_a_failed_row_stays_small_whatever_the_error_says(house: House) -> None:
    kind = type("E" * 10_000, (Exception,), {})

    async def fails(state: Any) -> Any:
        raise kind(wide(1_000_000))

    hf = house.open(tenant=LARGEST_TENANT)
    assert await largest_head(hf, house, one_node(fails)) <= HEAD_BYTES_MAX


async def test_a_cancelled_row_stays_small_whatever_the_reason(house: House) -> None:
    async def waits(state: Any, ctx: Any) -> Any:
        await ctx.wait(signal(wide(128)))

    hf = house.open(tenant=LARGEST_TENANT)
    graph = one_node(waits)
    assert await largest_head(hf, house, graph) <= HEAD_BYTES_MAX
    await hf.run(LARGEST_START["id"]).cancel(wide(1_000_000))
    assert await largest_head(hf, house, graph) <= HEAD_BYTES_MAX
    assert (await hf.run(LARGEST_START["id"]).get()).status == "cancelled"


async def test_a_row_that_cannot_be_resumed_stays_small(house: House) -> None:
    async def waits(state: Any, ctx: Any) -> Any:
        await ctx.wait(signal("never"))

    async def other(state: Any) -> Any: ...

    hf = house.open(tenant=LARGEST_TENANT)
    await largest_head(hf, house, one_node(waits))
    await hf.run(LARGEST_START["id"]).signal("never")
    graph = Graph("g" * 64, dict, version=2**31)
    graph.node(other)
    async with house.worker(hf, graph, resumes_max=2) as worker:
        await house.quiet(worker)
        await house.move(10, worker)
    assert (await hf.run(LARGEST_START["id"]).get()).status == "quarantined"
    assert await largest_head(hf, house, graph) <= HEAD_BYTES_MAX


async def test_a_row_shows_what_an_operator_needs(house: House) -> None:
    hf = house.open()
    graph = Graph("warranty", dict, version=7)

    @graph.node
    async def read(state: Any, ctx: Any) -> Any:
        await ctx.sleep(1.5)
        return {"text": "x" * 1000}

    @graph.node(retry=Retry(attempts=4))
    async def review(state: Any, ctx: Any) -> Any:
        await ctx.wait(signal("decision"), max_wait=3600)

    graph.route(read, review)
    started_ms = house.clock.now_ms()
    async with house.worker(hf, graph) as worker:
        await hf.start(
            graph, {"uri": "x"}, id="doc-42", user="anna", labels={"a": "b"}, expires=days(2)
        )
        await house.clock.asleep(4)
        running = await hf.run("doc-42").get()
        await house.move(1.5, worker)
        run = await hf.run("doc-42").get()
    assert (running.status, running.node, running.owner) == ("running", "read", worker.id)
    assert (running.waits, running.due_at) == ((), None)
    assert (run.id, run.tenant, run.graph) == ("doc-42", "default", "warranty")
    assert (run.version, run.schema, run.labels) == (7, 1, {"a": "b"})
    assert (run.status, run.node, run.reason, run.owner) == ("waiting", "review", "signal", None)
    (wait,) = run.waits
    assert (wait.signal, wait.since_ms) == ("decision", started_ms + 1_500)
    assert wait.deadline_ms == started_ms + 1_500 + 3_600_000
    assert run.due_at is not None
    assert run.due_at.timestamp() * 1000 == wait.deadline_ms
    assert (run.nodes_run, run.spent_seconds, run.retries_left) == (1, 1.5, 3)
    items = await journal_items(hf, "doc-42")
    assert run.journal_records == len(items) == 1
    assert run.journal_bytes == sum(len(item["data"]) for item in items)
    assert run.created_at.timestamp() * 1000 == started_ms
    assert (run.expires_at - run.created_at) == days(2)
    assert run.user is not None
    assert "anna" not in run.user


async def test_a_retry_shows_how_many_are_left(house: House, hf: Holdfast) -> None:
    graph = Graph("flaky", dict)

    @graph.node(retry=Retry(attempts=4, backoff=60, jitter=0))
    async def flaky(state: Any) -> Any:
        raise OSError

    async with house.worker(hf, graph) as worker:
        await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        run = await hf.run("doc-42").get()
        assert (run.status, run.reason, run.retries_left) == ("waiting", "retry", 2)
        await house.move(60, worker)
        assert (await hf.run("doc-42").get()).retries_left == 1


async def test_a_user_is_kept_as_a_keyed_hash_and_nowhere_else(house: House) -> None:
    user = "anna.karenina@example.com"
    graph = chain("g", 2, lambda number: {})
    one, same = house.open(user_key=b"k" * 16), house.open(user_key=b"k" * 16)
    other, stored, stored_too = house.open(user_key=b"l" * 16), house.open(), house.open()
    hashes = []
    for number, hf in enumerate((one, same, other, stored, stored_too)):
        run = await hf.start(graph, id=f"doc-{number}", user=user)
        hashes.append((await run.get()).user)
    async with house.worker(one, graph) as worker:
        await house.quiet(worker)
    assert hashes[0] == hashes[1]
    assert hashes[3] == hashes[4]
    assert len({hashes[0], hashes[2], hashes[3]}) == 3
    another = await one.start(graph, id="doc-9", user="somebody else")
    assert (await another.get()).user not in hashes
    table = store_of(one).table
    for number in range(5):
        async for item in table.query_all(f"RUN#default#doc-{number}"):
            assert user not in repr(item)
            assert user.encode() not in b"".join(v for v in item.values() if isinstance(v, bytes))
    assert user not in repr(await table.query("SETTINGS"))


@pytest.mark.parametrize("user", ["", 5, b"x", "x" * 1025, "\ud800"])
async def test_a_user_that_cannot_be_one_is_refused(hf: Holdfast, user: Any) -> None:
    with pytest.raises(InvalidName) as refused:
        await hf.start(chain("g", 1, lambda number: {}), user=user)
    assert refused.value.field == "user"
