"""The item of a shared answer: either the answer, or the lease of the run that asks for it.

Each state of the item has its own id. The run with the lease compares it in its writes. Other runs
do not ask while the lease is valid. Any state is ignored after its expiry.
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
"""``leased``: a run asks. ``answered``: the answer is there. ``unshared``: the answer is too large
for the store, so each run asks for itself. Unknown states of newer releases count as ``unshared``.
"""


class SharedAnswerRow(msgspec.Struct, frozen=True):
    """The state of a shared answer."""

    id: str
    state: SharedAnswerState
    expires_ms: int
    """The row is ignored from this time."""
    content: Content | None
    """The packed answer, if there is one."""


def shared_answer_of(item: Mapping[str, Any]) -> SharedAnswerRow:
    """Return the row in an item.

    Raises:
        JournalDamaged: the item cannot be read, or has no answer though it is ``answered``.
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
    """Return the write by which a run takes the lease to ask. Only one run succeeds.

    ``instead_of`` is the id of an unreadable answer that the lease replaces.
    """
    free = [Absent("PK"), Less("until_ms", now_ms + 1)]
    unreadable = [] if instead_of is None else [Equals("id", instead_of)]
    item = _item(key, id=id, state="leased", expires_ms=expires_ms)
    return Put(item, AnyOf((*free, *unreadable)), id)


def renew_write(key: Key, lease: str, *, expires_ms: int) -> Update:
    """Return the write that renews a lease. It fails if the lease is lost."""
    changes = {"until_ms": expires_ms, "ttl": _ttl(expires_ms)}
    return Update(key=key, set=changes, condition=Equals("id", lease))


def answer_write(key: Key, lease: str, *, id: str, content: Content | None, expires_ms: int) -> Put:
    """Return the write that replaces a lease by its answer.

    Without content the state becomes ``unshared``.
    """
    state: SharedAnswerState = "unshared" if content is None else "answered"
    item = _item(key, id=id, state=state, expires_ms=expires_ms)
    if content is not None:
        item |= content.as_item()
    return Put(item, Equals("id", lease), id)


def release_write(key: Key, lease: str) -> Delete:
    """Return the write that releases a lease without an answer, so that another run can ask."""
    return Delete(key, Equals("id", lease))


def answer_blob_key(tenant: str, digest: bytes, *, id: str, keep_ms: int) -> str:
    """Return the blob key of an answer. Its retention class is longer than the answer is valid."""
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
