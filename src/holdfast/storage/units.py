"""Capacity units by the rules that DynamoDB documents.

- A write costs 1 unit for each KB begun of the larger of the item before and after it, at least 1.
- An index costs on top for each of its entries that is put, changed or deleted; a changed index
  key is a delete and a put; an entry that stays as it is costs nothing.
- A condition that does not hold costs by the larger of the item that stands there and the one that
  was to stand there, at least 1.
- A read costs 1 unit for each 4 KB begun, half of that if it may be a moment old; nothing found
  costs as much as 4 KB. A query rounds the sum of its page, a batch rounds each item.
- In a transaction a write, or a check, costs double; what it does to an index costs as ever.

Two things no document and no answer of the service tells, so they are taken at the nearest rule:
an empty page of a query costs as much as 4 KB, and a cancelled transaction costs for each of its
writes what a failed condition would, doubled. What stood under a key is told only where a condition
failed; where none did, it counts as though nothing stood there.

Beside the units stand the requests that S3 asks money for, which `Blobs` counts.
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
    """Capacity units, of the table itself and of its indexes, and requests for blobs."""

    read: float = 0
    write: float = 0
    index_read: float = 0
    index_write: float = 0
    blob_puts: int = 0
    """Requests that S3 prices as a PUT; to list is one as well."""
    blob_gets: int = 0
    blob_bytes: int = 0
    """What was put and got; within its region S3 asks nothing for it."""

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
"""What a write costs of which nothing is known, or which did not fit the item that it met."""


def transaction_units(units: Units) -> Units:
    """Return what a write costs in a transaction that would cost these units alone."""
    return Units(write=units.write * 2, index_write=units.index_write)


def cancelled_units(writes: Sequence[TransactionWrite], failed: Mapping[int, Item | None]) -> Units:
    """Return what a transaction costs that was cancelled.

    ``failed`` has what stood in the way, by the position of the write.
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
    """Return what it costs to put an item where there was none."""
    index_write = _index_writes(None, put.item, layout)
    return Units(write=_units_for(put.size, WRITE_UNIT_BYTES), index_write=index_write)


def write_units(old: Item | None, new: Item | None, layout: Layout) -> Units:
    """Return what it costs to bring an item from what it was to what it is."""
    size = max(item_bytes(old) if old else 0, item_bytes(new) if new else 0)
    return Units(
        write=_units_for(size, WRITE_UNIT_BYTES), index_write=_index_writes(old, new, layout)
    )


def refused_units(write: TransactionWrite, existing: Item | None) -> Units:
    """Return what a write costs whose condition did not hold."""
    try:
        intended = item_after(write, existing)
    except InvalidRequest:
        intended = None
    size = max(item_bytes(item) if item else 0 for item in (existing, intended))
    return Units(write=_units_for(size, WRITE_UNIT_BYTES))


def read_units(item: Item | None, *, eventual: bool) -> Units:
    """Return what it costs to read one item, or to find none."""
    return Units(read=_read_units_for(item_bytes(item) if item else 0, eventual))


def query_units(page_bytes: int, *, eventual: bool, index: bool) -> Units:
    """Return what a page of a query costs."""
    units = _read_units_for(page_bytes, eventual or index)
    return Units(index_read=units) if index else Units(read=units)


def _index_writes(
    old: Mapping[str, Any] | None, new: Mapping[str, Any] | None, layout: Layout
) -> float:
    units = 0
    for index in layout.indexes:
        # Most items are in no index: nothing is built for them.
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
