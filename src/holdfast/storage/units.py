"""Capacity units by the rules that DynamoDB documents.

- A write costs 1 unit per KB, rounded up, of the item before or after it, whichever is larger.
- An index costs extra for each entry that is put, changed or deleted. A changed index key counts as
  a delete and a put. An unchanged entry costs nothing.
- A failed condition costs as much as the larger of the existing item and the intended one.
- A read costs 1 unit per 4 KB, rounded up, and half of that if it is eventually consistent. Finding
  nothing costs as much as 4 KB. A query rounds the sum of its page, a batch rounds each item.
- In a transaction, a write or a check of the table costs double; index writes cost the same.
- Every write costs at least 1 unit.

Neither the documentation nor the service's responses say two things. This module assumes that an
empty page of a query costs as much as 4 KB, and that each write of a cancelled transaction costs
twice as much as a failed condition. DynamoDB returns the existing item only for a condition that
failed. For the other writes, this module assumes that there was no item.

The units also include the requests that S3 charges for, which `Blobs` counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.storage.item import Item, item_bytes, same_value
from holdfast.storage.layout import Layout
from holdfast.storage.writes import Put, TransactionWrite, item_after

__all__ = [
    "NO_UNITS",
    "READ_UNIT_BYTES",
    "WRITE_UNITS_MIN",
    "WRITE_UNIT_BYTES",
    "Units",
    "cancelled_units",
    "new_item_units",
    "query_units",
    "read_units",
    "refused_units",
    "sum_units",
    "transaction_units",
    "write_units",
]

READ_UNIT_BYTES = 4096
WRITE_UNIT_BYTES = 1024


class Units(msgspec.Struct, frozen=True):
    """Capacity units of the table and of its indexes, and requests for blobs."""

    read: float = 0
    write: float = 0
    index_read: float = 0
    index_write: float = 0
    blob_puts: int = 0
    """Requests at the price of a PUT, which include lists."""
    blob_gets: int = 0
    blob_bytes: int = 0
    """Bytes put and read. S3 does not charge for them inside its region."""

    def __add__(self, other: Units) -> Units:
        return Units(
            self.read + other.read,
            self.write + other.write,
            self.index_read + other.index_read,
            self.index_write + other.index_write,
            self.blob_puts + other.blob_puts,
            self.blob_gets + other.blob_gets,
            self.blob_bytes + other.blob_bytes,
        )

    @property
    def reads(self) -> float:
        """Read units of the table and its indexes."""
        return self.read + self.index_read

    @property
    def writes(self) -> float:
        """Write units of the table and its indexes."""
        return self.write + self.index_write


NO_UNITS = Units()
WRITE_UNITS_MIN = Units(write=1)
"""The cost of a write if the item is unknown, or if the update did not fit the item."""


def transaction_units(units: Units) -> Units:
    """Return the cost in a transaction of a write that costs these units by itself."""
    return Units(write=units.write * 2, index_write=units.index_write)


def cancelled_units(writes: Sequence[TransactionWrite], failed: Mapping[int, Item | None]) -> Units:
    """Return the cost of a cancelled transaction.

    ``failed`` maps the position of each write whose condition failed to the existing item.
    """
    refused = (refused_units(write, failed.get(n)) for n, write in enumerate(writes))
    return transaction_units(sum_units(refused))


def sum_units(units: Iterable[Units]) -> Units:
    """Return the sum of units."""
    result = NO_UNITS
    for some in units:
        result += some
    return result


def new_item_units(put: Put, layout: Layout) -> Units:
    """Return the cost of putting an item under a new key."""
    index_write = _index_writes(None, put.item, layout)
    return Units(write=_units_for(put.size, WRITE_UNIT_BYTES), index_write=index_write)


def write_units(old: Item | None, new: Item | None, layout: Layout) -> Units:
    """Return the cost of changing an item from ``old`` to ``new``."""
    size = max(item_bytes(old) if old else 0, item_bytes(new) if new else 0)
    return Units(
        write=_units_for(size, WRITE_UNIT_BYTES), index_write=_index_writes(old, new, layout)
    )


def refused_units(write: TransactionWrite, existing: Item | None) -> Units:
    """Return the cost of a write whose condition did not hold."""
    try:
        intended = item_after(write, existing)
    except InvalidRequest:
        intended = None
    size = max(item_bytes(item) if item else 0 for item in (existing, intended))
    return Units(write=_units_for(size, WRITE_UNIT_BYTES))


def read_units(item: Item | None, *, eventual: bool) -> Units:
    """Return the cost of reading one item, or of finding none."""
    return Units(read=_read_units_for(item_bytes(item) if item else 0, eventual))


def query_units(page_bytes: int, *, eventual: bool, index: bool) -> Units:
    """Return the cost of one page of a query."""
    units = _read_units_for(page_bytes, eventual or index)
    return Units(index_read=units) if index else Units(read=units)


def _index_writes(
    old: Mapping[str, Any] | None, new: Mapping[str, Any] | None, layout: Layout
) -> float:
    units = 0
    for index in layout.indexes:
        # Most items are in no index. Do not build entries for them.
        if (old is None or index.pk not in old) and (new is None or index.pk not in new):
            continue
        before, after = index.entry(old), index.entry(new)
        if same_value(before, after):
            continue
        moved = (
            before is None
            or after is None
            or before[index.pk] != after[index.pk]
            or before[index.sk] != after[index.sk]
        )
        sizes = [item_bytes(entry) for entry in (before, after) if entry is not None]
        for size in sizes if moved else [max(sizes)]:
            units += _units_for(size, WRITE_UNIT_BYTES)
    return units


def _read_units_for(size: int, eventual: bool) -> float:
    return _units_for(size, READ_UNIT_BYTES) * (0.5 if eventual else 1)


def _units_for(size: int, unit_bytes: int) -> int:
    return max(1, -(-size // unit_bytes))
