"""Cursors: the position at which a page of a query ended, as text that a caller can store."""

from __future__ import annotations

import base64
import binascii

import msgspec

from holdfast.errors import InvalidQuery
from holdfast.storage.item import Item
from holdfast.storage.layout import PK, SK, Index

__all__ = ["cursor_at", "position_of"]


def cursor_at(item: Item, index: Index | None) -> str:
    """Return the cursor for a page that ended with this item."""
    names = _key_names(index)
    position = msgspec.json.encode([item[name] for name in names])
    return base64.urlsafe_b64encode(position).decode().rstrip("=")


def position_of(cursor: str, pk: str, index: Index | None) -> Item:
    """Return the key attributes after which the next page begins.

    Raises:
        InvalidQuery: the cursor is damaged, or belongs to another query.
    """
    names = _key_names(index)
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        values = msgspec.json.decode(base64.b64decode(padded, b"-_", validate=True), type=list[str])
    except (binascii.Error, ValueError, TypeError, AttributeError, msgspec.MsgspecError):
        raise InvalidQuery(
            "cursor must be one that a query returned, and is damaged", field="cursor"
        ) from None
    position = dict(zip(names, values, strict=False))
    if len(values) != len(names) or position[index.pk if index else PK] != pk:
        raise InvalidQuery(
            "cursor must come from the same query, not from another query", field="cursor"
        )
    return position


def _key_names(index: Index | None) -> tuple[str, ...]:
    return (PK, SK, index.pk, index.sk) if index else (PK, SK)
