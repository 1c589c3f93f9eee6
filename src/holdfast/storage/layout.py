"""The layout of every table: its key, its two indexes, and the attributes that the table uses.

An item is a plain ``dict``. The table uses these attributes; all others are the caller's:

========== =================================================================================
``PK``     partition key, a non-empty string of at most 2,048 bytes
``SK``     sort key, a non-empty string of at most 1,024 bytes
``GSI1PK`` with ``GSI1SK``: the item's key in the index ``GSI1``; without both it is not in it
``GSI2PK`` with ``GSI2SK``: likewise in ``GSI2``
``ttl``    integer, in seconds since 1970; the store may delete the item after this time
``_token`` the token of the last write that carried one
========== =================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from holdfast.storage.item import Item

__all__ = ["LAYOUT", "PK", "SK", "TOKEN", "TTL", "Index", "Key", "Layout"]

PK = "PK"
SK = "SK"
TTL = "ttl"
TOKEN = "_token"


class Key(NamedTuple):
    """The key of an item: its partition, and its sort key in that partition."""

    pk: str
    sk: str


class Index(msgspec.Struct, frozen=True, dict=True):
    """A sparse index: it contains the items that have both of its key attributes."""

    name: str
    include: tuple[str, ...] = ()
    """Attributes that an entry has besides the keys; without any, the index is KEYS_ONLY."""

    @cached_property
    def pk(self) -> str:
        return f"{self.name}PK"

    @cached_property
    def sk(self) -> str:
        return f"{self.name}SK"

    @cached_property
    def attributes(self) -> tuple[str, ...]:
        """Every attribute that an entry of this index may have."""
        return (PK, SK, self.pk, self.sk, *self.include)

    def entry(self, item: Mapping[str, Any] | None) -> Item | None:
        """Return the index entry of an item, or None if the item is not in the index."""
        if item is None or self.pk not in item or self.sk not in item:
            return None
        return {name: item[name] for name in self.attributes if name in item}


class Layout(msgspec.Struct, frozen=True, dict=True):
    """The indexes of a table."""

    indexes: tuple[Index, ...]

    def index(self, name: str) -> Index | None:
        """Return the index of that name, or None."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> dict[str, Index]:
        return {index.name: index for index in self.indexes}

    @cached_property
    def key_attributes(self) -> tuple[str, ...]:
        """The attributes of all keys: non-empty strings, to which an update cannot add."""
        return (PK, SK, *(name for index in self.indexes for name in (index.pk, index.sk)))


LAYOUT = Layout((Index("GSI1"), Index("GSI2", include=("status", "show"))))
"""The layout of every Holdfast table: `GSI1` orders work by due time, `GSI2` serves lists of runs.

`show` is one small map, so that lists can show another field without a rebuild of the index.
"""
