"""An answer that runs share, and the lease of whoever asks for it: one item, which is either.

Each state of the item has an id of its own, so that whoever took a lease can compare it: as long as
it stands, nobody else asks. Whatever stands there counts for nothing once its time is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.records.blob_keys import AnswerBlob
from holdfast.records.damage import DECODE_ERRORS, damaged_item_error, typed_attribute
from holdfast.records.journal import Content, content_of
from holdfast.records.lifetime import retention_class
from holdfast.storage import Absent, AnyOf, Delete, Equals, Key, Less, Put, Update

__all__ = [
    "SharedAnswerRow",
    "SharedAnswerState",
    "answer_blob_key",
    "answer_write",
    "lease_write",
    "release_write",
    "renew_write",
    "shared_answer_of",
]

SharedAnswerState: TypeAlias = Literal["leased", "answered", "unshared"]
"""Somebody asks; the answer is there; it is too large for this store, so that each asks alone.
What a newer release may write besides is taken for the last."""


class SharedAnswerRow(msgspec.Struct, frozen=True):
    """What stands under the key of an answer."""

    id: str
    state: SharedAnswerState
    expires_ms: int
    """From then on it counts for nothing."""
    content: Content | None
    """The packed answer, where there is one."""


def shared_answer_of(item: Mapping[str, Any]) -> SharedAnswerRow:
    """Return what an item says.

    Raises:
        JournalDamaged: it says that it is an answer, and holds none; or it says nothing.
    """
    try:
        state = typed_attribute(item, "state", str)
        content = content_of(item) if state == "answered" else None
        return SharedAnswerRow(
            typed_attribute(item, "id", str), state, typed_attribute(item, "until_ms", int), content
        )
    except DECODE_ERRORS as error:
        raise damaged_item_error(item, "the shared answer", error) from error


def lease_write(
    key: Key, *, id: str, expires_ms: int, now_ms: int, instead_of: str | None = None
) -> Put:
    """Return the write by which one of many takes on to ask.

    ``instead_of`` is the id of an answer that turned out to be unreadable.
    """
    free = [Absent("PK"), Less("until_ms", now_ms + 1)]
    unreadable = [] if instead_of is None else [Equals("id", instead_of)]
    item = _item(key, id=id, state="leased", expires_ms=expires_ms)
    return Put(item, AnyOf((*free, *unreadable)), id)


def renew_write(key: Key, lease: str, *, expires_ms: int) -> Update:
    """Return the write that prolongs a lease which still stands."""
    changes = {"until_ms": expires_ms, "ttl": _ttl(expires_ms)}
    return Update(key=key, set=changes, condition=Equals("id", lease))


def answer_write(key: Key, lease: str, *, id: str, content: Content | None, expires_ms: int) -> Put:
    """Return the write that puts the answer in the place of the lease under which it was got.

    Without a content it says that the answer cannot be shared.
    """
    state: SharedAnswerState = "unshared" if content is None else "answered"
    item = _item(key, id=id, state=state, expires_ms=expires_ms)
    if content is not None:
        item |= content.as_item()
    return Put(item, Equals("id", lease), id)


def release_write(key: Key, lease: str) -> Delete:
    """Return the write by which whoever asked, and got no answer, makes room for the next."""
    return Delete(key, Equals("id", lease))


def answer_blob_key(tenant: str, digest: bytes, *, id: str, keep_ms: int) -> str:
    """Return the key of an answer beside the table; its retention class outlives the answer."""
    kept = retention_class(-(-keep_ms // 1000))
    return AnswerBlob(kept, tenant, digest.hex(), id).blob_key


def _item(key: Key, *, id: str, state: SharedAnswerState, expires_ms: int) -> dict[str, Any]:
    return {
        "PK": key.pk,
        "SK": key.sk,
        "id": id,
        "state": state,
        "until_ms": expires_ms,
        "ttl": _ttl(expires_ms),
    }


def _ttl(expires_ms: int) -> int:
    return -(-expires_ms // 1000)
