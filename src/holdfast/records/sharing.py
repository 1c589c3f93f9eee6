"""An answer that runs share, and the lease of whoever asks for it: one item, which is either.

Each state of the item has an id of its own, so that whoever took a lease can compare it: as long as
it stands, nobody else asks. Whatever stands there counts for nothing once its time is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.records.damage import DAMAGE, attribute, damaged
from holdfast.records.journal import Content, content_of
from holdfast.records.keys import AnswerBlob
from holdfast.records.lifetime import retention_class
from holdfast.storage import Absent, AnyOf, Delete, Equals, Key, Less, Put, Update

__all__ = [
    "Standing",
    "State",
    "answered",
    "blob_name",
    "given_up",
    "leased",
    "renewed",
    "standing_of",
]

State: TypeAlias = Literal["leased", "answered", "unshared"]
"""Somebody asks; the answer is there; it is too large for this store, so that each asks alone.
What a newer release may write besides is taken for the last."""


class Standing(msgspec.Struct, frozen=True):
    """What stands under the key of an answer."""

    id: str
    state: State
    until_ms: int
    """From then on it counts for nothing."""
    content: Content | None
    """The packed answer, where there is one."""


def standing_of(item: Mapping[str, Any]) -> Standing:
    """Return what an item says.

    Raises:
        JournalDamaged: it says that it is an answer, and holds none; or it says nothing.
    """
    try:
        state = attribute(item, "state", str)
        content = content_of(item) if state == "answered" else None
        return Standing(
            attribute(item, "id", str), state, attribute(item, "until_ms", int), content
        )
    except DAMAGE as error:
        raise damaged(item, "the shared answer", error) from error


def leased(key: Key, *, id: str, until_ms: int, now_ms: int, instead_of: str | None = None) -> Put:
    """Return the write by which one of many takes on to ask.

    ``instead_of`` is the id of an answer that turned out to be unreadable.
    """
    free = [Absent("PK"), Less("until_ms", now_ms + 1)]
    unreadable = [] if instead_of is None else [Equals("id", instead_of)]
    item = _item(key, id=id, state="leased", until_ms=until_ms)
    return Put(item, AnyOf((*free, *unreadable)), id)


def renewed(key: Key, lease: str, *, until_ms: int) -> Update:
    """Return the write that prolongs a lease which still stands."""
    changes = {"until_ms": until_ms, "ttl": _ttl(until_ms)}
    return Update(key=key, set=changes, condition=Equals("id", lease))


def answered(key: Key, lease: str, *, id: str, content: Content | None, until_ms: int) -> Put:
    """Return the write that puts the answer in the place of the lease under which it was got.

    Without a content it says that the answer cannot be shared.
    """
    state: State = "unshared" if content is None else "answered"
    item = _item(key, id=id, state=state, until_ms=until_ms)
    if content is not None:
        item |= content.as_item()
    return Put(item, Equals("id", lease), id)


def given_up(key: Key, lease: str) -> Delete:
    """Return the write by which whoever asked, and got no answer, makes room for the next."""
    return Delete(key, Equals("id", lease))


def blob_name(tenant: str, digest: bytes, *, id: str, keep_ms: int) -> str:
    """Return the key of an answer beside the table; its retention class outlives the answer."""
    kept = retention_class(-(-keep_ms // 1000))
    return AnswerBlob(kept, tenant, digest.hex(), id).blob_key


def _item(key: Key, *, id: str, state: State, until_ms: int) -> dict[str, Any]:
    return {
        "PK": key.pk,
        "SK": key.sk,
        "id": id,
        "state": state,
        "until_ms": until_ms,
        "ttl": _ttl(until_ms),
    }


def _ttl(until_ms: int) -> int:
    return -(-until_ms // 1000)
