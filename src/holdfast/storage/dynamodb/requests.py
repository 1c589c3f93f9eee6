"""The requests of DynamoDB for the operations of a table."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.storage.dynamodb.attributes import attributes_of, key_attributes
from holdfast.storage.dynamodb.expressions import (
    Placeholders,
    condition_text,
    range_text,
    update_text,
)
from holdfast.storage.layout import PK, SK, Key
from holdfast.storage.operations import QueryItems, Returning, WriteItem
from holdfast.storage.writes import Check, Condition, Delete, Put, TransactionWrite, Update

__all__ = [
    "DynamoRequest",
    "batch_get_request",
    "batch_write_request",
    "get_request",
    "query_request",
    "transact_request",
    "write_entry",
    "write_request",
]

_CAPACITY = {"ReturnConsumedCapacity": "INDEXES"}
_EXPECTED = {"DescribeTable": "Table", "CreateTable": "TableDescription"}
_encode = msgspec.json.Encoder().encode


class DynamoRequest(msgspec.Struct, frozen=True):
    """A request as it is sent, and sent again byte for byte if the response is lost."""

    operation: str
    body: bytes
    expects: str | None = None
    """A field of every response. A response without it does not come from DynamoDB."""

    @classmethod
    def of(cls, operation: str, **fields: Any) -> DynamoRequest:
        """Return a request with these fields."""
        metered = "ConsumedCapacity" if fields.keys() >= _CAPACITY.keys() else None
        return cls(operation, _encode(fields), metered or _EXPECTED.get(operation))


def get_request(table: str, key: Key, *, eventual: bool) -> DynamoRequest:
    """Return the request that reads one item."""
    return DynamoRequest.of(
        "GetItem",
        TableName=table,
        Key=key_attributes(key),
        ConsistentRead=not eventual,
        **_CAPACITY,
    )


def batch_get_request(table: str, keys: list[Any], *, eventual: bool) -> DynamoRequest:
    """Return the request that reads up to 100 items, with the keys in DynamoDB's JSON."""
    wanted = {"Keys": keys, "ConsistentRead": not eventual}
    return DynamoRequest.of("BatchGetItem", RequestItems={table: wanted}, **_CAPACITY)


def batch_write_request(table: str, entries: list[Any]) -> DynamoRequest:
    """Return the request that performs up to 25 writes, each encoded by `write_entry`."""
    return DynamoRequest.of("BatchWriteItem", RequestItems={table: entries}, **_CAPACITY)


def write_entry(write: Put | Delete) -> bytes:
    """Return one write of a batch as bytes, so that its size is known."""
    if isinstance(write, Put):
        return _encode({"PutRequest": {"Item": attributes_of(write.item)}})
    return _encode({"DeleteRequest": {"Key": key_attributes(write.key)}})


def query_request(table: str, query: QueryItems) -> DynamoRequest:
    """Return the request that reads one page."""
    placeholders = Placeholders()
    index = query.index
    names = (index.pk, index.sk) if index else (PK, SK)
    fields: dict[str, Any] = {
        "TableName": table,
        "KeyConditionExpression": range_text(query.pk, query.range, placeholders, names=names),
        **placeholders.fields(),
        "ScanIndexForward": query.forward,
        **_CAPACITY,
    }
    if index:
        # DynamoDB refuses consistent reads of a global index.
        fields["IndexName"] = index.name
    else:
        fields["ConsistentRead"] = not query.eventual
    if query.limit is not None:
        fields["Limit"] = query.limit
    if query.after is not None:
        fields["ExclusiveStartKey"] = attributes_of(query.after)
    return DynamoRequest.of("Query", **fields)


def write_request(table: str, operation: WriteItem) -> DynamoRequest:
    """Return the request that performs one write."""
    write = operation.write
    fields = {**_write_fields(table, write), **_CAPACITY}
    returned = _return_values(write, operation.returning)
    if returned:
        fields["ReturnValues"] = returned
    return DynamoRequest.of(f"{type(write).__name__}Item", **fields)


def transact_request(
    table: str, writes: tuple[TransactionWrite, ...], *, client_token: str
) -> DynamoRequest:
    """Return the request that performs all of several writes or none.

    The service performs it once, however often it is sent with one client token in ten minutes.
    """
    return DynamoRequest.of(
        "TransactWriteItems",
        TransactItems=[
            {_TRANSACT_VERBS[type(write)]: _write_fields(table, write)} for write in writes
        ],
        ClientRequestToken=client_token,
        **_CAPACITY,
    )


_TRANSACT_VERBS: dict[type[TransactionWrite], str] = {
    Put: "Put",
    Update: "Update",
    Delete: "Delete",
    Check: "ConditionCheck",
}


def _write_fields(table: str, write: TransactionWrite) -> dict[str, Any]:
    placeholders = Placeholders()
    fields: dict[str, Any] = {"TableName": table}
    if isinstance(write, Put):
        fields["Item"] = attributes_of(write.item)
    else:
        fields["Key"] = key_attributes(write.key)
    if isinstance(write, Update):
        fields["UpdateExpression"] = update_text(write, placeholders)
    if write.condition is not None:
        _add_condition(fields, write.condition, placeholders)
    fields.update(placeholders.fields())
    return fields


def _add_condition(
    fields: dict[str, Any], condition: Condition, placeholders: Placeholders
) -> None:
    fields["ConditionExpression"] = condition_text(condition, placeholders)
    fields["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"


def _return_values(write: Put | Update | Delete, returning: Returning) -> str | None:
    match returning:
        case "old":
            return "ALL_OLD"
        case "new" if isinstance(write, Update):
            return "ALL_NEW"
        case _:
            # The caller knows the new item of a Put, and a Delete leaves none.
            return None
