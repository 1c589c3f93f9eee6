"""The definition of a table: for CreateTable, CloudFormation, Terraform, and to compare with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from holdfast.errors import InvalidUrl
from holdfast.storage.layout import LAYOUT, PK, SK, TTL, Index, Layout

__all__ = [
    "cloudformation_template",
    "create_table_params",
    "differences",
    "terraform_definition",
    "validate_table_name",
]

_TABLE_NAME = re.compile(r"[a-zA-Z0-9_.-]{3,255}")
_STREAM = "NEW_AND_OLD_IMAGES"


def validate_table_name(table: str) -> str:
    """Return the name of a table, if it is valid.

    Raises:
        InvalidUrl: no table can have this name.
    """
    if not _TABLE_NAME.fullmatch(table):
        raise InvalidUrl(
            f"table must be 3 to 255 letters, digits, '_', '.' or '-', got {table!r:.80}",
            field="table",
        )
    return table


def create_table_params(table: str, layout: Layout = LAYOUT) -> dict[str, Any]:
    """Return the parameters of CreateTable.

    Expiry of items and point-in-time recovery are not among them: each needs another call.
    `cloudformation_template` has all three.
    """
    return {
        "TableName": validate_table_name(table),
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [
            {"AttributeName": name, "AttributeType": "S"} for name in sorted(layout.key_attributes)
        ],
        "KeySchema": _key_schema(PK, SK),
        "GlobalSecondaryIndexes": [_index_params(index) for index in layout.indexes],
        "StreamSpecification": {"StreamEnabled": True, "StreamViewType": _STREAM},
    }


def cloudformation_template(table: str, layout: Layout = LAYOUT) -> dict[str, Any]:
    """Return a CloudFormation template for the complete table.

    CloudFormation keeps the table when its stack is deleted, because its data would be lost.
    """
    properties = create_table_params(table, layout)
    properties["StreamSpecification"] = {"StreamViewType": _STREAM}
    properties["TimeToLiveSpecification"] = {"AttributeName": TTL, "Enabled": True}
    properties["PointInTimeRecoverySpecification"] = {"PointInTimeRecoveryEnabled": True}
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"The table {table} of Holdfast",
        "Resources": {
            "Table": {
                "Type": "AWS::DynamoDB::Table",
                "DeletionPolicy": "Retain",
                "UpdateReplacePolicy": "Retain",
                "Properties": properties,
            }
        },
        "Outputs": {
            "TableArn": {"Value": {"Fn::GetAtt": ["Table", "Arn"]}},
            "StreamArn": {"Value": {"Fn::GetAtt": ["Table", "StreamArn"]}},
        },
    }


def terraform_definition(table: str, layout: Layout = LAYOUT) -> dict[str, Any]:
    """Return the complete table as a Terraform configuration in JSON.

    Terraform refuses to destroy the table, because its data would be lost.
    """
    params = create_table_params(table, layout)
    return {
        "resource": {
            "aws_dynamodb_table": {
                "holdfast": {
                    "name": params["TableName"],
                    "billing_mode": params["BillingMode"],
                    **_terraform_key(params["KeySchema"]),
                    "attribute": [
                        {"name": each["AttributeName"], "type": each["AttributeType"]}
                        for each in params[_TYPES]
                    ],
                    "global_secondary_index": [
                        _terraform_index(index) for index in params["GlobalSecondaryIndexes"]
                    ],
                    "stream_enabled": True,
                    "stream_view_type": _STREAM,
                    "ttl": {"attribute_name": TTL, "enabled": True},
                    "point_in_time_recovery": {"enabled": True},
                    "lifecycle": {"prevent_destroy": True},
                }
            }
        },
        "output": {
            "table_arn": {"value": "${aws_dynamodb_table.holdfast.arn}"},
            "stream_arn": {"value": "${aws_dynamodb_table.holdfast.stream_arn}"},
        },
    }


def _terraform_key(schema: list[dict[str, str]]) -> dict[str, str]:
    partition, sort = (each["AttributeName"] for each in schema)
    return {"hash_key": partition, "range_key": sort}


def _terraform_index(index: Mapping[str, Any]) -> dict[str, Any]:
    projection = index["Projection"]
    found = {
        "name": index["IndexName"],
        **_terraform_key(index["KeySchema"]),
        "projection_type": projection["ProjectionType"],
    }
    if "NonKeyAttributes" in projection:
        found["non_key_attributes"] = projection["NonKeyAttributes"]
    return found


def differences(description: Mapping[str, Any], layout: Layout) -> list[str]:
    """Return how a table, as DescribeTable describes it, differs from the layout.

    Additional indexes do not count: they cost money, but do no harm.
    """
    wanted = create_table_params(description["TableName"], layout)
    found = _difference("its key", wanted["KeySchema"], description.get("KeySchema"))
    types = {each["AttributeName"]: each["AttributeType"] for each in _list(description, _TYPES)}
    for name in sorted(layout.key_attributes):
        if types.get(name, "S") != "S":
            found.append(f"its attribute {name} is of type {types[name]}, not S")
    indexes = {each["IndexName"]: each for each in _list(description, "GlobalSecondaryIndexes")}
    for index in layout.indexes:
        if index.name not in indexes:
            found.append(f"it has no index {index.name}")
            continue
        existing, wanted_index = indexes[index.name], _index_params(index)
        where = f"its index {index.name}"
        found += _difference(
            f"the key of {where}", wanted_index["KeySchema"], existing["KeySchema"]
        )
        found += _difference(
            f"the projection of {where}",
            _projection(wanted_index["Projection"]),
            _projection(existing["Projection"]),
        )
    stream = description.get("StreamSpecification", {})
    found += _difference("its stream", _STREAM, stream.get("StreamViewType"))
    return found


_TYPES = "AttributeDefinitions"


def _list(description: Mapping[str, Any], name: str) -> list[Any]:
    return description.get(name) or []


def _difference(what: str, wanted: Any, existing: Any) -> list[str]:
    return [] if wanted == existing else [f"{what} is {_shown(existing)}, not {_shown(wanted)}"]


def _shown(value: Any) -> str:
    match value:
        case [*parts]:
            return " + ".join(part["AttributeName"] for part in parts)
        case None:
            return "off"
        case _:
            return str(value)


def _projection(projection: Mapping[str, Any]) -> str:
    names = sorted(projection.get("NonKeyAttributes") or [])
    return " ".join([projection["ProjectionType"], *names])


def _index_params(index: Index) -> dict[str, Any]:
    projection: dict[str, Any] = {"ProjectionType": "KEYS_ONLY"}
    if index.include:
        projection = {"ProjectionType": "INCLUDE", "NonKeyAttributes": list(index.include)}
    return {
        "IndexName": index.name,
        "KeySchema": _key_schema(index.pk, index.sk),
        "Projection": projection,
    }


def _key_schema(pk: str, sk: str) -> list[dict[str, str]]:
    return [
        {"AttributeName": pk, "KeyType": "HASH"},
        {"AttributeName": sk, "KeyType": "RANGE"},
    ]
