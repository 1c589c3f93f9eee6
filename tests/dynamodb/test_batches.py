"""Batches: their size, what the service leaves over, and what they cost."""

from __future__ import annotations

import json

import pytest

from holdfast.errors import StoreNotFound, Throttled
from holdfast.storage.dynamodb import DynamoEngine
from holdfast.storage.layout import Key
from holdfast.storage.operations import GetItems, WriteItems
from holdfast.storage.units import Units
from holdfast.storage.writes import Delete, Put
from tests.dynamodb.conftest import LeapingClock, Open
from tests.servers.stub_dynamodb import Asked, Said, Step, Stub, answer, fault, say

KEYS = tuple(Key("p", f"{number:03}") for number in range(230))


def puts(count: int, text: str = "") -> tuple[Put, ...]:
    return tuple(Put({"PK": key.pk, "SK": key.sk, "text": text or "x"}) for key in KEYS[:count])


def leave_over(count: int) -> Step:
    """Carry out all but the last few, and say so."""

    async def step(stub: Stub, asked: Asked) -> Said | None:
        fields = asked.fields
        ((table, entries),) = fields["RequestItems"].items()
        reading = "Keys" in entries
        whole = entries["Keys"] if reading else entries
        done, left = whole[:-count], whole[-count:]
        fields["RequestItems"] = {table: {**entries, "Keys": done} if reading else done}
        said = await stub.forward(
            Asked(asked.operation, json.dumps(fields).encode(), asked.headers)
        )
        reply = json.loads(said.body)
        reply["UnprocessedKeys" if reading else "UnprocessedItems"] = {
            table: {**entries, "Keys": left} if reading else left
        }
        return Said(200, json.dumps(reply).encode(), {})

    return step


async def test_batches_are_as_large_as_the_service_takes_them(
    engine: DynamoEngine, stub: Stub
) -> None:
    assert (await engine.perform(WriteItems(puts(230)))).units == Units(write=230)
    sizes = [len(entries(asked)) for asked in stub.asked_for("BatchWriteItem")]
    assert sorted(sizes) == [5, *[25] * 9]
    answer = await engine.perform(GetItems(KEYS, eventual=True))
    assert [item["SK"] for item in answer.value] == [key.sk for key in KEYS]
    assert answer.units == Units(read=115)
    sizes = [len(entries(asked)) for asked in stub.asked_for("BatchGetItem")]
    assert sorted(sizes) == [30, 100, 100]


async def test_a_batch_stays_below_sixteen_megabytes_of_json(
    engine: DynamoEngine, stub: Stub
) -> None:
    # A control character has six bytes in JSON: 25 items of 200 KB are 30 MB.
    stub.always("BatchWriteItem", say(answer(UnprocessedItems={})))
    writes = puts(25, "\x01" * 200_000)
    assert (await engine.perform(WriteItems(writes))).error is None
    sent = [asked.body for asked in stub.asked_for("BatchWriteItem")]
    assert len(sent) == 2
    assert max(map(len, sent)) <= 16 * 1024 * 1024


async def test_what_is_left_over_is_asked_for_again_and_nothing_else(
    engine: DynamoEngine, stub: Stub, clock: LeapingClock
) -> None:
    stub.plan("BatchWriteItem", leave_over(10), leave_over(4))
    answer = await engine.perform(WriteItems((*puts(20), Delete(Key("p", "gone")))))
    assert [len(entries(asked)) for asked in stub.asked_for("BatchWriteItem")] == [21, 10, 4]
    assert answer.error is None
    assert len(clock.slept) == 2
    stub.plan("BatchGetItem", leave_over(10), leave_over(4))
    found = await engine.perform(GetItems(KEYS[:21], eventual=False))
    assert [len(entries(asked)) for asked in stub.asked_for("BatchGetItem")] == [21, 10, 4]
    assert [item and item["SK"] for item in found.value] == [*(k.sk for k in KEYS[:20]), None]


@pytest.mark.parametrize(
    ("operation", "request_", "units"),
    [
        ("BatchWriteItem", WriteItems(puts(20)), Units(write=10)),
        ("BatchGetItem", GetItems(KEYS[:20], eventual=False), Units(read=10)),
    ],
)
async def test_what_stays_left_over_is_a_throttle_that_has_cost_something(
    engine: DynamoEngine,
    other: DynamoEngine,
    stub: Stub,
    clock: LeapingClock,
    operation: str,
    request_: WriteItems | GetItems,
    units: Units,
) -> None:
    await other.perform(WriteItems(puts(20)))
    stub.plan(operation, leave_over(10))

    async def leave_all(stub: Stub, asked: Asked) -> Said | None:
        field = "UnprocessedItems" if "Write" in asked.operation else "UnprocessedKeys"
        return answer(**{field: asked.fields["RequestItems"]})

    stub.always(operation, leave_all)
    result = await engine.perform(request_)
    assert isinstance(result.error, Throttled)
    assert "10 items" in str(result.error)
    assert result.units == units
    assert clock.monotonic() == pytest.approx(20, abs=0.1)


async def test_with_progress_a_batch_may_take_longer_than_the_budget(
    open_engine: Open, other: DynamoEngine, stub: Stub, clock: LeapingClock
) -> None:
    engine = open_engine(retry_budget_seconds=0.06)
    for left in range(19, 0, -1):
        stub.plan("BatchWriteItem", leave_over(left))
        stub.plan("BatchGetItem", leave_over(left))
    assert (await engine.perform(WriteItems(puts(20)))).error is None
    assert len(clock.slept) == 19
    # To learn that there is no item is progress, too.
    found = await engine.perform(GetItems((*KEYS[:10], *KEYS[100:110]), eventual=False))
    assert found.error is None
    assert len(clock.slept) == 38


async def test_after_an_error_no_further_batch_is_begun(engine: DynamoEngine, stub: Stub) -> None:
    stub.always("BatchWriteItem", say(fault("ResourceNotFoundException")))
    with pytest.raises(StoreNotFound):
        await engine.perform(WriteItems(puts(230)))
    assert len(stub.asked_for("BatchWriteItem")) <= 4


def entries(asked: Asked) -> list[object]:
    (entries,) = asked.fields["RequestItems"].values()
    return entries if isinstance(entries, list) else entries["Keys"]
