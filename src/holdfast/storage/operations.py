"""Operations that a table sends to an engine, and the engine's replies, as values.

`Table` validates a call and turns it into one operation. An engine performs operations without
knowing the caller. So a meter, a simulator's faults or a log can be inserted between the two.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from holdfast.errors import ItemDamaged
from holdfast.storage.item import Item
from holdfast.storage.layout import Index, Key, Layout
from holdfast.storage.ranges import Range
from holdfast.storage.units import NO_UNITS, Units
from holdfast.storage.writes import Delete, Put, TransactionWrite, Write

__all__ = [
    "LATEST",
    "Change",
    "ChangePage",
    "GetItem",
    "GetItems",
    "Operation",
    "Page",
    "QueryItems",
    "ReadOperation",
    "Reply",
    "Returning",
    "TableEngine",
    "TransactItems",
    "WriteItem",
    "WriteItems",
    "WriteOperation",
]

Returning: TypeAlias = Literal["nothing", "old", "new"]
"""What a write returns: nothing, the item before it, or the item after it."""

LATEST = "latest"
"""The position at the end of the change feed: a reader sees only later changes."""


class GetItem(msgspec.Struct, frozen=True, gc=False):
    """Read one item. The reply's value is the item or None."""

    key: Key
    eventual: bool


class GetItems(msgspec.Struct, frozen=True, gc=False):
    """Read several items. The reply's value is a list of items or None, in the keys' order."""

    keys: tuple[Key, ...]
    eventual: bool


class QueryItems(msgspec.Struct, frozen=True, gc=False):
    """Read one page of a partition or of an index. The reply's value is a `Page`."""

    pk: str
    range: Range
    index: Index | None
    limit: int | None
    after: Item | None
    """The key attributes of the item that precedes the page."""
    forward: bool
    eventual: bool


class WriteItem(msgspec.Struct, frozen=True, gc=False):
    """Write one item. The reply's value is the old or the new item, as requested, or None."""

    write: Write
    returning: Returning


class TransactItems(msgspec.Struct, frozen=True, gc=False):
    """Write all of several items or none. The reply's value is None."""

    writes: tuple[TransactionWrite, ...]


class WriteItems(msgspec.Struct, frozen=True, gc=False):
    """Write several items one by one, without conditions. The reply's value is None."""

    writes: tuple[Put | Delete, ...]


ReadOperation: TypeAlias = GetItem | GetItems | QueryItems
WriteOperation: TypeAlias = WriteItem | TransactItems | WriteItems
Operation: TypeAlias = ReadOperation | WriteOperation


class Page(msgspec.Struct, frozen=True):
    """Some items of a query, in order."""

    items: list[Item]
    cursor: str | None
    """Pass it to read the next page, which may be empty; None at the end."""
    damaged: tuple[ItemDamaged, ...] = ()
    """Errors for items of an index that cannot be read and were left out; each names its key."""


class Reply(msgspec.Struct, frozen=True):
    """The result of an operation, and what it cost, also if the store refused it."""

    value: Any = None
    units: Units = NO_UNITS
    error: Exception | None = None


class Change(msgspec.Struct, frozen=True):
    """One committed change of one item."""

    position: str
    key: Key
    old: Item | None
    new: Item | None
    at_ms: int
    expired: bool
    """Whether the store deleted the item because of its ``ttl``."""


class ChangePage(msgspec.Struct, frozen=True):
    """Some changes, in the order of their commits."""

    changes: list[Change]
    position: str
    """Pass it to read the changes that follow, now or later."""


class TableEngine(Protocol):
    """Stores and reads items: everything that `Table` needs from a database."""

    @property
    def layout(self) -> Layout: ...

    @property
    def poll_seconds(self) -> float:
        """How long a worker waits between two polls, by default: what a read costs decides."""
        ...

    def perform(self, operation: Operation) -> Awaitable[Reply]:
        """Perform one validated operation.

        If the store refuses the operation and that costs something, the reply contains the error.
        If the operation reaches no store (no connection, no table, no access), the error is raised.

        The cursor of a page is past its last item and past the start of the query, in the direction
        of the query. A caller that passes it never reads the same page again, even if items there
        cannot be read.
        """
        ...

    async def read_changes(self, after: str | None, limit: int) -> ChangePage:
        """Read the change feed after a position; from its oldest record if None."""
        ...

    async def create(self) -> None:
        """Create the store, if it does not exist."""
        ...

    async def close(self) -> None:
        """Finish the operations under way, and release files, threads and connections."""
        ...
