"""Items with the streamed text of answers, beside the journal of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.model.node_progress import NodeProgress
from holdfast.records.codec import pack, unpack_value
from holdfast.records.damage import DECODE_ERRORS, damaged_item_error, typed_attribute
from holdfast.records.head import Head
from holdfast.records.keys import SpoolKey, text_key
from holdfast.storage import Put

__all__ = [
    "ProgressEntry",
    "StoredBatch",
    "TextBatch",
    "TextEntry",
    "TextStream",
    "text_of",
    "text_write",
]

# The journal has the complete answer, so pieces are not needed for longer.
_KEPT_SECONDS = 24 * 3600


class TextStream(msgspec.Struct, frozen=True, array_like=True):
    """One attempt at an answer."""

    call: str
    name: str


class TextEntry(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a stream."""

    stream: int
    """The number of the stream in the spool."""
    text: str
    first: bool = False
    last: bool = False


class ProgressEntry(TextEntry, frozen=True):
    """A piece without text, which says how far a node is. Other pieces end before this field.

    Releases that do not know it read an empty piece.
    """

    progress: NodeProgress | None = None


class TextBatch(msgspec.Struct, frozen=True, array_like=True):
    """The content of one item: pieces in their order, and their streams."""

    streams: dict[int, TextStream]
    entries: Sequence[TextEntry]


class StoredBatch(msgspec.Struct, frozen=True, array_like=True):
    """A batch as it is read: each piece may be a `ProgressEntry`."""

    streams: dict[int, TextStream]
    entries: Sequence[ProgressEntry]


def text_write(head: Head, spool: SpoolKey, number: int, text: TextBatch, *, now_ms: int) -> Put:
    """Return the write of a batch. It is idempotent."""
    key = text_key(head.key, head.generation, spool, number)
    ttl = min(head.ttl, -(-now_ms // 1000) + _KEPT_SECONDS)
    return Put({"PK": key.pk, "SK": key.sk, "ttl": ttl, "data": pack(text)})


def text_of(item: Mapping[str, Any], bytes_max: int) -> StoredBatch:
    """Return the batch in an item.

    Raises:
        RecordTooLarge: the batch has more than ``bytes_max`` bytes uncompressed.
        JournalDamaged: the item cannot be read.
    """
    try:
        return msgspec.convert(
            unpack_value(typed_attribute(item, "data", bytes), bytes_max), StoredBatch
        )
    except DECODE_ERRORS as error:
        raise damaged_item_error(item, "the text", error) from error
