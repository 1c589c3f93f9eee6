"""The verbs of the client do what those of the library do."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Budget, Holdfast, RunFilter
from holdfast.client import Client
from holdfast.errors import (
    AlreadyExists,
    HoldfastError,
    InvalidInput,
    InvalidName,
    InvalidQuery,
    InvalidRequest,
    NotRetryable,
    RunCancelled,
    RunEnded,
    RunFailed,
    RunNotFound,
    SignalMisfit,
    UnknownGraph,
)
from tests.client.graphs import APPROVED, Mood, Order, Receipt, failing, greeting, orders, paying
from tests.client.wire import Wire

AT = datetime(2026, 11, 17, 9, 30, tzinfo=UTC)


async def test_a_run_is_started_answered_and_awaited_in_its_types(client: Client) -> None:
    run = await client.start(orders, Order("book", at=AT, scan=b"\x00\xff"), id="o-1")
    row = await run.until("waiting", timeout=5)
    assert [wait.description for wait in row.waits] == ["the signal approved"]
    assert (row.waits[0].signal, row.waits[0].about) == ("approved", {"item": "book"})
    receipt = await run.signal(APPROVED, True)
    assert receipt.answers_wait
    result = await run.result(timeout=5)
    assert result == Order("book", 100, approved=True, at=AT, scan=b"\x00\xff")
    assert await run.input() == Order("book", at=AT, scan=b"\x00\xff")
    assert await run.state() == result


async def test_what_is_read_is_what_the_library_reads(client: Client, hf: Holdfast) -> None:
    run = await client.start(orders, Order("book"), id="o-1", labels={"desk": "a"}, user="ann")
    await run.until("waiting", timeout=5)
    there = hf.run("o-1")
    # The digest of a signal's schema, which only the engine needs, does not travel.
    assert (await run.get()).as_dict() == (await there.get()).as_dict()
    assert await run.history() == await there.history()
    assert (await run.waits()).as_dict() == (await there.waits()).as_dict()
    assert await run.children() == await there.children()
    assert await run.spending() == await there.spending()
    assert await run.set_aside() == await there.set_aside()
    assert (await client.list()).as_dict() == (await hf.list()).as_dict()
    found = await client.list(RunFilter("waiting", labels={"desk": "a"}, since=AT))
    assert [entry.id for entry in found.runs] == ["o-1"]
    assert (await client.list(RunFilter("failed", cost_usd_min=0.5))).runs == []


async def test_one_request_waits_for_the_end_of_a_run(client: Client, wire: Wire) -> None:
    run = await client.start(orders, Order("book"), id="o-1")
    await run.until("waiting", timeout=30)
    wire.paths.clear()
    result = asyncio.ensure_future(run.result(timeout=30))
    await run.signal(APPROVED, True)
    assert (await result).approved
    assert [path for path in wire.paths if not path.endswith("signals")] == ["/v1/runs/o-1/result"]


async def test_a_workflow_returns_its_type(client: Client) -> None:
    run = await client.start(paying, Order("book", 6, at=AT))
    assert await run.result(timeout=5) == Receipt(7, AT)
    assert await run.input() == Order("book", 6, at=AT)
    plain = await client.start("paying", {"item": "book", "at": AT})
    assert await plain.result(timeout=5) == {"number": 1, "paid_at": "2026-11-17T09:30:00Z"}
    assert await (await client.start(greeting)).result(timeout=5) == "hello"


async def test_the_arguments_of_a_start_arrive(client: Client, hf: Holdfast) -> None:
    later = datetime(2200, 1, 1, tzinfo=UTC)
    run = await client.start(
        "orders",
        Order("book"),
        tenant="other",
        pool="gpu",
        session="s",
        on_busy="queue",
        start_at=later,
        expires="3h",
        retention="4d",
        budget=Budget(usd=1.5, wall="2h", estimate=True),
    )
    assert run.tenant == "other"
    row = await hf.run(run.id, tenant="other").get()
    assert (row.labels, row.session, row.reason) == ({"pool": "gpu"}, "s", "scheduled")
    assert row.budget == Budget(usd=1.5, wall="2h", estimate=True).limits
    assert row.expires_at - later == timedelta(hours=3)
    queue = await client.session_queue("s", tenant="other")
    assert [entry.id for entry in queue] == [run.id]


async def test_a_start_without_an_id_starts_another_run(client: Client) -> None:
    first = await client.start(greeting)
    second = await client.start(greeting)
    assert first.id != second.id


async def test_errors_are_those_of_the_library(client: Client) -> None:
    with pytest.raises(UnknownGraph):
        await client.start("unheard", {})
    with pytest.raises(RunNotFound):
        await client.run("none").get()
    with pytest.raises(InvalidInput):
        await client.start("orders", {"cents": "many"})
    run = await client.start(orders, Order("book"), id="o-1")
    with pytest.raises(AlreadyExists):
        await client.start(orders, Order("lamp"), id="o-1")
    await run.until("waiting", timeout=5)
    with pytest.raises(SignalMisfit):
        await run.signal("approved", "perhaps")
    with pytest.raises(NotRetryable):
        await run.retry()
    with pytest.raises(InvalidQuery) as raised:
        await client.list(limit=0)
    assert raised.value.field == "limit"
    await run.cancel("ordered twice")
    with pytest.raises(RunEnded):
        await run.signal("approved", True)
    with pytest.raises(RunCancelled, match="ordered twice"):
        await run.result(timeout=5)
    with pytest.raises(RunCancelled):
        await run.until("finished", timeout=5)


async def test_arguments_are_checked_before_anything_is_sent(client: Client, wire: Wire) -> None:
    wrong: list[tuple[type[HoldfastError], object]] = [
        (InvalidInput, lambda: client.start(orders, {"item": 7})),
        (InvalidInput, lambda: client.start("orders", {"item": object()})),
        (InvalidRequest, lambda: client.start(7)),  # type: ignore[arg-type]
        (InvalidRequest, lambda: client.start(orders, Order("b"), expires="soon")),
        (InvalidRequest, lambda: client.start(orders, Order("b"), budget=5)),  # type: ignore[arg-type]
        (InvalidName, lambda: client.start(orders, Order("b"), id="../keys")),
        (InvalidName, lambda: client.start(orders, Order("b"), tenant="a\nb")),
        (InvalidRequest, lambda: client.run("a").until("done")),  # type: ignore[arg-type]
        (InvalidRequest, lambda: client.run("a").resolve("c")),
        (InvalidName, lambda: client.run("a").signal("")),
        (InvalidRequest, lambda: client.run("a").set_budget(None)),  # type: ignore[arg-type]
        (InvalidRequest, lambda: client.run("a").retry(from_node="b", keep_answers=True)),
    ]
    for kind, call in wrong:
        with pytest.raises(kind):
            await call()  # type: ignore[operator]
    for id in ("", ".", "..", "a/b", "a\r\nb", "%2e", "a" * 200):
        with pytest.raises(InvalidName):
            client.run(id)
    assert wire.paths == []


async def test_a_late_result_says_what_the_run_waits_for(client: Client) -> None:
    run = await client.start(orders, Order("book"), id="o-1")
    await run.until("waiting", timeout=5)
    with pytest.raises(TimeoutError, match="has not ended within 0s: it waits for the signal"):
        await run.result(timeout=0)
    with pytest.raises(TimeoutError, match="was not 'finished' within 10ms"):
        await run.until("finished", timeout=0.01)


async def test_a_failed_run_is_retried_and_its_budget_and_expiry_change(client: Client) -> None:
    run = await client.start(failing, Mood(mood="bad"), id="f-1")
    with pytest.raises(RunFailed, match="not today") as raised:
        await run.result(timeout=5)
    assert (raised.value.kind, raised.value.reason) == ("ValueError", "not today")
    before = await run.get()
    await run.extend("30d")
    assert (await run.get()).expires_at > before.expires_at
    await run.retry()
    with pytest.raises(RunFailed):
        await run.result(timeout=5)
    other = await client.start(orders, Order("book"), id="o-1")
    await other.set_budget(Budget(tokens=5, node_time="1m"))
    assert (await other.get()).budget == Budget(tokens=5, node_time="1m").limits
    budget = (await other.get()).budget
    assert budget is not None
    await other.set_budget(budget)


async def test_bulk_actions_report_progress(client: Client) -> None:
    for number in range(3):
        await client.start(failing, Mood(mood="bad"), id=f"f-{number}")
        with pytest.raises(RunFailed):
            await client.run(f"f-{number}").result(timeout=5)
    counted = [each async for each in client.retry_all(RunFilter(graph="failing"), dry_run=True)]
    assert (counted[-1].seen, counted[-1].done) == (3, 0)
    told = [each async for each in client.retry_all(RunFilter(graph="failing"))]
    assert told[-1].done == 3
    with pytest.raises(InvalidQuery, match="everything"):
        _ = [each async for each in client.cancel_all()]
    with pytest.raises(InvalidRequest, match="to its end"):
        _ = [each async for each in client.cancel_all(RunFilter("waiting"), cursor="c")]
    with pytest.raises(InvalidQuery, match="RunFilter"):
        client.cancel_all(status="failed")  # type: ignore[call-arg]


async def test_nothing_is_ambiguous(client: Client) -> None:
    assert [call async for call in client.ambiguous()] == []


def test_a_blocking_with_says_what_to_write() -> None:
    with pytest.raises(InvalidRequest, match=r"holdfast\.client\.sync"), Client("http://a"):
        pass


@pytest.mark.parametrize(
    "url", ["", "sqlite:///runs.db", "ftp://a", "http://", "https://a:b@c", "http://a?b", 7]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        Client(url)
    assert raised.value.field == "url"


@pytest.mark.parametrize("key", ["", "a\nb", "é", 7, b"a"])
def test_a_key_that_is_none_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(InvalidRequest, match="printable text"):
        Client("http://a", key=key)
    with pytest.raises(InvalidRequest, match="not both"):
        Client("http://a", key="k", token="t")
    assert "secret" not in repr(Client("http://a", key="secret"))
