"""The entries of child runs in the partition of their parent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.records.damage import DECODE_ERRORS, damaged_item_error, typed_attribute
from holdfast.records.head import Head
from holdfast.records.keys import child_key
from holdfast.storage import Absent, Put

__all__ = ["child_entry_of", "child_write"]


def child_write(parent: Head, id: str, *, graph: str, token: str) -> Put:
    """Return the write that records a child. It comes before the start of the child."""
    key = child_key(parent.key, parent.generation, id)
    item: dict[str, Any] = {"PK": key.pk, "SK": key.sk, "ttl": parent.ttl, "graph": graph}
    return Put(item, Absent("PK"), token)


def child_entry_of(item: Mapping[str, Any]) -> tuple[str, str]:
    """Return the id and the graph of the child in an item.

    Raises:
        JournalDamaged: the item is not the entry of a child.
    """
    try:
        return item["SK"].split("#", 2)[2], typed_attribute(item, "graph", str)
    except DECODE_ERRORS as error:
        raise damaged_item_error(item, "the entry of a child", error) from error
