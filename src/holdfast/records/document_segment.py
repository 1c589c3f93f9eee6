"""The items of the segments of a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from holdfast.errors import InvalidItem
from holdfast.model.document import DocumentSegment, StepStatus
from holdfast.records.damage import DECODE_ERRORS, damaged_item_error, typed_attribute
from holdfast.records.document import lifetime_attributes
from holdfast.records.document_keys import segment_index, segment_key
from holdfast.records.document_workflow import fence_attributes
from holdfast.records.item_json import item_value, json_value
from holdfast.storage import Absent, AnyOf, BlobRef, Condition, Key, Less, Put
from holdfast.storage.item import Item, canonical_item, item_bytes

__all__ = [
    "PREVIEW_CHARS",
    "SEGMENT_BYTES_MAX",
    "StoredSegment",
    "fits_item",
    "segment_fence",
    "segment_of",
    "segment_write",
]

SEGMENT_BYTES_MAX = 8 * 1024
"""A segment with a larger item has its analysis in a blob."""
PREVIEW_CHARS = 200


class StoredSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A segment as it is stored."""

    tenant: str
    workflow: str
    index: int
    s3_key: str | None = None
    image_uri: str | None = None
    image_analysis: Sequence[Any] = ()
    analysis: BlobRef | None = None
    """The blob of an analysis that is too large for the item."""
    preview: str | None = None
    status: StepStatus = "completed"
    error: str | None = None
    expires_ms: int | None = None

    @property
    def key(self) -> Key:
        return segment_key(self.tenant, self.workflow, self.index)

    def as_item(self) -> dict[str, Any]:
        """Return its item.

        Raises:
            InvalidItem: the analysis has values that an item cannot hold; a blob can.
        """
        data: dict[str, Any] = {"segment_index": self.index, "status": self.status}
        for name in ("s3_key", "image_uri", "preview", "error"):
            if (value := getattr(self, name)) is not None:
                data[name] = value
        if self.analysis is not None:
            data["analysis"] = self.analysis.as_item()
        else:
            data["image_analysis"] = item_value(list(self.image_analysis))
        item = {"PK": self.key.pk, "SK": self.key.sk, "data": data}
        return canonical_item({**item, **lifetime_attributes(self.expires_ms)})

    def shown(self, analysis: Sequence[Any] | None = None) -> DocumentSegment:
        """Return it as callers see it, with the analysis of its blob if that was read."""
        return DocumentSegment(
            workflow=self.workflow,
            index=self.index,
            s3_key=self.s3_key,
            image_uri=self.image_uri,
            image_analysis=list(self.image_analysis if analysis is None else analysis),
            status=self.status,
            error=self.error,
            preview=self.preview,
        )


def fits_item(segment: StoredSegment) -> bool:
    """Return whether the analysis of a segment fits into its item, as it is."""
    try:
        return item_bytes(segment.as_item()) <= SEGMENT_BYTES_MAX
    except InvalidItem:
        return False


def segment_write(segment: StoredSegment, *, now_ms: int, token: str) -> Put:
    """Return the write of a segment, in place of an earlier one, unless it is fenced."""
    return Put(segment.as_item(), _not_fenced(now_ms), token)


def segment_fence(tenant: str, workflow: str, index: int, *, since_ms: int) -> Put:
    """Return the write that empties a segment, and refuses late writers until its ttl."""
    key = segment_key(tenant, workflow, index)
    return Put({"PK": key.pk, "SK": key.sk, "deleting_ms": since_ms, **fence_attributes(since_ms)})


def segment_of(item: Mapping[str, Any]) -> StoredSegment:
    """Return the segment in an item.

    Raises:
        JournalDamaged: the item cannot be read.
    """
    try:
        _, tenant, workflow = item["PK"].split("#")
        data = dict(cast(Item, typed_attribute(item, "data", dict)))
        index = segment_index(item["SK"])
        ref = data.pop("analysis", None)
        values: dict[str, Any] = {
            **data,
            "tenant": tenant,
            "workflow": workflow,
            "index": index,
            "image_analysis": json_value(data.get("image_analysis", [])),
            "expires_ms": item.get("expires_ms"),
        }
        if values.pop("segment_index") != index:
            raise ValueError(f"segment_index is {data['segment_index']!r:.80}")
        found = msgspec.convert(values, StoredSegment)
        if ref is None:
            return found
        return msgspec.structs.replace(found, analysis=BlobRef.from_item(ref))
    except (*DECODE_ERRORS, msgspec.ValidationError, InvalidItem) as error:
        raise damaged_item_error(item, "the segment", error) from error


def _not_fenced(now_ms: int) -> Condition:
    return AnyOf((Absent("deleting_ms"), Less("expires_ms", now_ms + 1)))
