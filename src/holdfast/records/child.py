"""What a run's partition says about the runs that it starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.records.damage import DECODE_ERRORS, damaged_item_error, typed_attribute
from holdfast.records.head import Head
from holdfast.records.keys import child_key
from holdfast.storage import Absent, Put

__all__ = ["child_entry_of", "child_write"]


def child_write(parent: Head, id: str, *, graph: str, token: str) -> Put:
    """Return the write that says of a run that it is, or will be, a child of this one."""
    key = child_key(parent.key, parent.generation, id)
    item: dict[str, Any] = {"PK": key.pk, "SK": key.sk, "ttl": parent.ttl, "graph": graph}
    return Put(item, Absent("PK"), token)


def child_entry_of(item: Mapping[str, Any]) -> tuple[str, str]:
    """Return id and graph of the child that an item names.

    Raises:
        JournalDamaged: it names none.
    """
    try:
        return item["SK"].split("#", 2)[2], typed_attribute(item, "graph", str)
    except DECODE_ERRORS as error:
        raise damaged_item_error(item, "the entry of a child", error) from error
