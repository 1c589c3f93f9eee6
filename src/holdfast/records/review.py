"""The items of a review: its entry, and what was shown. All are in the partition of the run.

============================================== =================================================
sort key                                       item
============================================== =================================================
``REVIEW#{generation}#{name}``                 the entry: what lists show; it changes
``REVIEW#{generation}#{name}#A#{position:06}`` an action of the trail: see `review_trail`
``REVIEW#{generation}#{name}#SHOWN``           what was asked and shown; it never changes
``REVIEW#{generation}#{name}#V#{round:04}#…``  a vote: see `review_trail`
============================================== =================================================

The decision is a signal in the inbox of the run, with the fixed id ``decision``: approve, reject,
expire and withdraw compete for one conditional Put. An edit or a reassignment writes a fence there,
with its position in the trail: an approval or a rejection replaces only a fence whose action it has
read. The entry only follows: it is a projection of the decision and of the actions, and is written
after them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.model.people import EVERYONE
from holdfast.model.review import ReviewEntry, ReviewStatus
from holdfast.model.wait import ReviewWait
from holdfast.records.codec import compress, encode, unpack_value
from holdfast.records.damage import DECODE_ERRORS, damaged_item_error
from holdfast.records.head import Head
from holdfast.records.index_keys import list_partition, shard_of
from holdfast.records.keys import RunKey, inbox_key, parsed_int
from holdfast.records.times import utc_datetime
from holdfast.storage import Absent, Equals, Key, Less, Prefix, Put, Update
from holdfast.storage.layout import TOKEN

__all__ = [
    "DECISION_ID",
    "EVERYONE",
    "EVERY_FENCE",
    "QUESTION_CHARS_SHOWN",
    "UNDELIVERED_NOTICES",
    "NoticeKind",
    "PendingNotice",
    "ReviewContent",
    "ReviewKey",
    "StoredReview",
    "ToolArguments",
    "content_digest",
    "content_of_review",
    "create_content_write",
    "create_review_write",
    "extend_review_write",
    "is_review_entry",
    "notice_due_ms_of",
    "notice_key_of",
    "notice_partitions",
    "review_list_partition",
    "review_name",
    "review_position",
    "review_ttl",
    "review_write",
    "run_reviews_range",
    "run_ttl_of",
    "stored_review_of",
]

DECISION_ID = "decision"
"""The id of the signal that decides a review."""
EVERY_FENCE = 1_000_000
"""More than the position of any action: a decision replaces all fences below this one."""
UNDELIVERED_NOTICES = "NOTICES#UNDELIVERED"
"""The partition, in ``GSI1``, of reviews of which no reviewer could be notified."""
_NOTICE_SHARDS = 2
QUESTION_CHARS_SHOWN = 200
_NEVER_MS = 9_999_999_999_999
_KEPT_SECONDS = 7 * 24 * 3600
_NAME_CHARS = 16

NoticeKind: TypeAlias = Literal["requested", "reassigned", "edited", "reminder", "escalation"]
"""Why reviewers are notified."""


class ReviewKey(msgspec.Struct, frozen=True):
    """Identifies a review: its run, the generation of the run, and its name."""

    run: RunKey
    generation: str
    name: str

    @property
    def id(self) -> str:
        """The id under which callers know it."""
        return f"{self.run.id}~{self.name}"

    @property
    def log_name(self) -> str:
        """The review as logs name it; its id begins with that of the run."""
        return f"review {self.id} of tenant {self.run.tenant}"

    @property
    def entry(self) -> Key:
        """The key of its entry."""
        return Key(self.run.pk, self._sk)

    @property
    def shown(self) -> Key:
        """The key of what was shown."""
        return Key(self.run.pk, f"{self._sk}#SHOWN")

    @property
    def decision(self) -> Key:
        """The key of the signal that decides it, or of a fence."""
        return inbox_key(self.run, self.generation, ReviewWait(self.name).signal, DECISION_ID)

    def action(self, position: int) -> Key:
        """Return the key of an action of the trail."""
        return Key(self.run.pk, f"{self._sk}#A#{position:06d}")

    def vote(self, round: int, reviewer: str) -> Key:
        """Return the key of the vote of a reviewer in a round."""
        digest = hashlib.blake2b(reviewer.casefold().encode(), digest_size=12).hexdigest()
        return Key(self.run.pk, f"{self._sk}#V#{round:04d}#{digest}")

    @property
    def all_items(self) -> Prefix:
        """The range of all its items."""
        return Prefix(self._sk)

    @property
    def _sk(self) -> str:
        return f"REVIEW#{self.generation}#{self.name}"


def review_ttl(run_ttl: int) -> int:
    """Return the ttl of the items of a review: they outlive its run, so that lists show them."""
    return run_ttl + _KEPT_SECONDS


def run_ttl_of(review_ttl: int) -> int:
    """Return the ttl of a run from that of its reviews."""
    return review_ttl - _KEPT_SECONDS


def review_name(generation: str, visit_path: str, subject: str) -> str:
    """Return the name of a review: it follows from the visit of the node and what it asks for.

    ``subject`` is the number of the review in its visit, or the call that needs an approval.
    """
    text = f"{generation}\0{visit_path}\0{subject}"
    return hashlib.blake2b(text.encode(), digest_size=_NAME_CHARS // 2).hexdigest()


# --- what was shown -------------------------------------------------------------------------------


class ToolArguments(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The call of a tool that a reviewer approves: its canonical arguments, without a key."""

    tool: str
    schema: str
    """The hash of the schema of the tool's parameters."""
    arguments: dict[str, Any]
    name: str = ""
    """Its name among the values, if the review is about several calls."""


class ReviewContent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was asked and shown. It is written once, and its hash is the review's ``digest``."""

    question: str
    shown: Any = None
    form: dict[str, Any] | None = None
    """The JSON schema of the values that a reviewer may edit."""
    values: Any = None
    tools: tuple[ToolArguments, ...] = ()
    assignees: tuple[str, ...] = ()
    """Who was asked first; empty if every reviewer may decide."""
    quorum: int = 1
    note: str = ""
    """Why it is asked again."""


def content_digest(plain: bytes) -> str:
    """Return the hash of what was shown, as it is stored."""
    return hashlib.sha256(plain).hexdigest()


def create_content_write(
    key: ReviewKey, content: ReviewContent, *, ttl: int, token: str
) -> tuple[Put, str]:
    """Return the write of what is shown, unless it is there, and its hash."""
    plain = encode(msgspec.to_builtins(content, builtin_types=(bytes,)))
    place = key.shown
    item = {
        "PK": place.pk, "SK": place.sk, "ttl": review_ttl(ttl), "data": compress(plain),
    }  # fmt: skip
    return Put(item, Absent("PK"), token), content_digest(plain)


def content_of_review(item: Mapping[str, Any]) -> tuple[ReviewContent, str]:
    """Return what was shown, and the hash of what is stored now.

    Raises:
        JournalDamaged: the item cannot be read.
    """
    try:
        value = unpack_value(item["data"])
        return msgspec.convert(value, ReviewContent), content_digest(encode(value))
    except DECODE_ERRORS as error:
        raise damaged_item_error(item, "what a review shows", error) from error


# --- the entry ------------------------------------------------------------------------------------


class PendingNotice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A notice that is to be sent to reviewers."""

    kind: NoticeKind
    due_ms: int
    to: tuple[str, ...]
    """Who has not got it yet; `EVERYONE` stands for all whom the notifiers reach."""
    attempts: int = 0
    failing_ms: int = 0
    """Since when it is tried in vain."""
    error: str = ""
    planned_ms: int = 0
    """When it was first due, if attempts to send it have failed since."""
    reached: bool = False
    """Whether anyone has got it."""
    sent: dict[str, tuple[str, ...]] = {}
    """By reviewer in ``to``, the notifiers from which they have got it."""

    @property
    def place(self) -> tuple[str, int]:
        """What tells it from the other notices of its review, also after failed attempts."""
        return self.kind, self.planned_ms or self.due_ms


class StoredReview(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The entry of a review."""

    tenant: str
    run: str
    generation: str
    name: str
    graph: str
    node: str
    question: str
    digest: str
    created_ms: int
    visit: int = 0
    """The visit of the node that asks, in its branch."""
    branch: str = ""
    expires_ms: int | None = None
    due_ms: int | None = None
    """When it becomes overdue."""
    quorum: int = 1
    assignees: tuple[str, ...] = ()
    claimed_by: str | None = None
    status: ReviewStatus = "pending"
    decided_by: str | None = None
    decided_ms: int | None = None
    position: int = 0
    """How many actions of the trail it includes."""
    notices: tuple[PendingNotice, ...] = ()
    leased_ms: int = 0
    """Until when one process sends its notices, and others must not."""
    undelivered: str = ""
    """Why no reviewer could be notified."""

    @property
    def key(self) -> ReviewKey:
        """Its key."""
        return ReviewKey(RunKey(self.tenant, self.run), self.generation, self.name)

    @property
    def notice_due_ms(self) -> int | None:
        """When its next notice is due; None if none is left, or it is decided.

        If all attempts were given up, it stays in the index until it expires: as undelivered.
        """
        if self.status != "pending":
            return None
        last_ms = (self.expires_ms or _NEVER_MS) if self.undelivered else None
        due = min((notice.due_ms for notice in self.notices), default=last_ms)
        return None if due is None else max(due, self.leased_ms)

    def has_due_notice(self, now_ms: int) -> bool:
        """Return whether a notice is to be sent now."""
        due_ms = self.notice_due_ms
        return due_ms is not None and due_ms <= now_ms

    def is_overdue(self, now_ms: int) -> bool:
        """Return whether it waits for longer than it should."""
        return self.status == "pending" and self.due_ms is not None and now_ms >= self.due_ms

    def shown(self, now_ms: int) -> ReviewEntry:
        """Return it as callers see it in a list."""
        return ReviewEntry(
            id=self.key.id,
            run=self.run,
            tenant=self.tenant,
            graph=self.graph,
            node=self.node,
            question=self.question,
            status=self.status,
            assignees=self.assignees,
            claimed_by=self.claimed_by,
            created_at=utc_datetime(self.created_ms),
            expires_at=None if self.expires_ms is None else utc_datetime(self.expires_ms),
            due_at=None if self.due_ms is None else utc_datetime(self.due_ms),
            overdue=self.is_overdue(now_ms),
            quorum=self.quorum,
            undelivered=self.undelivered or None,
            decided_by=self.decided_by,
            decided_at=None if self.decided_ms is None else utc_datetime(self.decided_ms),
        )


def review_list_partition(tenant: str, shard: int, *, pending: bool) -> str:
    """Return one of the partitions of a tenant's reviews, in ``GSI2``."""
    return list_partition("REVIEWS" if pending else "REVIEWED", tenant, shard)


def run_reviews_range(generation: str) -> Prefix:
    """Return the range of the items of all reviews of a run."""
    return Prefix(f"REVIEW#{generation}#")


def is_review_entry(sk: str) -> bool:
    """Return whether a sort key among the items of reviews is that of an entry."""
    return sk.count("#") == 2


def review_position(item: Mapping[str, Any]) -> str:
    """Return where a list has the entry of a review: its sort key in ``GSI2``."""
    return item.get("GSI2SK", "")


def notice_partitions() -> tuple[str, ...]:
    """Return the partitions of the reviews with notices to send, in ``GSI1``."""
    return (*map(_notice_shard, range(_NOTICE_SHARDS)), UNDELIVERED_NOTICES)


def _notice_shard(shard: int) -> str:
    return f"NOTICES#{shard:02d}"


def notice_key_of(entry: Mapping[str, Any]) -> ReviewKey:
    """Return the review of an entry of ``GSI1``.

    Raises:
        ValueError: the entry is not one of a review.
    """
    due_ms, tenant, run, generation, name = str(entry["GSI1SK"]).split("#")
    parsed_int(due_ms)
    return ReviewKey(RunKey(tenant, run), generation, name)


def notice_due_ms_of(entry: Mapping[str, Any]) -> int:
    """Return when the next notice of an entry of ``GSI1`` is due.

    Raises:
        ValueError: the entry is not one of a review.
    """
    return parsed_int(str(entry["GSI1SK"]).partition("#")[0])


def create_review_write(made: StoredReview, head: Head, *, list_shards: int, token: str) -> Put:
    """Return the write of a new entry, unless it is there."""
    item = _item(made, list_shards=list_shards, ttl=review_ttl(head.ttl))
    return Put(item, Absent("PK"), token)


def review_write(
    changed: StoredReview, read: Mapping[str, Any], *, list_shards: int, token: str
) -> Put:
    """Return the write of a changed entry. It fails if the entry is not what was read."""
    item = _item(changed, list_shards=list_shards, ttl=read["ttl"])
    return Put(item, Equals(TOKEN, read[TOKEN]), token)


def extend_review_write(item: Mapping[str, Any], ttl: int, *, token: str) -> Update:
    """Return the write that extends the ttl of an item of a review; see `review_ttl`.

    It fails if the ttl is long enough. With its token, a process that has read the entry before
    does not write the old ttl back.
    """
    key = Key(item["PK"], item["SK"])
    return Update(key=key, set={"ttl": ttl}, condition=Less("ttl", ttl), token=token)


def stored_review_of(item: Mapping[str, Any]) -> StoredReview:
    """Return the review of an entry, or of its place in ``GSI2``.

    Raises:
        JournalDamaged: it cannot be read.
    """
    try:
        return msgspec.convert(item["show"], StoredReview)
    except DECODE_ERRORS as error:
        raise damaged_item_error(item, "the entry of a review", error) from error


def _item(review: StoredReview, *, list_shards: int, ttl: int) -> dict[str, Any]:
    key = review.key.entry
    pending = review.status == "pending"
    listed_ms = review.created_ms if pending else review.decided_ms or review.created_ms
    shard = shard_of(review.run, list_shards)
    item: dict[str, Any] = {
        "PK": key.pk,
        "SK": key.sk,
        "ttl": ttl,
        # Through MessagePack: an item holds lists, and no tuples.
        "show": msgspec.msgpack.decode(msgspec.msgpack.encode(review)),
        "GSI2PK": review_list_partition(review.tenant, shard, pending=pending),
        "GSI2SK": f"{listed_ms:013d}#{review.run}#{review.name}",
    }
    if (due_ms := review.notice_due_ms) is not None:
        tail = f"{review.tenant}#{review.run}#{review.generation}#{review.name}"
        shard = _notice_shard(shard_of(review.run, _NOTICE_SHARDS))
        item["GSI1PK"] = UNDELIVERED_NOTICES if review.undelivered else shard
        item["GSI1SK"] = f"{due_ms:013d}#{tail}"
    return item
