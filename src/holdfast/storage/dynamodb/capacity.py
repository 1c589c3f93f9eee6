"""Capacity units in the responses of DynamoDB, as `Units`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from holdfast.storage.units import NO_UNITS, Units

__all__ = ["Kind", "reported_units"]

Kind = Literal["read", "write"]


def reported_units(reply: Mapping[str, Any], kind: Kind) -> Units:
    """Return the units that a response reports; ``kind`` says what the request did."""
    reported: Any = reply.get("ConsumedCapacity")
    if not reported:
        return NO_UNITS
    if isinstance(reported, list):
        units = NO_UNITS
        for each in reported:  # pyright: ignore[reportUnknownVariableType]
            units += _table_units(each, kind)  # pyright: ignore[reportUnknownArgumentType]
        return units
    return _table_units(reported, kind)


def _table_units(capacity: Mapping[str, Any], kind: Kind) -> Units:
    table_read, table_write = _part(capacity.get("Table", capacity), kind)
    index_read = index_write = 0.0
    for index in capacity.get("GlobalSecondaryIndexes", {}).values():
        read, write = _part(index, kind)
        index_read += read
        index_write += write
    return Units(table_read, table_write, index_read, index_write)


def _part(capacity: Mapping[str, Any], kind: Kind) -> tuple[float, float]:
    # A transaction says which units they are: if it is sent again after it was written, the
    # response reports read units.
    if "ReadCapacityUnits" in capacity or "WriteCapacityUnits" in capacity:
        return capacity.get("ReadCapacityUnits", 0), capacity.get("WriteCapacityUnits", 0)
    units: float = capacity.get("CapacityUnits", 0)
    return (units, 0) if kind == "read" else (0, units)
