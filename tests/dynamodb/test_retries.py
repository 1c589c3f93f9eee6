"""What is tried again, for how long, and what it comes down to when the time is up."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import SystemClock
from holdfast.errors import (
    AccessDenied,
    EndpointUnreachable,
    HoldfastError,
    InvalidItem,
    InvalidRequest,
    InvalidWrite,
    ItemTooLarge,
    StoreMismatched,
    StoreNotFound,
    StoreUnavailable,
    Throttled,
    TransactionCancelled,
)
from holdfast.storage.dynamodb import DynamoEngine
from holdfast.storage.layout import Key
from holdfast.storage.operations import GetItem, Reply, TransactItems, WriteItem
from holdfast.storage.units import Units
from holdfast.storage.writes import Delete, Put, Update
from tests.dynamodb.certificates import self_signed
from tests.dynamodb.conftest import LeapingClock, Open
from tests.servers.process import free_port
from tests.servers.stub_dynamodb import (
    Said,
    Stub,
    answer,
    corrupt,
    drop,
    fault,
    garble,
    say,
    stall,
)

KEY = Key("p", "s")
GET = GetItem(KEY, eventual=False)
PUT = WriteItem(Put({"PK": "p", "SK": "s"}), "nothing")
TRANSACTION = TransactItems((Put({"PK": "p", "SK": "s"}), Delete(Key("p", "t"))))


def cancelled(*codes: str, message: str = "", item: Any = None) -> Said:
    reasons: list[dict[str, Any]] = [{"Code": code} for code in codes]
    for reason in reasons:
        if reason["Code"] == "ConditionalCheckFailed" and item:
            reason["Item"] = item
        if reason["Code"] == "ValidationError":
            reason["Message"] = message
    return fault("TransactionCanceledException", "cancelled", CancellationReasons=reasons)


BUSY = [
    fault("ProvisionedThroughputExceededException"),
    fault("ThrottlingException"),
    fault("RequestLimitExceeded"),
    fault("TransactionConflictException"),
]
BUSY_TRANSACTION = [
    fault("TransactionInProgressException"),
    cancelled("None", "TransactionConflict"),
    cancelled("ProvisionedThroughputExceeded", "ThrottlingError"),
]


# --- a busy service ------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", BUSY)
async def test_a_busy_service_is_asked_again(
    engine: DynamoEngine, stub: Stub, clock: LeapingClock, busy: Said
) -> None:
    stub.plan("PutItem", say(busy), say(busy), say(busy))
    assert await engine.perform(PUT) == Reply(units=Units(write=1))
    assert len(clock.slept) == 3


async def test_each_retry_is_reported_with_the_code_of_its_error(
    other: DynamoEngine, open_engine: Open, stub: Stub
) -> None:
    codes: list[str] = []
    engine = open_engine(on_retry=codes.append)
    stub.plan("PutItem", say(fault("ThrottlingException")), drop)
    await engine.perform(PUT)
    assert codes == ["throttled", "endpoint_unreachable"]


@pytest.mark.parametrize("busy", BUSY_TRANSACTION)
async def test_a_transaction_in_anothers_way_is_asked_again(
    engine: DynamoEngine, stub: Stub, busy: Said
) -> None:
    stub.plan("TransactWriteItems", say(busy), say(busy))
    assert (await engine.perform(TRANSACTION)).error is None


@pytest.mark.parametrize("operation", [GET, PUT, TRANSACTION])
async def test_a_service_that_stays_busy_is_given_up(
    engine: DynamoEngine, stub: Stub, clock: LeapingClock, operation: Any
) -> None:
    for name in ("GetItem", "PutItem", "TransactWriteItems"):
        stub.always(name, say(fault("ThrottlingException", "Rate exceeded")))
    with pytest.raises(Throttled, match="Rate exceeded"):
        await engine.perform(operation)
    assert clock.monotonic() == pytest.approx(20)


async def test_pauses_grow_and_are_drawn_at_random(
    open_engine: Open, stub: Stub, clock: LeapingClock
) -> None:
    stub.always("GetItem", say(fault("ThrottlingException")))
    engine = open_engine(ids=Drawn(1.0), retry_budget_seconds=30)
    with pytest.raises(Throttled):
        await engine.perform(GET)
    assert clock.slept[:9] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert sum(clock.slept) == pytest.approx(30)
    clock.slept.clear()
    with pytest.raises(Throttled):
        await open_engine(ids=Drawn(0.5), retry_budget_seconds=1).perform(GET)
    assert clock.slept[:4] == [0.025, 0.05, 0.1, 0.2]


class Drawn:
    """Random numbers that are always the same."""

    def __init__(self, number: float) -> None:
        self._number = number

    def new(self) -> str:
        raise NotImplementedError

    def random(self) -> float:
        return self._number


async def test_without_a_budget_everything_is_tried_once(open_engine: Open, stub: Stub) -> None:
    stub.always("GetItem", drop)
    with pytest.raises(EndpointUnreachable):
        await open_engine(retry_budget_seconds=0).perform(GET)
    assert len(stub.asked) == 1


# --- a service that cannot be reached or understood ----------------------------------------------


@pytest.mark.parametrize("operation", [GET, PUT, TRANSACTION])
async def test_an_endpoint_where_nobody_listens(
    open_engine: Open, clock: LeapingClock, operation: Any
) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(EndpointUnreachable, match=endpoint):
        await open_engine(endpoint).perform(operation)
    assert clock.monotonic() == pytest.approx(20)


async def test_a_host_that_does_not_exist(open_engine: Open) -> None:
    with pytest.raises(EndpointUnreachable, match=r"nowhere\.invalid"):
        await open_engine("http://nowhere.invalid:8000").perform(GET)


async def test_an_endpoint_that_does_not_speak_tls(open_engine: Open, clock: LeapingClock) -> None:
    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(EndpointUnreachable, match="ssl"):
            await open_engine(f"https://127.0.0.1:{port}").perform(GET)
    assert clock.monotonic() == pytest.approx(20)


async def test_an_endpoint_that_is_not_trusted_is_not_asked_again(
    open_engine: Open, clock: LeapingClock, tmp_path: Path
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(self_signed(tmp_path / "certificate.pem"))
    async with await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=tls) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(EndpointUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
            await open_engine(f"https://127.0.0.1:{port}").perform(GET)
    assert clock.slept == []


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


@pytest.mark.parametrize("broken", [garble, corrupt, say(Said(301, b"", {}))])
async def test_an_answer_that_cannot_be_read(engine: DynamoEngine, stub: Stub, broken: Any) -> None:
    stub.always("GetItem", broken)
    with pytest.raises(StoreUnavailable, match="cannot be read") as raised:
        await engine.perform(GET)
    assert type(raised.value) is StoreUnavailable


async def test_a_service_that_fails_within(engine: DynamoEngine, stub: Stub) -> None:
    stub.always("GetItem", say(Said(503, b"<html>Service Unavailable", {})))
    with pytest.raises(StoreUnavailable, match="HTTP 503: <html>Service Unavailable"):
        await engine.perform(GET)


# --- a service that says no ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (fault("UnrecognizedClientException", "why"), AccessDenied),
        (fault("InvalidSignatureException", "why"), AccessDenied),
        (fault("AccessDeniedException", "why"), AccessDenied),
        (fault("MissingAuthenticationTokenException", "why"), AccessDenied),
        (Said(403, b"why", {}), AccessDenied),
        (fault("ValidationException", "why"), InvalidRequest),
        (fault("SomethingNewException", "why"), InvalidRequest),
        (
            fault("ValidationException", "The provided key element does not match the schema: why"),
            StoreMismatched,
        ),
        (
            fault("ValidationException", "The table does not have the specified index: why"),
            StoreMismatched,
        ),
    ],
)
async def test_what_no_waiting_mends_is_said_at_once(
    engine: DynamoEngine, stub: Stub, clock: LeapingClock, said: Said, error: type[HoldfastError]
) -> None:
    stub.always("GetItem", say(said))
    with pytest.raises(error, match="why") as raised:
        await engine.perform(GET)
    assert type(raised.value) is error
    assert clock.slept == []


INVALID_UPDATES = [
    ("An operand in the update expression has an incorrect data type", InvalidWrite),
    ("Item size to update has exceeded the maximum allowed size", ItemTooLarge),
    (
        "Number overflow. Attempting to store a number with magnitude larger than supported range",
        InvalidItem,
    ),
    ("Attempting to store more than 38 significant digits in a Number", InvalidItem),
    ("something else", InvalidRequest),
]


@pytest.mark.parametrize(("message", "error"), INVALID_UPDATES)
async def test_an_update_that_does_not_fit_what_stands_there(
    engine: DynamoEngine, stub: Stub, message: str, error: type[HoldfastError]
) -> None:
    update = Update(key=KEY, add={"n": 1})
    stub.plan("UpdateItem", say(fault("ValidationException", message)))
    answer = await engine.perform(WriteItem(update, "nothing"))
    assert type(answer.error) is error
    assert "Key(pk='p', sk='s')" in str(answer.error)
    assert answer.units == Units(write=1)


@pytest.mark.parametrize(("message", "error"), INVALID_UPDATES)
async def test_likewise_in_a_transaction(
    engine: DynamoEngine, stub: Stub, message: str, error: type[HoldfastError]
) -> None:
    said = cancelled("TransactionConflict", "ValidationError", message=message)
    stub.plan("TransactWriteItems", say(said))
    answer = await engine.perform(TRANSACTION)
    assert type(answer.error) is error
    assert "Key(pk='p', sk='t')" in str(answer.error)
    assert answer.units == Units(write=4)


async def test_a_condition_that_failed_counts_more_than_a_conflict(
    engine: DynamoEngine, stub: Stub
) -> None:
    item = {"PK": {"S": "p"}, "SK": {"S": "t"}, "x": {"S": "x" * 1500}}
    said = cancelled("TransactionConflict", "ConditionalCheckFailed", item=item)
    stub.plan("TransactWriteItems", say(said))
    answer = await engine.perform(TRANSACTION)
    assert isinstance(answer.error, TransactionCancelled)
    assert answer.error.failed == (1,)
    assert answer.error.items == {1: {"PK": "p", "SK": "t", "x": "x" * 1500}}
    assert "Key(pk='p', sk='t')" in str(answer.error)
    assert answer.units == Units(write=6)


# --- a table that is not there, or not yet -------------------------------------------------------


async def test_a_table_that_is_not_there(open_engine: Open, stub: Stub) -> None:
    with pytest.raises(StoreNotFound) as raised:
        await open_engine(table="nowhere").perform(GET)
    assert str(raised.value) == (
        f"there is no table 'nowhere' in us-east-1 at {stub.endpoint}; run holdfast store create, "
        "with this store's address"
    )


@pytest.mark.parametrize("operation", [GET, PUT])
async def test_something_else_than_dynamodb_is_not_taken_at_its_word(
    open_engine: Open, stub: Stub, operation: Any
) -> None:
    for name in ("GetItem", "PutItem", "DescribeTable"):
        stub.always(name, say(Said(200, b'{"status": "ok"}', {})))
    engine = open_engine()
    with pytest.raises(StoreUnavailable, match="not a response of DynamoDB"):
        await engine.perform(operation)
    with pytest.raises(StoreUnavailable, match="not a response of DynamoDB"):
        await engine.create()


async def test_to_wait_for_a_turn_ends_with_the_budget(
    open_engine: Open, other: DynamoEngine, stub: Stub
) -> None:
    stub.always("GetItem", stall)
    # In real time, since that is what one waits for a turn: the first holds it for a second.
    engine = open_engine(
        clock=SystemClock(), in_flight_max=1, retry_budget_seconds=0.2, timeout_seconds=1
    )
    outcomes = await asyncio.gather(
        *(engine.perform(GET) for _ in range(4)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [EndpointUnreachable] * 4
    assert sum("too many other requests" in str(outcome) for outcome in outcomes) == 3


async def test_a_table_that_is_being_made_is_awaited(
    engine: DynamoEngine, stub: Stub, clock: LeapingClock
) -> None:
    missing = say(fault("ResourceNotFoundException"))
    making = say(answer(Table={"TableStatus": "CREATING"}))
    stub.plan("PutItem", missing, missing)
    stub.plan("DescribeTable", making, making)
    assert (await engine.perform(PUT)).error is None
    assert len(clock.slept) == 2


async def test_a_table_that_does_not_get_ready(engine: DynamoEngine, stub: Stub) -> None:
    stub.always("PutItem", say(fault("ResourceNotFoundException")))
    stub.always("DescribeTable", say(answer(Table={"TableStatus": "CREATING"})))
    with pytest.raises(StoreUnavailable, match="still being created"):
        await engine.perform(PUT)


@pytest.mark.parametrize(
    "described", [fault("AccessDeniedException"), answer(Table={"TableStatus": "DELETING"})]
)
async def test_where_nothing_can_be_learnt_the_table_is_missing(
    engine: DynamoEngine, stub: Stub, described: Said
) -> None:
    stub.always("PutItem", say(fault("ResourceNotFoundException")))
    stub.always("DescribeTable", say(described))
    with pytest.raises(StoreNotFound):
        await engine.perform(PUT)


async def test_an_index_that_is_being_filled_is_awaited(engine: DynamoEngine, stub: Stub) -> None:
    message = "Cannot read from backfilling global secondary index: GSI1"
    stub.plan("GetItem", say(fault("ValidationException", message)))
    assert await engine.perform(GET) == Reply(units=Units(read=1))
