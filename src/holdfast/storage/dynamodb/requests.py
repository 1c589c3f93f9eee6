"""Operations as the bodies of DynamoDB's requests."""

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
    """What is sent, and sent again byte for byte where the answer is lost."""

    operation: str
    body: bytes
    expects: str | None = None
    """What every answer to it holds; one without it comes from something else than DynamoDB."""

    @classmethod
    def of(cls, operation: str, **fields: Any) -> DynamoRequest:
        """Return the request with those fields."""
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
    """Return the request that reads up to 100 items; the keys are in DynamoDB's JSON."""
    wanted = {"Keys": keys, "ConsistentRead": not eventual}
    return DynamoRequest.of("BatchGetItem", RequestItems={table: wanted}, **_CAPACITY)


def batch_write_request(table: str, entries: list[Any]) -> DynamoRequest:
    """Return the request that carries out up to 25 writes, each as `write_entry` gives it."""
    return DynamoRequest.of("BatchWriteItem", RequestItems={table: entries}, **_CAPACITY)


def write_entry(write: Put | Delete) -> bytes:
    """Return one write of a batch, encoded, so that its size is known."""
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
        # DynamoDB reads such an index only eventually, and refuses to be asked for more.
        fields["IndexName"] = index.name
    else:
        fields["ConsistentRead"] = not query.eventual
    if query.limit is not None:
        fields["Limit"] = query.limit
    if query.after is not None:
        fields["ExclusiveStartKey"] = attributes_of(query.after)
    return DynamoRequest.of("Query", **fields)


def write_request(table: str, operation: WriteItem) -> DynamoRequest:
    """Return the request that carries out one write."""
    write = operation.write
    fields = {**_write_fields(table, write), **_CAPACITY}
    returned = _return_values(write, operation.returning)
    if returned:
        fields["ReturnValues"] = returned
    return DynamoRequest.of(f"{type(write).__name__}Item", **fields)


def transact_request(
    table: str, writes: tuple[TransactionWrite, ...], *, client_token: str
) -> DynamoRequest:
    """Return the request that carries out several writes or none.

    Sent again with the same client token within ten minutes, it is carried out only once.
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
            # The new item of a Put is known, and after a Delete there is none.
            return None
