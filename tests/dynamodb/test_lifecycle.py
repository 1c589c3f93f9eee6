"""Opening, using at once, cancelling and closing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.errors import ChangesOff, InvalidRequest, InvalidUrl, StoreClosed
from holdfast.storage.dynamodb import DynamoEngine
from holdfast.storage.layout import Key
from holdfast.storage.operations import GetItem, WriteItem
from holdfast.storage.writes import Put
from tests.dynamodb.conftest import Open
from tests.servers.stub_dynamodb import Asked, Said, Stub

GET = GetItem(Key("p", "s"), eventual=False)


class Gate:
    """Holds requests until it is opened."""

    def __init__(self, expected: int = 1) -> None:
        self.opened = asyncio.Event()
        self.reached = asyncio.Event()
        self.waiting = 0
        self._expected = expected

    async def __call__(self, stub: Stub, asked: Asked) -> Said | None:
        self.waiting += 1
        if self.waiting >= self._expected:
            self.reached.set()
        await self.opened.wait()
        return await stub.forward(asked)


@pytest.mark.parametrize(
    "options",
    [
        {"table": "ab"},
        {"table": "a/b/c"},
        {"table": "x" * 256},
        {"endpoint": "localhost:8000"},
        {"endpoint": "ftp://localhost"},
        {"endpoint": "http://localhost/path"},
        {"endpoint": "http://localhost:99999"},
        {"endpoint": "http://user@localhost"},
        {"endpoint": "http://"},
        {"endpoint": "http://localhost?x=y"},
    ],
)
def test_a_wrong_address_is_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidUrl):
        DynamoEngine(options.pop("table", "table"), **options)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("in_flight_max", 0),
        ("retry_budget_seconds", -1),
        ("retry_budget_seconds", 301),
        ("timeout_seconds", 0),
        ("timeout_seconds", 61),
    ],
)
def test_a_limit_out_of_bounds_is_refused_at_once(name: str, value: float) -> None:
    with pytest.raises(InvalidRequest, match=name):
        DynamoEngine("table", **{name: value})  # type: ignore[arg-type]


def test_to_open_needs_neither_a_loop_nor_a_service() -> None:
    DynamoEngine("table", endpoint="http://127.0.0.1:1")


async def test_to_open_and_close_sends_nothing(open_engine: Open, stub: Stub) -> None:
    engine = open_engine()
    await engine.close()
    await engine.close()
    assert stub.asked == []


async def test_so_many_at_a_time_and_no_more(
    open_engine: Open, other: DynamoEngine, stub: Stub
) -> None:
    engine = open_engine(in_flight_max=3)
    gate = Gate(expected=3)
    stub.always("PutItem", gate)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        for number in range(10):
            put = Put({"PK": "p", "SK": str(number)})
            group.create_task(engine.perform(WriteItem(put, "nothing")))
        await gate.reached.wait()
        for _ in range(3):  # time enough for a fourth to arrive
            await other.perform(GET)
        assert gate.waiting == 3
        gate.opened.set()
    assert stub.under_way_max == 3


async def test_a_cancelled_call_gives_its_turn_back(
    open_engine: Open, other: DynamoEngine, stub: Stub
) -> None:
    engine = open_engine(in_flight_max=1)
    gate = Gate()
    stub.plan("GetItem", gate, gate)
    for _ in range(2):
        gate.reached.clear()
        call = asyncio.create_task(engine.perform(GET))
        waiting = asyncio.create_task(engine.perform(GET))
        await asyncio.wait_for(gate.reached.wait(), 5)
        waiting.cancel()
        call.cancel()
        results = await asyncio.gather(call, waiting, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
    async with asyncio.timeout(5):
        assert (await engine.perform(GET)).error is None


async def test_close_waits_for_what_is_under_way(
    open_engine: Open, other: DynamoEngine, stub: Stub
) -> None:
    engine = open_engine()
    gate = Gate()
    stub.plan("GetItem", gate)
    ended: list[str] = []
    call = asyncio.create_task(engine.perform(GET))
    call.add_done_callback(lambda _: ended.append("call"))
    await asyncio.wait_for(gate.reached.wait(), 5)
    closing = asyncio.create_task(engine.close())
    closing.add_done_callback(lambda _: ended.append("close"))
    with pytest.raises(StoreClosed):
        await asyncio.create_task(engine.perform(GET))  # begins after close has begun
    assert ended == []
    gate.opened.set()
    async with asyncio.timeout(5):
        await asyncio.gather(call, closing)
    assert ended == ["call", "close"]


async def test_after_close_nothing_is_accepted(engine: DynamoEngine) -> None:
    await engine.perform(GET)
    await engine.close()
    with pytest.raises(StoreClosed):
        await engine.perform(GET)
    with pytest.raises(StoreClosed):
        await engine.create()


async def test_a_cancelled_call_does_not_hold_up_close(
    open_engine: Open, other: DynamoEngine, stub: Stub
) -> None:
    engine = open_engine()
    gate = Gate()
    stub.plan("GetItem", gate)
    call = asyncio.create_task(engine.perform(GET))
    await asyncio.wait_for(gate.reached.wait(), 5)
    closing = asyncio.create_task(engine.close())
    call.cancel()
    await asyncio.wait_for(closing, 5)


async def test_connections_are_kept(engine: DynamoEngine, stub: Stub) -> None:
    for _ in range(5):
        await engine.perform(GET)
    assert stub.connections == 1


async def test_the_change_feed_comes_later(engine: DynamoEngine) -> None:
    with pytest.raises(ChangesOff, match="later release"):
        await engine.read_changes(None, 10)


def test_an_engine_belongs_to_one_event_loop(dynamodb_local: str) -> None:
    engine = DynamoEngine("one-loop", region="us-east-1", endpoint=dynamodb_local)
    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(engine.create())
        with pytest.raises(StoreClosed, match="another event loop"):
            second.run(engine.create())
        first.run(engine.close())
