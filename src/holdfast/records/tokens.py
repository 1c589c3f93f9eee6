"""The text of answers as it comes: items beside a run's journal, each with what came in a while."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.records.codec import pack, unpack_value
from holdfast.records.damage import DAMAGE, attribute, damaged
from holdfast.records.head import Head
from holdfast.records.keys import SpoolKey, text_key
from holdfast.storage import Put

__all__ = ["Entry", "Stream", "Text", "text_in", "text_item"]

# What was said can be had from the journal once it is complete: it need not be kept for longer.
_KEPT_SECONDS = 24 * 3600


class Stream(msgspec.Struct, frozen=True, array_like=True):
    """One attempt at an answer."""

    call: str
    name: str


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """Some text of a stream."""

    stream: int
    """Which stream of the spool it is."""
    text: str
    first: bool = False
    last: bool = False


class Text(msgspec.Struct, frozen=True, array_like=True):
    """What one item holds: entries in their order, and the streams whose they are."""

    streams: dict[int, Stream]
    entries: Sequence[Entry]


def text_item(head: Head, spool: SpoolKey, number: int, text: Text, *, now_ms: int) -> Put:
    """Return the write of some text; written again it changes nothing."""
    key = text_key(head.key, head.generation, spool, number)
    ttl = min(head.ttl, -(-now_ms // 1000) + _KEPT_SECONDS)
    return Put({"PK": key.pk, "SK": key.sk, "ttl": ttl, "data": pack(text)})


def text_in(item: Mapping[str, Any], bytes_max: int) -> Text:
    """Return the text that an item holds.

    Raises:
        RecordTooLarge: it has more than ``bytes_max`` bytes once it is unpacked.
        JournalDamaged: nothing that can be read.
    """
    try:
        return msgspec.convert(unpack_value(attribute(item, "data", bytes), bytes_max), Text)
    except DAMAGE as error:
        raise damaged(item, "the text", error) from error
