"""The trail of a review: its actions, which are only appended, and the votes of its reviewers.

Each action has the hash of the one before it, and the first has the hash of what was shown. So an
action that is changed or removed in the store shows: `broken_at` finds it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import JournalDamaged
from holdfast.model.review import ActionKind, ReviewAction, ReviewOutcome, ReviewVote
from holdfast.records.codec import compress, encode, unpack_value
from holdfast.records.damage import DECODE_ERRORS, damaged_item_error
from holdfast.records.keys import parsed_int
from holdfast.records.review import ReviewKey
from holdfast.records.times import utc_datetime
from holdfast.storage import Absent, Put

__all__ = [
    "StoredAction",
    "StoredVote",
    "action_position",
    "append_action_write",
    "broken_at",
    "is_action",
    "is_vote",
    "stored_action_of",
    "stored_vote_of",
    "vote_write",
]


class StoredAction(msgspec.Struct, frozen=True, kw_only=True):
    """An action of a trail."""

    position: int
    kind: ActionKind
    by: str | None
    at_ms: int
    data: dict[str, Any] | None = None
    before: str
    """The hash of the action before it; of the first one, the hash of what was shown."""
    hash: str
    """The hash of this action, which includes ``before``."""
    written_hash: str
    """The hash that was written with it. It differs if the action was changed in the store."""

    @property
    def request_key(self) -> str:
        """The idempotency key of the request; empty if there was none."""
        return "" if self.data is None else self.data.get("key", "")

    def shown(self) -> ReviewAction:
        """Return it as callers see it."""
        return ReviewAction(
            position=self.position,
            kind=self.kind,
            by=self.by,
            at=utc_datetime(self.at_ms),
            data=self.data,
            hash=self.hash,
        )


class StoredVote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A vote."""

    reviewer: str
    approve: bool
    comment: str = ""
    at_ms: int
    round: int = 0
    seen: str = ""
    """The hash of what the reviewer was shown."""
    key: str = ""
    """The idempotency key of the request; empty if there was none."""
    through: str = ""
    """The caller that voted on behalf of the reviewer; empty if the reviewer did."""

    def shown(self) -> ReviewVote:
        """Return it as callers see it."""
        return ReviewVote(
            by=self.reviewer,
            approve=self.approve,
            comment=self.comment,
            at=utc_datetime(self.at_ms),
            round=self.round,
            through=self.through or None,
        )


# What the state of a review is folded from must be there; other actions may say anything.


class _Reassigned(msgspec.Struct):
    to: list[str]
    before: list[str] = msgspec.field(default_factory=list[str], name="from")


class _Edited(msgspec.Struct):
    values: Any


class _Decided(msgspec.Struct):
    status: ReviewOutcome
    at_ms: int
    by: str | None = None
    comment: str = ""
    votes: list[StoredVote] = []


_SHAPES = {"reassigned": _Reassigned, "edited": _Edited, "decided": _Decided}


def append_action_write(
    key: ReviewKey,
    position: int,
    *,
    kind: ActionKind,
    by: str | None,
    at_ms: int,
    data: Any = None,
    before: str,
    ttl: int,
    token: str,
) -> Put:
    """Return the write of an action at the next position, unless another action is there."""
    plain = encode([kind, by, at_ms, data])
    place = key.action(position)
    item = {
        "PK": place.pk,
        "SK": place.sk,
        "ttl": ttl,
        "data": compress(plain),
        "before": before,
        "hash": _hash(before, plain),
    }
    return Put(item, Absent("PK"), token)


def is_action(sk: str) -> bool:
    """Return whether a sort key of a review's items is that of an action."""
    return _part(sk) == "A"


def action_position(sk: str) -> int:
    """Return the position of an action from its sort key.

    Raises:
        JournalDamaged: the sort key has none.
    """
    try:
        return parsed_int(sk.rpartition("#")[2])
    except ValueError as error:
        raise JournalDamaged(f"the action of a review at {sk!r:.200} has no position") from error


def is_vote(sk: str) -> bool:
    """Return whether a sort key of a review's items is that of a vote."""
    return _part(sk) == "V"


def _part(sk: str) -> str:
    parts = sk.split("#", 4)
    return parts[3] if len(parts) > 3 else ""


def stored_action_of(item: Mapping[str, Any]) -> StoredAction:
    """Return the action in an item. Its hash is that of what is stored now.

    Raises:
        JournalDamaged: it cannot be read.
    """
    try:
        value = unpack_value(item["data"])
        kind, by, at_ms, data = value
        found = {
            "position": action_position(item["SK"]),
            "kind": kind,
            "by": by,
            "at_ms": at_ms,
            "data": data,
            "before": item["before"],
            "hash": _hash(item["before"], encode(value)),
            "written_hash": item["hash"],
        }
        action = msgspec.convert(found, StoredAction)
        if (shape := _SHAPES.get(action.kind)) is not None:
            msgspec.convert(action.data, shape)
        return action
    except DECODE_ERRORS as error:
        raise damaged_item_error(item, "an action of a review", error) from error


def broken_at(digest: str, actions: Sequence[StoredAction]) -> int | None:
    """Return the position from which a trail was changed in the store; None if it is whole."""
    before = digest
    for position, action in enumerate(actions):
        if (action.position, action.before, action.written_hash) != (position, before, action.hash):
            return position
        before = action.hash
    return None


def vote_write(key: ReviewKey, vote: StoredVote, *, ttl: int, token: str) -> Put:
    """Return the write of a vote, unless the reviewer has voted in this round."""
    place = key.vote(vote.round, vote.reviewer)
    item = {"PK": place.pk, "SK": place.sk, "ttl": ttl, "vote": msgspec.to_builtins(vote)}
    return Put(item, Absent("PK"), token)


def stored_vote_of(item: Mapping[str, Any]) -> StoredVote:
    """Return the vote in an item.

    Raises:
        JournalDamaged: it cannot be read.
    """
    try:
        return msgspec.convert(item["vote"], StoredVote)
    except DECODE_ERRORS as error:
        raise damaged_item_error(item, "a vote of a review", error) from error


def _hash(before: str, plain: bytes) -> str:
    return hashlib.sha256(before.encode() + b"\0" + plain).hexdigest()
