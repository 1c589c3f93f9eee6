"""Making the table, and the data by which others may make it."""

from __future__ import annotations

import asyncio
import copy
import json
import urllib.request
from typing import Any

import boto3
import pytest

from holdfast.errors import (
    AccessDenied,
    InvalidRequest,
    StoreMismatched,
    StoreUnavailable,
)
from holdfast.storage.dynamodb import (
    DynamoEngine,
    cloudformation_template,
    create_table_params,
    terraform_definition,
)
from holdfast.storage.dynamodb.table_definition import differences
from holdfast.storage.layout import LAYOUT, Index, Layout
from tests.dynamodb.conftest import LeapingClock, Open
from tests.servers.stub_dynamodb import Asked, Said, Stub, answer, fault, forward, say


def described(endpoint: str, table: str) -> dict[str, Any]:
    credential = "testing/20260101/us-east-1/dynamodb/aws4_request"
    request = urllib.request.Request(
        endpoint,
        json.dumps({"TableName": table}).encode(),
        {
            "X-Amz-Target": "DynamoDB_20120810.DescribeTable",
            "Content-Type": "application/x-amz-json-1.0",
            "Authorization": f"AWS4-HMAC-SHA256 Credential={credential}",
        },
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["Table"]


async def test_the_table_is_made_as_it_is_defined(
    open_engine: Open, table_name: str, dynamodb_local: str
) -> None:
    await open_engine().create()
    table = described(dynamodb_local, table_name)
    assert table["KeySchema"] == [
        {"AttributeName": "PK", "KeyType": "HASH"},
        {"AttributeName": "SK", "KeyType": "RANGE"},
    ]
    indexes = {index["IndexName"]: index for index in table["GlobalSecondaryIndexes"]}
    assert indexes["GSI1"]["Projection"] == {"ProjectionType": "KEYS_ONLY"}
    assert indexes["GSI2"]["Projection"] == {
        "ProjectionType": "INCLUDE",
        "NonKeyAttributes": ["status", "show"],
    }
    assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert table["StreamSpecification"] == {
        "StreamEnabled": True,
        "StreamViewType": "NEW_AND_OLD_IMAGES",
    }


async def test_items_expire_and_backups_are_kept(moto_server: str, open_engine: Open) -> None:
    engine = open_engine(moto_server, table="expiring")
    await engine.create()
    await engine.create()
    client = boto3.client("dynamodb", endpoint_url=moto_server)
    try:
        expiry = client.describe_time_to_live(TableName="expiring")["TimeToLiveDescription"]
        backups = client.describe_continuous_backups(TableName="expiring")
    finally:
        client.close()
    assert expiry == {"TimeToLiveStatus": "ENABLED", "AttributeName": "ttl"}
    recovery = backups["ContinuousBackupsDescription"]["PointInTimeRecoveryDescription"]
    assert recovery["PointInTimeRecoveryStatus"] == "ENABLED"


async def test_to_make_it_again_changes_nothing(
    engine: DynamoEngine, stub: Stub, table_name: str, dynamodb_local: str
) -> None:
    before = described(dynamodb_local, table_name)
    await engine.create()
    assert described(dynamodb_local, table_name) == before
    assert stub.asked_for("CreateTable") == []


async def test_many_may_make_it_at_once(open_engine: Open, stub: Stub) -> None:
    arrived = 0
    all_arrived = asyncio.Event()

    async def together(stub: Stub, asked: Asked) -> Said | None:
        nonlocal arrived
        arrived += 1
        if arrived == 4:
            all_arrived.set()
        await all_arrived.wait()
        return await stub.forward(asked)

    stub.plan("CreateTable", *[together] * 4)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(open_engine().create())
    assert len(stub.asked_for("CreateTable")) == 4


async def test_it_waits_until_the_table_and_its_indexes_are_ready(
    engine: DynamoEngine, stub: Stub, clock: LeapingClock
) -> None:
    def changed(table: str | None = None, index: str | None = None) -> Any:
        async def step(stub: Stub, asked: Asked) -> Said | None:
            reply = json.loads((await stub.forward(asked)).body)
            if table:
                reply["Table"]["TableStatus"] = table
            if index:
                reply["Table"]["GlobalSecondaryIndexes"][1]["IndexStatus"] = index
            return answer(**reply)

        return step

    missing = say(fault("ResourceNotFoundException"))
    stub.plan("DescribeTable", missing, missing, changed("CREATING"), changed(index="CREATING"))
    stub.plan("CreateTable", say(fault("ResourceInUseException")))
    await engine.create()
    assert clock.slept == [1.0, 1.0, 1.0]
    stub.plan("DescribeTable", forward, changed("DELETING"))
    with pytest.raises(StoreUnavailable, match="being deleted"):
        await engine.create()


async def test_it_does_not_wait_for_ever(engine: DynamoEngine, stub: Stub) -> None:
    stub.always("DescribeTable", say(fault("ResourceNotFoundException")))
    with pytest.raises(StoreUnavailable, match="does not become ready"):
        await engine.create()


async def test_where_it_may_not_be_made(open_engine: Open, stub: Stub) -> None:
    stub.always("CreateTable", say(fault("AccessDeniedException", "not authorized")))
    with pytest.raises(AccessDenied, match="not authorized"):
        await open_engine().create()


@pytest.mark.parametrize("operation", ["UpdateTimeToLive", "UpdateContinuousBackups"])
async def test_what_the_service_refuses_is_an_error(
    engine: DynamoEngine, stub: Stub, operation: str
) -> None:
    stub.plan(operation, say(fault("AccessDeniedException", "not authorized")))
    with pytest.raises(AccessDenied, match="not authorized"):
        await engine.create()
    stub.plan(operation, say(fault("ValidationException", "not so")))
    if operation == "UpdateTimeToLive":
        disabled = answer(TimeToLiveDescription={"TimeToLiveStatus": "DISABLED"})
        stub.plan("DescribeTimeToLive", say(disabled))
    with pytest.raises(InvalidRequest, match="not so"):
        await engine.create()


async def test_backups_that_are_still_being_prepared_are_awaited(
    engine: DynamoEngine, stub: Stub, clock: LeapingClock
) -> None:
    preparing = say(fault("ContinuousBackupsUnavailableException"))
    stub.plan("UpdateContinuousBackups", preparing, preparing, say(answer()))
    await engine.create()
    assert len(clock.slept) == 2


@pytest.mark.parametrize(
    ("expiry", "refused"),
    [
        ({"TimeToLiveStatus": "ENABLING", "AttributeName": "ttl"}, None),
        ({"TimeToLiveStatus": "ENABLED", "AttributeName": "expires"}, "expire by .*'expires'"),
    ],
)
async def test_items_that_expire_already(
    engine: DynamoEngine, stub: Stub, expiry: dict[str, str], refused: str | None
) -> None:
    stub.plan("DescribeTimeToLive", say(answer(TimeToLiveDescription=expiry)))
    if refused is None:
        await engine.create()
    else:
        with pytest.raises(StoreMismatched, match=refused):
            await engine.create()


# --- a table that is made otherwise --------------------------------------------------------------


@pytest.fixture
def table(other: DynamoEngine, dynamodb_local: str, table_name: str) -> Any:
    """What the service tells of a table that is made as it should be."""
    return described(dynamodb_local, table_name)


async def test_a_table_with_other_indexes_is_left_alone(
    other: DynamoEngine, open_engine: Open
) -> None:
    layout = Layout((Index("GSI1", include=("x",)), Index("GSI3")))
    with pytest.raises(StoreMismatched) as raised:
        await open_engine(layout=layout).create()
    assert "the projection of its index GSI1 is KEYS_ONLY, not INCLUDE x" in str(raised.value)
    assert "it has no index GSI3" in str(raised.value)


def test_every_difference_is_named(table: Any) -> None:
    assert differences(table, LAYOUT) == []
    for change, named in [
        (lambda t: t["KeySchema"].pop(), "its key is PK, not PK + SK"),
        (
            lambda t: t["GlobalSecondaryIndexes"][0]["KeySchema"].pop(),
            "the key of its index GSI1 is GSI1PK, not GSI1PK + GSI1SK",
        ),
        (
            lambda t: t["AttributeDefinitions"][0].update(AttributeType="N"),
            "its attribute {} is of type N, not S",
        ),
        (lambda t: t.pop("GlobalSecondaryIndexes"), "it has no index GSI1"),
        (lambda t: t.pop("StreamSpecification"), "its stream is off, not NEW_AND_OLD_IMAGES"),
    ]:
        changed = copy.deepcopy(table)
        changed["GlobalSecondaryIndexes"].sort(key=lambda index: index["IndexName"])
        change(changed)
        name = changed["AttributeDefinitions"][0]["AttributeName"]
        assert differences(changed, LAYOUT)[0] == named.format(name)


def test_what_an_index_includes_may_come_in_any_order(table: Any) -> None:
    for index in table["GlobalSecondaryIndexes"]:
        index["Projection"].get("NonKeyAttributes", []).reverse()
    assert differences(table, LAYOUT) == []


def test_further_indexes_do_not_count(table: Any) -> None:
    table["GlobalSecondaryIndexes"].append({"IndexName": "theirs"})
    assert differences(table, LAYOUT) == []


# --- as data -------------------------------------------------------------------------------------


def test_the_definition_is_what_the_service_takes(dynamodb_local: str) -> None:
    client = boto3.client("dynamodb", endpoint_url=dynamodb_local)
    try:
        client.create_table(
            **create_table_params("by-hand")
        )  # boto3 checks every field's name and type
    finally:
        client.close()
    assert differences(described(dynamodb_local, "by-hand"), LAYOUT) == []


async def test_the_template_makes_the_same_table(moto_server: str, open_engine: Open) -> None:
    text = json.dumps(cloudformation_template("by-template"))
    client = boto3.client("cloudformation", endpoint_url=moto_server)
    try:
        client.create_stack(StackName="stack", TemplateBody=text)
    finally:
        client.close()
    assert differences(described(moto_server, "by-template"), LAYOUT) == []
    properties = cloudformation_template("by-template")["Resources"]["Table"]["Properties"]
    assert properties["TimeToLiveSpecification"] == {"AttributeName": "ttl", "Enabled": True}
    assert properties["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    await open_engine(moto_server, table="by-template").create()


def test_terraform_defines_the_same_table() -> None:
    params = create_table_params("by-terraform")
    defined = terraform_definition("by-terraform")["resource"]["aws_dynamodb_table"]["holdfast"]
    key = [(each["AttributeName"], each["KeyType"]) for each in params["KeySchema"]]
    assert key == [(defined["hash_key"], "HASH"), (defined["range_key"], "RANGE")]
    assert defined["attribute"] == [
        {"name": each["AttributeName"], "type": each["AttributeType"]}
        for each in params["AttributeDefinitions"]
    ]
    indexes = {each["name"]: each for each in defined["global_secondary_index"]}
    assert len(indexes) == len(params["GlobalSecondaryIndexes"])
    for index in params["GlobalSecondaryIndexes"]:
        found = indexes[index["IndexName"]]
        assert [each["AttributeName"] for each in index["KeySchema"]] == [
            found["hash_key"],
            found["range_key"],
        ]
        projection = {"ProjectionType": found["projection_type"]}
        if "non_key_attributes" in found:
            projection["NonKeyAttributes"] = found["non_key_attributes"]
        assert projection == index["Projection"]
    template = cloudformation_template("by-terraform")["Resources"]["Table"]["Properties"]
    assert defined["billing_mode"] == template["BillingMode"]
    assert defined["stream_view_type"] == template["StreamSpecification"]["StreamViewType"]
    assert defined["ttl"]["attribute_name"] == template["TimeToLiveSpecification"]["AttributeName"]
    assert defined["ttl"]["enabled"]
    assert defined["point_in_time_recovery"] == {"enabled": True}
    assert defined["lifecycle"] == {"prevent_destroy": True}
