"""What a table asks of an engine, and what an engine answers, as values.

`Table` checks a call and turns it into one operation; an engine performs operations and knows
nothing of who asked. So a meter, a simulator's faults or a log stand between the two in one place.
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

LATEST = "latest"
"""The position of the change feed's end: only what is written from now on."""


class GetItem(msgspec.Struct, frozen=True, gc=False):
    """Read one item. Its answer's value is the item or None."""

    key: Key
    eventual: bool


class GetItems(msgspec.Struct, frozen=True, gc=False):
    """Read several items. Its answer's value is a list of items or None, in the keys' order."""

    keys: tuple[Key, ...]
    eventual: bool


class QueryItems(msgspec.Struct, frozen=True, gc=False):
    """Read one page of a partition or of an index. Its answer's value is a `Page`."""

    pk: str
    range: Range
    index: Index | None
    limit: int | None
    after: Item | None
    """The key attributes of the item after which the page begins."""
    forward: bool
    eventual: bool


class WriteItem(msgspec.Struct, frozen=True, gc=False):
    """Write one item. Its answer's value is the old or the new item, as asked, or None."""

    write: Write
    returning: Returning


class TransactItems(msgspec.Struct, frozen=True, gc=False):
    """Write several items, or none of them. Its answer's value is None."""

    writes: tuple[TransactionWrite, ...]


class WriteItems(msgspec.Struct, frozen=True, gc=False):
    """Write several items, each for itself, without conditions. Its answer's value is None."""

    writes: tuple[Put | Delete, ...]


ReadOperation: TypeAlias = GetItem | GetItems | QueryItems
WriteOperation: TypeAlias = WriteItem | TransactItems | WriteItems
Operation: TypeAlias = ReadOperation | WriteOperation


class Page(msgspec.Struct, frozen=True):
    """Some items of a query, in order."""

    items: list[Item]
    cursor: str | None
    """Pass it on to read what follows; None at the end. What follows may turn out to be nothing."""
    damaged: tuple[ItemDamaged, ...] = ()
    """Items of an index that cannot be read, and are left out; each names its key."""


class Reply(msgspec.Struct, frozen=True):
    """What became of an operation, and what it cost, also where it was refused."""

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
    """Whether the store itself deleted the item, because of its ``ttl``."""


class ChangePage(msgspec.Struct, frozen=True):
    """Some changes in the order of their commits."""

    changes: list[Change]
    position: str
    """Pass it on to read what follows, now or later."""


class TableEngine(Protocol):
    """Moves items: everything that `Table` needs from what lies beneath it."""

    @property
    def layout(self) -> Layout: ...

    @property
    def poll_seconds(self) -> float:
        """How long a worker waits between two polls, by default: what a read costs decides."""
        ...

    def perform(self, operation: Operation) -> Awaitable[Reply]:
        """Carry out one checked operation.

        A refusal that cost something comes back in the answer; where nothing was reached (no
        connection, no table, no access) the error is raised.

        The cursor of a page lies behind the page's last item, and behind where the query began, in
        the direction of the query: whoever passes it on never reads the same page again, whatever
        cannot be read there.
        """
        ...

    async def read_changes(self, after: str | None, limit: int) -> ChangePage:
        """Read the change feed from a position on; from its oldest record where None."""
        ...

    async def create(self) -> None:
        """Make the store ready for use; do nothing where it is."""
        ...

    async def close(self) -> None:
        """Finish what is under way and let go of files, threads and connections."""
        ...
