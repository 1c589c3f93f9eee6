"""What becomes of a write whose answer is lost: the rules of `writer.py`, on a real DynamoDB Local.

Only the way back is broken: what a lost answer was for has happened, unless the test says that the
request was dropped.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.errors import (
    AccessDenied,
    ConditionFailed,
    EndpointUnreachable,
    OutcomeUnknown,
    StoreUnavailable,
    Throttled,
    TransactionCancelled,
)
from holdfast.storage.dynamodb import DynamoEngine
from holdfast.storage.item import Item
from holdfast.storage.layout import TOKEN, Key
from holdfast.storage.operations import (
    GetItem,
    Reply,
    Returning,
    TransactItems,
    WriteItem,
    WriteItems,
)
from holdfast.storage.units import Units
from holdfast.storage.writes import Absent, Check, Delete, Equals, Present, Put, Update, Write
from tests.dynamodb.conftest import LeapingClock, Open
from tests.servers import stub_dynamodb
from tests.servers.process import free_port
from tests.servers.stub_dynamodb import (
    Asked,
    Said,
    Step,
    Stub,
    corrupt,
    drop,
    fail,
    fault,
    garble,
    lose,
    say,
    stall,
)

KEY = Key("p", "s")
ITEM: Item = {"PK": "p", "SK": "s", "n": 1}
THEIRS: Item = {"PK": "p", "SK": "s", "n": 100, TOKEN: "theirs"}

every_loss = pytest.mark.parametrize("loss", [lose, stall, fail, garble, corrupt])


def put(**options: Any) -> Put:
    token = options.get("token")
    return Put(ITEM if token is None else {**ITEM, TOKEN: token}, **options)


def update(**options: Any) -> Update:
    token = options.get("token")
    if token is not None:
        options["set"] = {**options.get("set", {}), TOKEN: token}
    return Update(key=KEY, **options)


async def written(engine: DynamoEngine, write: Write, returning: Returning = "nothing") -> Reply:
    return await engine.perform(WriteItem(write, returning))


async def standing(engine: DynamoEngine, key: Key = KEY) -> Item | None:
    return (await engine.perform(GetItem(key, eventual=False))).value


def lose_then(other: DynamoEngine, write: Write) -> Step:
    """Lose the answer, and let somebody else write before the next request."""

    async def step(stub: Stub, asked: Asked) -> Said | None:
        await stub.forward(asked)
        await written(other, write)
        return None

    return step


def drop_then(other: DynamoEngine, write: Write) -> Step:
    """Lose the request, and let somebody else write before the next one."""

    async def step(stub: Stub, asked: Asked) -> Said | None:
        await written(other, write)
        return None

    return step


def assert_sent_again_byte_for_byte(stub: Stub, operation: str, times: int = 2) -> None:
    bodies = [asked.body for asked in stub.asked_for(operation)]
    assert len(bodies) == times
    assert len(set(bodies)) == 1
    assert stub.planned() == 0


def assert_unknown(answer: Reply, item: Item | None) -> None:
    assert isinstance(answer.error, OutcomeUnknown)
    assert answer.error.item == item


# --- unconditional writes: sent again, since twice is as good as once -----------------------------


@every_loss
async def test_an_unconditional_put_is_sent_again(
    open_engine: Open, other: DynamoEngine, stub: Stub, loss: Step
) -> None:
    engine = open_engine(timeout_seconds=1)
    stub.plan("PutItem", loss)
    assert await written(engine, put()) == Reply(units=Units(write=1))
    assert await standing(other) == ITEM
    assert_sent_again_byte_for_byte(stub, "PutItem")


@pytest.mark.parametrize("loss", [lose, drop])
@pytest.mark.parametrize(
    ("write", "operation", "after"),
    [
        (put(), "PutItem", ITEM),
        (update(set={"n": 2}, remove=("x",)), "UpdateItem", {**ITEM, "n": 2}),
        (update(set_if_absent={"m": 2}), "UpdateItem", {**ITEM, "n": 0, "m": 2}),
        (Delete(KEY), "DeleteItem", None),
    ],
)
async def test_unconditional_writes_are_sent_again_whether_they_happened_or_not(
    engine: DynamoEngine,
    other: DynamoEngine,
    stub: Stub,
    loss: Step,
    write: Write,
    operation: str,
    after: Item | None,
) -> None:
    await written(other, Put({**ITEM, "n": 0}))
    stub.plan(operation, loss, loss)
    assert (await written(engine, write)).error is None
    assert await standing(other) == after
    assert_sent_again_byte_for_byte(stub, operation, times=3)


async def test_an_unconditional_write_without_any_answer_may_be_repeated(
    engine: DynamoEngine, stub: Stub
) -> None:
    stub.always("PutItem", drop)
    with pytest.raises(EndpointUnreachable):
        await written(engine, put())


async def test_the_new_item_of_a_put_is_known(engine: DynamoEngine, stub: Stub) -> None:
    stub.plan("PutItem", lose)
    assert (await written(engine, put(), "new")).value == ITEM


async def test_the_new_item_of_an_update_is_that_of_the_second_sending(
    engine: DynamoEngine, stub: Stub
) -> None:
    stub.plan("UpdateItem", lose)
    assert (await written(engine, update(set={"n": 5}), "new")).value == {**ITEM, "n": 5}


# --- what was replaced by a write that may have been carried out twice ----------------------------


async def test_what_was_replaced_may_be_our_own(
    engine: DynamoEngine, other: DynamoEngine, stub: Stub
) -> None:
    await written(other, Put(THEIRS))
    stub.plan("PutItem", lose)
    assert_unknown(await written(engine, put(), "old"), ITEM)


async def test_what_was_replaced_is_told_by_its_token(
    engine: DynamoEngine, other: DynamoEngine, stub: Stub
) -> None:
    await written(other, Put(THEIRS))
    stub.plan("PutItem", drop, lose)
    assert (await written(engine, put(token="a"), "old")).error is not None
    await written(other, Put(THEIRS))
    stub.plan("PutItem", drop)
    assert (await written(engine, put(token="b"), "old")).value == THEIRS


async def test_nothing_was_replaced_where_nothing_stood(engine: DynamoEngine, stub: Stub) -> None:
    stub.plan("PutItem", drop)
    assert await written(engine, put(), "old") == Reply(units=Units(write=1))


async def test_what_was_deleted_is_known_if_it_was_still_there(
    engine: DynamoEngine, other: DynamoEngine, stub: Stub
) -> None:
    await written(other, put())
    stub.plan("DeleteItem", drop)
    assert (await written(engine, Delete(KEY), "old")).value == ITEM
    await written(other, put())
    stub.plan("DeleteItem", lose)
    assert_unknown(await written(engine, Delete(KEY), "old"), None)


# --- writes with a condition: sent again, and the standing item decides ---------------------------


@every_loss
async def test_our_token_says_that_the_item_is_ours(
    open_engine: Open, other: DynamoEngine, stub: Stub, loss: Step
) -> None:
    engine = open_engine(timeout_seconds=1)
    stub.plan("PutItem", loss)
    answer = await written(engine, put(condition=Absent("PK"), token="ours"), "new")
    # The write, the condition that failed when it was sent again, and the look at the item.
    assert answer == Reply({**ITEM, TOKEN: "ours"}, Units(write=2, read=1))
    assert_sent_again_byte_for_byte(stub, "PutItem")


async def test_a_conditional_put_that_did_not_happen_happens(
    engine: DynamoEngine, other: DynamoEngine, stub: Stub
) -> None:
    stub.plan("PutItem", drop)
    answer = await written(engine, put(condition=Absent("PK"), token="ours"))
    assert answer == Reply(units=Units(write=1))
    assert_sent_again_byte_for_byte(stub, "PutItem")


async def test_our_token_says_that_an_update_is_ours(
    engine: DynamoEngine, other: DynamoEngine, stub: Stub
) -> None:
    await written(other, put())
    stub.plan("UpdateItem", lose)
    change = update(set={"n": 2}, condition=Equals("n", 1), token="ours")
    answer = await written(engine, change, "new")
    assert answer.error is None
    assert answer.value == {**ITEM, "n": 2, TOKEN: "ours"}


async def test_what_a_conditional_update_replaced_is_not_known(
    engine: DynamoEngine, other: DynamoEngine, stub: Stub
) -> None:
    await written(other, put())
    stub.plan("UpdateItem", lose)
    change = update(set={"n": 2}, condition=Equals("n", 1), token="ours")
    assert_unknown(await written(engine, change, "old"), {**ITEM, "n": 2, TOKEN: "ours"})


async def test_a_conditional_put_without_a_token_is_unknown(
    engine: DynamoEngine, stub: Stub
) -> None:
    stub.plan("PutItem", lose)
    assert_unknown(await written(engine, put(condition=Absent("PK"))), ITEM)


@pytest.mark.parametrize("lose_or_drop_then", [lose_then, drop_then])
async def test_under_anothers_token_it_is_unknown_whether_ours_happened_before(
    engine: DynamoEngine, other: DynamoEngine, stub: Stub, lose_or_drop_then: Any
) -> None:
    stub.plan("PutItem", lose_or_drop_then(other, Put(THEIRS)))
    assert_unknown(await written(engine, put(condition=Absent("PK"), token="ours")), THEIRS)


async def test_a_conditional_delete_that_finds_nothing_left_is_unknown(
    engine: DynamoEngine, other: DynamoEngine, stub: Stub
) -> None:
    await written(other, put())
    stub.plan("DeleteItem", lose)
    assert_unknown(await written(engine, Delete(KEY, Present("PK"))), None)
    assert await standing(other) is None


async def test_a_conditional_delete_that_did_not_happen_happens(
    engine: DynamoEngine, other: DynamoEngine, stub: Stub
) -> None:
    await written(other, put())
    stub.plan("DeleteItem", drop)
    assert (await written(engine, Delete(KEY, Present("PK")))).error is None
    assert await standing(other) is None


async def test_where_no_answer_was_lost_our_token_means_nothing(
    engine: DynamoEngine, other: DynamoEngine
) -> None:
    # Somebody repeats a write: that it was carried out before is for them to see in the item.
    again = put(condition=Absent("PK"), token="ours")
    await written(other, again)
    answer = await written(engine, again)
    assert isinstance(answer.error, ConditionFailed)
    assert answer.error.item == again.item
    answer = await engine.perform(TransactItems((again,)))
    assert isinstance(answer.error, TransactionCancelled)
    assert answer.error.items == {0: again.item}


async def test_a_conditional_put_without_any_answer_is_unknown(
    engine: DynamoEngine, stub: Stub, clock: LeapingClock
) -> None:
    stub.always("PutItem", drop)
    assert_unknown(await written(engine, put(condition=Absent("PK"), token="ours")), None)
    assert clock.monotonic() == pytest.approx(20)


async def test_a_conditional_put_is_unknown_if_the_item_cannot_be_read(
    engine: DynamoEngine, stub: Stub
) -> None:
    stub.plan("PutItem", lose)
    stub.always("GetItem", drop)
    assert_unknown(await written(engine, put(condition=Absent("PK"), token="ours")), None)


@pytest.mark.parametrize(
    ("obstacle", "error"),
    [
        (fault("ThrottlingException"), Throttled),
        (fault("AccessDeniedException"), AccessDenied),
        (fault("InternalServerError", status=500), StoreUnavailable),
    ],
)
async def test_whatever_comes_after_a_lost_answer_it_stays_lost(
    engine: DynamoEngine, stub: Stub, obstacle: Said, error: type[Exception]
) -> None:
    stub.plan("PutItem", lose)
    stub.always("PutItem", say(obstacle))
    answer = await written(engine, put(condition=Absent("PK"), token="ours"))
    assert_unknown(answer, None)
    assert isinstance(answer.error and answer.error.__cause__, error)
    stub.plan("PutItem", lose)
    with pytest.raises(error):  # this one may be repeated, so that its error says more
        await written(engine, put())


# --- updates that add: never sent again, since twice would be too often ---------------------------


@every_loss
async def test_our_token_says_that_an_addition_happened(
    open_engine: Open, other: DynamoEngine, stub: Stub, loss: Step
) -> None:
    await written(other, put())
    engine = open_engine(timeout_seconds=1)
    stub.plan("UpdateItem", loss)
    answer = await written(engine, update(add={"n": 5}, token="ours"), "new")
    assert answer == Reply({**ITEM, "n": 6, TOKEN: "ours"}, Units(read=1, write=1))
    assert await standing(other) == {**ITEM, "n": 6, TOKEN: "ours"}
    assert_sent_again_byte_for_byte(stub, "UpdateItem", times=1)


async def test_an_addition_without_a_token_is_unknown(
    engine: DynamoEngine, other: DynamoEngine, stub: Stub
) -> None:
    await written(other, put())
    stub.plan("UpdateItem", lose)
    assert_unknown(await written(engine, update(add={"n": 5})), {**ITEM, "n": 6})
    assert_sent_again_byte_for_byte(stub, "UpdateItem", times=1)


async def test_an_addition_whose_token_is_not_there_is_unknown(
    engine: DynamoEngine, other: DynamoEngine, stub: Stub
) -> None:
    await written(other, put())
    stub.plan("UpdateItem", drop)
    assert_unknown(await written(engine, update(add={"n": 5}, token="ours")), ITEM)
    assert_sent_again_byte_for_byte(stub, "UpdateItem", times=1)


async def test_what_an_addition_replaced_is_not_known(
    engine: DynamoEngine, other: DynamoEngine, stub: Stub
) -> None:
    stub.plan("UpdateItem", lose)
    answer = await written(engine, update(add={"n": 5}, token="ours"), "old")
    assert_unknown(answer, {**ITEM, "n": 5, TOKEN: "ours"})


async def test_an_addition_is_unknown_if_the_item_cannot_be_read(
    engine: DynamoEngine, stub: Stub
) -> None:
    stub.plan("UpdateItem", lose)
    stub.always("GetItem", drop)
    assert_unknown(await written(engine, update(add={"n": 5}, token="ours")), None)


async def test_an_addition_that_was_turned_away_is_sent_again(
    engine: DynamoEngine, other: DynamoEngine, stub: Stub
) -> None:
    stub.plan("UpdateItem", say(fault("ProvisionedThroughputExceededException")))
    assert (await written(engine, update(add={"n": 5}))).error is None
    assert await standing(other) == {**ITEM, "n": 5}


async def test_an_addition_that_never_left_is_sent_once_the_service_is_there(
    open_engine: Open, other: DynamoEngine, clock: LeapingClock, dynamodb_local: str
) -> None:
    port = free_port()
    engine = open_engine(f"http://127.0.0.1:{port}")
    late = stub_dynamodb.serve(dynamodb_local, port=port)

    async def start() -> None:
        clock.on_sleep = None
        await late.__aenter__()

    clock.on_sleep = start
    assert (await written(engine, update(add={"n": 5}))).error is None
    assert await standing(other) == {**ITEM, "n": 5}
    await engine.close()
    await late.__aexit__(None, None, None)


# --- transactions: sent again under the same client token, by which they happen once --------------

TRANSACTION = TransactItems((update(add={"n": 5}), Check(Key("p", "none"), Absent("PK"))))


@every_loss
async def test_a_transaction_happens_once(
    open_engine: Open, other: DynamoEngine, stub: Stub, loss: Step
) -> None:
    engine = open_engine(timeout_seconds=1)
    stub.plan("TransactWriteItems", loss, loss)
    answer = await engine.perform(TRANSACTION)
    assert answer.error is None
    assert answer.units.writes == 0  # the last answer reports what it cost to read it
    assert await standing(other) == {**ITEM, "n": 5}
    assert_sent_again_byte_for_byte(stub, "TransactWriteItems", times=3)


async def test_every_transaction_has_a_client_token_of_its_own(
    engine: DynamoEngine, stub: Stub
) -> None:
    await engine.perform(TRANSACTION)
    await engine.perform(TRANSACTION)
    tokens = [asked.fields["ClientRequestToken"] for asked in stub.asked_for("TransactWriteItems")]
    assert len(set(tokens)) == 2


async def test_a_transaction_that_is_cancelled_after_a_lost_answer_is_unknown(
    engine: DynamoEngine, other: DynamoEngine, stub: Stub
) -> None:
    stub.plan("TransactWriteItems", drop_then(other, Put(THEIRS)))
    writes = (put(condition=Absent("PK"), token="ours"),)
    answer = await engine.perform(TransactItems(writes))
    assert isinstance(answer.error, OutcomeUnknown)
    assert isinstance(answer.error.__cause__, TransactionCancelled)
    assert answer.error.__cause__.items == {0: THEIRS}


async def test_our_token_tells_where_the_service_forgot_the_transaction(
    moto_server: str, open_engine: Open
) -> None:
    # Moto does not know client tokens.
    async with stub_dynamodb.serve(moto_server) as stub:
        engine = open_engine(stub.endpoint)
        await engine.create()
        stub.plan("TransactWriteItems", lose)
        writes = (put(condition=Absent("PK"), token="ours"), Delete(Key("p", "none")))
        assert (await engine.perform(TransactItems(writes))).error is None
        assert_sent_again_byte_for_byte(stub, "TransactWriteItems")
        await engine.close()


async def test_a_transaction_without_any_answer_is_unknown(
    engine: DynamoEngine, stub: Stub
) -> None:
    stub.always("TransactWriteItems", drop)
    assert_unknown(await engine.perform(TRANSACTION), None)


async def test_a_transaction_that_is_refused_after_a_lost_answer_is_unknown(
    engine: DynamoEngine, stub: Stub
) -> None:
    stub.plan("TransactWriteItems", lose, say(fault("AccessDeniedException")))
    assert_unknown(await engine.perform(TRANSACTION), None)


# --- batches, reads, and the items that stand in the way ------------------------------------------


@every_loss
async def test_a_batch_is_sent_again(
    open_engine: Open, other: DynamoEngine, stub: Stub, loss: Step
) -> None:
    engine = open_engine(timeout_seconds=1)
    stub.plan("BatchWriteItem", loss)
    assert (await engine.perform(WriteItems((put(),)))).error is None
    assert await standing(other) == ITEM
    assert_sent_again_byte_for_byte(stub, "BatchWriteItem")


@every_loss
async def test_a_read_is_sent_again(
    open_engine: Open, other: DynamoEngine, stub: Stub, loss: Step
) -> None:
    await written(other, put())
    engine = open_engine(timeout_seconds=1)
    stub.plan("GetItem", loss, loss)
    assert await standing(engine) == ITEM
    assert stub.planned() == 0


async def test_the_standing_item_comes_with_the_refusal_or_is_read(
    engine: DynamoEngine, other: DynamoEngine, stub: Stub
) -> None:
    await written(other, put())
    refused = put(condition=Absent("PK"))
    # DynamoDB Local of 2020 does not hand out the item.
    answer = await written(engine, refused)
    assert (
        json.loads(stub.asked_for("PutItem")[0].body)["ReturnValuesOnConditionCheckFailure"]
        == "ALL_OLD"
    )
    assert isinstance(answer.error, ConditionFailed)
    assert answer.error.item == ITEM
    assert answer.units == Units(write=1, read=1)
    assert len(stub.asked_for("GetItem")) == 1
    # A service of today does; once it has, no item means that there is none.
    said = fault("ConditionalCheckFailedException", Item={"PK": {"S": "p"}, "SK": {"S": "other"}})
    none = fault("ConditionalCheckFailedException")
    stub.plan("PutItem", say(said), say(none))
    for item in ({"PK": "p", "SK": "other"}, None):
        answer = await written(engine, refused)
        assert isinstance(answer.error, ConditionFailed)
        assert answer.error.item == item
        assert answer.units == Units(write=1)
    assert len(stub.asked_for("GetItem")) == 1


async def test_a_standing_item_that_cannot_be_read_is_not_called_absent(
    engine: DynamoEngine, other: DynamoEngine, stub: Stub
) -> None:
    await written(other, put())
    stub.always("GetItem", drop)
    with pytest.raises(EndpointUnreachable):
        await written(engine, put(condition=Absent("PK")))
