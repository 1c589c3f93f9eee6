"""The shape that every table has: its key, its two indexes, and the attributes that mean something.

An item is a plain ``dict``. These of its attributes are the table's own; all others are the
caller's, whatever they are called:

========== =================================================================================
``PK``     partition key, a non-empty string of at most 2,048 bytes
``SK``     sort key, a non-empty string of at most 1,024 bytes
``GSI1PK`` with ``GSI1SK``: the item's place in index ``GSI1``; without both it is not in it
``GSI2PK`` with ``GSI2SK``: likewise in ``GSI2``
``ttl``    whole seconds since 1970 after which the item may be deleted by the store itself
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
    """Where an item stands: its partition and its place in the partition's order."""

    pk: str
    sk: str


class Index(msgspec.Struct, frozen=True, dict=True):
    """A sparse second order over the items: those that have both of its key attributes."""

    name: str
    include: tuple[str, ...] = ()
    """Attributes that an entry carries besides the keys; with none it is KEYS_ONLY."""

    @cached_property
    def pk(self) -> str:
        return f"{self.name}PK"

    @cached_property
    def sk(self) -> str:
        return f"{self.name}SK"

    @cached_property
    def attributes(self) -> tuple[str, ...]:
        """Every attribute that an entry of this index may carry."""
        return (PK, SK, self.pk, self.sk, *self.include)

    def entry(self, item: Mapping[str, Any] | None) -> Item | None:
        """Return what the index holds of the item, or None where it does not hold it."""
        if item is None or self.pk not in item or self.sk not in item:
            return None
        return {name: item[name] for name in self.attributes if name in item}


class Layout(msgspec.Struct, frozen=True, dict=True):
    """The indexes of a table."""

    indexes: tuple[Index, ...]

    def index(self, name: str) -> Index | None:
        """Return the index of that name."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> dict[str, Index]:
        return {index.name: index for index in self.indexes}

    @cached_property
    def key_attributes(self) -> tuple[str, ...]:
        """The attributes that place an item: they are strings, never empty, never added to."""
        return (PK, SK, *(name for index in self.indexes for name in (index.pk, index.sk)))


LAYOUT = Layout((Index("GSI1"), Index("GSI2", include=("status", "show"))))
"""The layout of every table of the product: `GSI1` what is due when, `GSI2` what lists show.

`show` is one small map: a list can show a further field without an index being built anew.
"""
