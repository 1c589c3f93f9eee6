"""The records of a run's journal, and the signals in its inbox."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from holdfast.errors import InvalidItem, JournalDamaged
from holdfast.records import codec
from holdfast.records.damage import DECODE_ERRORS, damaged_item_error, typed_attribute
from holdfast.records.head import Head, JournalExtent
from holdfast.records.keys import inbox_key, is_record, journal_key
from holdfast.storage import Absent, AllOf, AnyOf, BlobRef, Delete, Key, Less, Present, Put, Update
from holdfast.storage.item import item_bytes
from holdfast.storage.layout import TOKEN

__all__ = [
    "Content",
    "FreedForm",
    "accepted_ms_of",
    "content_of",
    "extend_fence_ttl_write",
    "extend_signal_ttl_write",
    "extend_ttl_write",
    "extent_after_record",
    "extent_with_content",
    "fence_of",
    "fence_write",
    "free_item_write",
    "is_emptied",
    "is_fence",
    "payload_bytes",
    "record_overhead_bytes",
    "record_write",
    "signal_name_and_id",
    "signal_write",
    "stamp_of",
    "ttl_of_signal",
]


# The attribute of a fence; no signal has it.
_FENCE = "fence"
# Every id has this size: see `Ids`.
_TOKEN_BYTES = 36
_CACHED_OVERHEADS = 1_024

FreedForm = Literal["whole", "emptied"]
"""What is left of a record when its run is freed. The item stays until its ttl: otherwise a late
write of a stalled owner or of a canceller could succeed at its position."""


class Content(msgspec.Struct, frozen=True):
    """Packed bytes, in the item itself or in a blob."""

    data: bytes | None
    blob: BlobRef | None = None

    @property
    def size(self) -> int:
        return len(self.data) if self.data is not None else self.blob.size if self.blob else 0

    def as_item(self) -> dict[str, Any]:
        """Return the attributes that store it."""
        if self.blob is not None:
            return {"blob": self.blob.as_item()}
        return {"data": self.data}


def extent_with_content(extent: JournalExtent, content: Content) -> JournalExtent:
    """Return the extent with content outside of the journal, such as a large input."""
    blobs = extent.blobs or content.blob is not None
    return JournalExtent(extent.position, extent.size + content.size, blobs)


def extent_after_record(extent: JournalExtent, content: Content) -> JournalExtent:
    """Return the extent after one more record."""
    blobs = extent.blobs or content.blob is not None
    return JournalExtent(extent.position + 1, extent.size + content.size, blobs)


def content_of(item: Mapping[str, Any]) -> Content:
    """Return the content of a record or a signal.

    Raises:
        JournalDamaged: the item has no readable content.
    """
    if "blob" in item:
        try:
            return Content(None, BlobRef.from_item(item["blob"]))
        except InvalidItem as error:
            raise damaged_item_error(item, "the record", error) from error
    if not isinstance(item.get("data"), bytes):
        raise JournalDamaged(f"the record {item.get('SK')!r:.100} has no content")
    return Content(item["data"])


def record_write(
    head: Head, position: int, content: Content, *, token: str, whole: bool = False
) -> Put:
    """Return the write of a record at a free position of the journal.

    A ``whole`` record stays readable when its run is freed.
    """
    key = journal_key(head.key, head.generation, position)
    item = _record_item(key, content, ttl=head.ttl, epoch=head.epoch, whole=whole)
    return Put(item, Absent("PK"), token)


def _record_item(
    key: Key, content: Content, *, ttl: int, epoch: int, whole: bool
) -> dict[str, Any]:
    item: dict[str, Any] = {"PK": key.pk, "SK": key.sk, "ttl": ttl, "epoch": epoch}
    item |= content.as_item()
    if whole:
        item["stays"] = "whole"
    return item


def record_overhead_bytes(head: Head, position: int, *, whole: bool) -> int:
    """Return the size of a record without its content, which the price of its write includes."""
    key = journal_key(head.key, head.generation, position)
    return _attributes_bytes(head.ttl, head.epoch, whole) + len(f"{key.pk}{key.sk}".encode())


# Cached: nearly every record of a call asks, and the records of a run get the same answer.
@functools.lru_cache(maxsize=_CACHED_OVERHEADS)
def _attributes_bytes(ttl: int, epoch: int, whole: bool) -> int:
    """Return the size of a record without its content and without the values of its key."""
    item = _record_item(Key("", ""), Content(b""), ttl=ttl, epoch=epoch, whole=whole)
    return item_bytes(item) + len(TOKEN) + _TOKEN_BYTES


def free_item_write(item: Mapping[str, Any]) -> Put | Delete | None:
    """Return the write that frees an item of a run that has ended; None if nothing is freed.

    Records are emptied and keep their positions. Other items are deleted.
    """
    if not is_record(item["SK"]):
        return Delete(Key(item["PK"], item["SK"]))
    if item.get("stays") == "whole" or is_emptied(item):
        return None
    place = {name: value for name, value in item.items() if name not in ("data", "blob")}
    emptied: FreedForm = "emptied"
    return Put({**place, "stays": emptied}, token=item.get(TOKEN))


def is_emptied(item: Mapping[str, Any]) -> bool:
    """Return whether an item is a record without its content."""
    return "stays" in item and "data" not in item and "blob" not in item


def signal_write(
    head: Head,
    *,
    name: str,
    id: str,
    content: Content,
    plain_bytes: int,
    accepted_ms: int,
    token: str,
    fences_below: int = 0,
) -> Put:
    """Return the write that puts a signal into the inbox, unless its id is there.

    ``plain_bytes`` is the size of the payload before compression. The signal replaces a fence with
    a position less than ``fences_below``; see `fence_write`.
    """
    key = inbox_key(head.key, head.generation, name, id)
    item: dict[str, Any] = {
        "PK": key.pk,
        "SK": key.sk,
        "ttl": head.ttl,
        "accepted_ms": accepted_ms,
    }
    item |= content.as_item()
    if content.blob is not None:
        item["plain"] = plain_bytes  # packed data in the item has its size
    if not fences_below:
        return Put(item, Absent("PK"), token)
    return Put(item, AnyOf((Absent("PK"), Less(_FENCE, fences_below))), token)


def fence_write(key: Key, position: int, *, ttl: int, token: str) -> Update:
    """Return the write of a fence in the place of a signal, unless it or a later fence is there.

    A fence is no signal: it says what a sender must have read to put the signal there.
    """
    return Update(
        key=key,
        set={_FENCE: position},
        # A process that does not know of an extension must not set it back.
        set_if_absent={"ttl": ttl},
        condition=AnyOf((Absent("PK"), Less(_FENCE, position))),
        token=token,
    )


def extend_fence_ttl_write(item: Mapping[str, Any], ttl: int) -> Update:
    """Return the write that extends the ttl of a fence. It fails if a signal has replaced it."""
    return Update(
        key=Key(item["PK"], item["SK"]),
        set={"ttl": ttl},
        condition=AllOf((Present(_FENCE), Less("ttl", ttl))),
    )


def is_fence(item: Mapping[str, Any]) -> bool:
    """Return whether an item of an inbox is a fence, and no signal."""
    return _FENCE in item


def fence_of(item: Mapping[str, Any]) -> int:
    """Return the position of a fence.

    Raises:
        JournalDamaged: it is damaged.
    """
    return _number_in(item, _FENCE)


def signal_name_and_id(item: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name and the id of a signal in an inbox.

    Raises:
        JournalDamaged: the item is not a signal.
    """
    try:
        name, id = item["SK"].split("#", 3)[3].split("#")
    except DECODE_ERRORS as error:
        raise damaged_item_error(item, "the signal", error) from error
    return name, id


def accepted_ms_of(item: Mapping[str, Any]) -> int:
    """Return when a signal in an inbox was accepted.

    Raises:
        JournalDamaged: the attribute is missing or damaged.
    """
    return _number_in(item, "accepted_ms")


def ttl_of_signal(item: Mapping[str, Any]) -> int:
    """Return the ttl of a signal in an inbox.

    Raises:
        JournalDamaged: the attribute is missing or damaged.
    """
    return _number_in(item, "ttl")


def _number_in(item: Mapping[str, Any], name: str) -> int:
    try:
        return typed_attribute(item, name, int)
    except DECODE_ERRORS as error:
        raise damaged_item_error(item, "the signal", error) from error


def payload_bytes(item: Mapping[str, Any]) -> int:
    """Return the size of a signal's payload before compression, without decompressing it.

    For a blob that an early release wrote it is the size of the blob.
    """
    content = content_of(item)
    if content.blob is not None:
        plain = item.get("plain", content.size)
        return plain if type(plain) is int else content.size
    try:
        return codec.plain_bytes(content.data or b"")
    except JournalDamaged:
        return content.size  # the owner that takes the signal reports the damage


def stamp_of(item: Mapping[str, Any]) -> str:
    """Return the stamp of a signal in an inbox: see `Signal.stamp`.

    It is the token of the first write. Later writes of the item have no token.
    """
    stamp = item.get(TOKEN, "")
    return stamp if type(stamp) is str else ""


def extend_ttl_write(item: Mapping[str, Any], ttl: int) -> Update:
    """Return the write that extends the ttl of an item. It fails if the ttl is long enough."""
    key = Key(item["PK"], item["SK"])
    return Update(key=key, set={"ttl": ttl}, condition=Less("ttl", ttl))


def extend_signal_ttl_write(item: Mapping[str, Any], ttl: int, content: Content) -> Update:
    """Return the write that extends the ttl of a signal. It fails if the ttl is long enough."""
    return Update(
        key=Key(item["PK"], item["SK"]),
        set={"ttl": ttl, **(content.as_item() if content.blob is not None else {})},
        condition=Less("ttl", ttl),
    )
