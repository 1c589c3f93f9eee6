"""Capacity units as the service reports them."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.storage.dynamodb.capacity import Kind, reported_units
from holdfast.storage.units import NO_UNITS, Units


@pytest.mark.parametrize(
    ("capacity", "kind", "units"),
    [
        (None, "write", NO_UNITS),
        ([], "write", NO_UNITS),
        ({"CapacityUnits": 0.5}, "read", Units(read=0.5)),
        ({"CapacityUnits": 3.0, "Table": {"CapacityUnits": 3.0}}, "write", Units(write=3)),
        (
            {
                "CapacityUnits": 6.0,
                "Table": {"CapacityUnits": 1.0},
                "GlobalSecondaryIndexes": {
                    "GSI1": {"CapacityUnits": 2.0},
                    "GSI2": {"CapacityUnits": 3.0},
                },
            },
            "write",
            Units(write=1, index_write=5),
        ),
        (
            {
                "CapacityUnits": 0.5,
                "Table": {"CapacityUnits": 0.0},
                "GlobalSecondaryIndexes": {"GSI1": {"CapacityUnits": 0.5}},
            },
            "read",
            Units(index_read=0.5),
        ),
        (
            [
                {
                    "CapacityUnits": 3.0,
                    "WriteCapacityUnits": 3.0,
                    "Table": {"CapacityUnits": 2.0, "WriteCapacityUnits": 2.0},
                    "GlobalSecondaryIndexes": {
                        "GSI1": {"CapacityUnits": 1.0, "WriteCapacityUnits": 1.0}
                    },
                }
            ],
            "write",
            Units(write=2, index_write=1),
        ),
        # A transaction that was sent again is answered with the units of having read it.
        (
            [{"CapacityUnits": 2.0, "Table": {"CapacityUnits": 2.0, "ReadCapacityUnits": 2.0}}],
            "write",
            Units(read=2),
        ),
    ],
)
def test_units_are_told_apart(capacity: Any, kind: Kind, units: Units) -> None:
    reply = {} if capacity is None else {"ConsumedCapacity": capacity}
    assert reported_units(reply, kind) == units
