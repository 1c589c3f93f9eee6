"""Encodes values for the attributes of a run's row."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.records.head import Head, InboxSize
from holdfast.records.index_keys import list_index_key

__all__ = ["INBOX_COUNTERS", "TEXT_CHARS_MAX", "as_map", "inbox_counters", "list_attributes"]

TEXT_CHARS_MAX = 400
"""The limit on texts in a row, such as the reason of a cancellation."""
INBOX_COUNTERS = ("inbox_items", "inbox_bytes")
"""The attributes that count the signals in the inbox."""

_ABSENT = (None, "", msgspec.UNSET)


def inbox_counters(inbox: InboxSize) -> dict[str, int]:
    """Return the counter attributes for an inbox, without those that are 0."""
    return {
        name: value
        for name, value in zip(INBOX_COUNTERS, (inbox.items, inbox.bytes), strict=True)
        if value
    }


def as_map(value: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a struct as a map, without None, empty strings and unset fields."""
    names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
    return {
        stored: field for name, stored in names if (field := getattr(value, name)) not in _ABSENT
    }


def list_attributes(head: Head, *, trouble: bool) -> dict[str, str]:
    """Return the attributes that put a run into a list. Chunks of maps are in none."""
    if head.chunk is not None:
        return {}
    list_pk, list_sk = list_index_key(head.key, head.created_ms, head.list_shards, trouble=trouble)
    return {"GSI2PK": list_pk, "GSI2SK": list_sk}
