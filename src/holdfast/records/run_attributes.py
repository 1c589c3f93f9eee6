"""Values of a run's row in the form in which the table keeps them."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.records.head import (
    InboxSize,
)

__all__ = ["INBOX_COUNTERS", "TEXT_CHARS_MAX", "as_map", "inbox_counters"]

TEXT_CHARS_MAX = 400
INBOX_COUNTERS = ("inbox_items", "inbox_bytes")


def inbox_counters(inbox: InboxSize) -> dict[str, int]:
    """Return the counters of a row; it has none where they are 0."""
    return {
        name: value
        for name, value in zip(INBOX_COUNTERS, (inbox.items, inbox.bytes), strict=True)
        if value
    }


def as_map(value: msgspec.Struct) -> dict[str, Any]:
    return {
        name: field
        for name in value.__struct_fields__
        if (field := getattr(value, name)) is not None and field != ""
    }
