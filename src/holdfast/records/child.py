"""What a run's partition says about the runs that it starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.records.damage import DAMAGE, attribute, damaged
from holdfast.records.head import Head
from holdfast.records.keys import child_key
from holdfast.storage import Absent, Put

__all__ = ["child_in", "child_item"]


def child_item(parent: Head, id: str, *, graph: str, token: str) -> Put:
    """Return the write that says of a run that it is, or will be, a child of this one."""
    key = child_key(parent.key, parent.generation, id)
    item: dict[str, Any] = {"PK": key.pk, "SK": key.sk, "ttl": parent.ttl, "graph": graph}
    return Put(item, Absent("PK"), token)


def child_in(item: Mapping[str, Any]) -> tuple[str, str]:
    """Return id and graph of the child that an item names.

    Raises:
        JournalDamaged: it names none.
    """
    try:
        return item["SK"].split("#", 2)[2], attribute(item, "graph", str)
    except DAMAGE as error:
        raise damaged(item, "the entry of a child", error) from error
