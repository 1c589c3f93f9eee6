"""Reads reviews, writes their decisions, and lets their trails and entries follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.engine.journal.payloads import (
    delete_orphaned_blob,
    load_payloads,
    pack_payload,
    spill_if_large,
    unpack_payload,
)
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.inbox import SignalFenced
from holdfast.errors import BlobNotFound, ConditionFailed, JournalDamaged
from holdfast.model.review import ActionKind
from holdfast.model.signals import Signal
from holdfast.model.wait import ReviewWait
from holdfast.records.codec import unpack_value
from holdfast.records.head import OPEN, ROW_WAITS_MAX, Head
from holdfast.records.journal import (
    accepted_ms_of,
    content_of,
    fence_of,
    fence_write,
    is_fence,
    payload_bytes,
    signal_write,
    stamp_of,
)
from holdfast.records.review import (
    DECISION_ID,
    ReviewContent,
    ReviewKey,
    StoredReview,
    content_of_review,
    review_write,
    run_ttl_of,
    stored_review_of,
)
from holdfast.records.review_state import (
    ReviewState,
    decided_action,
    folded_review,
    followed_entry,
    last_change,
    trail_decision,
    votes_decision,
)
from holdfast.records.review_trail import (
    StoredAction,
    StoredVote,
    action_position,
    append_action_write,
    broken_at,
    is_action,
    is_vote,
    stored_action_of,
    stored_vote_of,
)

__all__ = [
    "DECISION_BYTES_MAX",
    "DecisionPlace",
    "LoadedReview",
    "append_action",
    "fence_decisions",
    "follow_trail",
    "is_awaited",
    "load_fenced_review",
    "load_review",
    "put_decision",
    "read_decision",
    "review_expiry_ms",
    "settle_review",
    "write_entry",
]

DECISION_BYTES_MAX = 1024 * 1024
"""How large a decision may be: the values of the form, the comments, the votes."""
# How often another process may come first before the trail counts as damaged.
_CONFLICTS_MAX = 100


class LoadedReview(msgspec.Struct, frozen=True, kw_only=True):
    """A review as it stands in the store."""

    key: ReviewKey
    item: Mapping[str, Any]
    """The item of its entry."""
    stored: StoredReview
    content: ReviewContent
    digest: str
    """The hash of what is stored as its content now."""
    actions: tuple[StoredAction, ...]
    next_position: int
    """Where the trail continues."""
    votes: tuple[StoredVote, ...]
    """All votes, also those of earlier rounds."""

    @property
    def state(self) -> ReviewState:
        """What its actions add up to."""
        return folded_review(self.content, self.actions)

    @property
    def is_intact(self) -> bool:
        """Whether nothing of what was shown and of the trail was changed in the store."""
        return (
            self.stored.digest == self.digest
            and broken_at(self.digest, self.actions) is None
            and max(self.stored.position, self.next_position) == len(self.actions)
        )

    @property
    def settled(self) -> Mapping[str, Any] | None:
        """The decision that its trail records; None if there is none."""
        decided = decided_action(self.actions)
        return None if decided is None else decided.data

    def votes_decision(self, expires_ms: int | None) -> dict[str, Any] | None:
        """Return the decision that its votes make; None if they make none."""
        return votes_decision(
            self.content, self.digest, self.actions, self.votes, expires_ms=expires_ms
        )


async def load_review(kernel: Kernel, key: ReviewKey) -> LoadedReview | None:
    """Return a review with its trail, consistently; None if there is none.

    Actions and votes that cannot be read are left out, and noted as damage.

    Raises:
        JournalDamaged: the entry, or what it shows, cannot be read.
    """
    entry: Mapping[str, Any] | None = None
    shown: Mapping[str, Any] | None = None
    actions: list[StoredAction] = []
    votes: list[StoredVote] = []
    next_position = 0
    async for item in kernel.reviews.query_all(key.run.pk, key.all_items):
        sk = item["SK"]
        try:
            if sk == key.entry.sk:
                entry = item
            elif sk == key.shown.sk:
                shown = item
            elif is_action(sk):
                next_position = action_position(sk) + 1
                actions.append(stored_action_of(item))
            elif is_vote(sk):
                votes.append(stored_vote_of(item))
        except JournalDamaged as error:
            kernel.note_damage(item, error)
    if entry is None:
        return None
    if shown is None:
        raise JournalDamaged(f"what review {key.id!r} shows is not stored")
    content, digest = content_of_review(shown)
    return LoadedReview(
        key=key,
        item=entry,
        stored=stored_review_of(entry),
        content=content,
        digest=digest,
        actions=tuple(actions),
        next_position=next_position,
        votes=tuple(votes),
    )


def is_awaited(head: Head, stored: StoredReview) -> bool:
    """Return whether a run may still wait for a review; the row must be read after the review.

    A run that a worker executes may: its row lists no waits. A paused one is in the visits that its
    waits name. If it is in the visit that asked, its node asks again: after a failed attempt it
    waits for the next one.
    """
    if head.generation != stored.generation or head.status not in OPEN:
        return False
    if not head.is_paused or not 0 < len(head.waits) < ROW_WAITS_MAX:
        return True
    asking = (stored.branch, stored.visit)
    return any((wait.branch, wait.visit) == asking for wait in head.waits)


def review_expiry_ms(head: Head, stored: StoredReview) -> int:
    """Return when a review expires: with its run at the latest."""
    return head.expires_ms if stored.expires_ms is None else min(stored.expires_ms, head.expires_ms)


# --- the decision ---------------------------------------------------------------------------------


class DecisionPlace(msgspec.Struct, frozen=True):
    """What the inbox of a run has in the place of a decision: the decision, a fence, or nothing."""

    decision: dict[str, Any] | None = None
    fence: int = -1
    """The position of the fence; -1 if there is none."""

    def is_open_to(self, loaded: LoadedReview) -> bool:
        """Return whether processes may decide that have not read the last change of a review.

        The process that changed it may have died before it wrote the fence.
        """
        change = last_change(loaded.actions)
        return self.decision is None and change is not None and self.fence < change


async def read_decision(kernel: Kernel, key: ReviewKey) -> DecisionPlace:
    """Return the decision of a review from the inbox of its run, or the fence there."""
    item = await kernel.inboxes.get(key.decision)
    if item is None:
        return DecisionPlace()
    if is_fence(item):
        return DecisionPlace(fence=fence_of(item))
    try:
        (data,) = await load_payloads(kernel, [content_of(item)])
    except BlobNotFound:  # the run was freed meanwhile
        return DecisionPlace()
    return DecisionPlace(await unpack_payload(kernel, data, unpack_value))


async def fence_decisions(kernel: Kernel, loaded: LoadedReview) -> bool:
    """Keep processes that have not read the last change of a review from deciding it.

    A change (an edit or a reassignment) is acknowledged after this. Return False if a decision
    stands: then it came before the change.
    """
    position = last_change(loaded.actions)
    if position is None:
        return True
    ttl = run_ttl_of(loaded.item["ttl"])
    write = fence_write(loaded.key.decision, position, ttl=ttl, token=kernel.ids.new())
    try:
        await kernel.resolve_write(kernel.inboxes, write)
    except ConditionFailed as failed:
        return is_fence(failed.item or {})  # that of a later change, or of a reader of this one
    return True


async def load_fenced_review(kernel: Kernel, loaded: LoadedReview) -> LoadedReview:
    """Return a review again, after a fence said that ``loaded`` lacks its last change.

    Raises:
        JournalDamaged: its trail lacks the change, too.
    """
    current = await load_review(kernel, loaded.key)
    if current is None or current.next_position <= loaded.next_position:
        raise JournalDamaged(
            f"the trail of review {loaded.key.id!r} lacks its last actions: withdraw the review"
        )
    return current


async def put_decision(
    kernel: Kernel,
    head: Head,
    key: ReviewKey,
    payload: Mapping[str, Any],
    *,
    fences_below: int,
) -> Signal:
    """Put a decision into the inbox of a run, and wake nothing; return what stands there.

    The first decision counts: if there is one, it is returned.

    Raises:
        SignalFenced: the review was changed at ``fences_below``, or later; nothing was written.
    """
    name = ReviewWait(key.name).signal
    packed = await pack_payload(kernel, payload, bytes_max=DECISION_BYTES_MAX)
    content = await spill_if_large(kernel, head, packed.data, f"signal-{kernel.ids.new()}")
    put = signal_write(
        head,
        name=name,
        id=DECISION_ID,
        content=content,
        plain_bytes=packed.plain_bytes,
        accepted_ms=kernel.clock.now_ms(),
        token=kernel.ids.new(),
        fences_below=fences_below,
    )
    try:
        item: Mapping[str, Any] = await kernel.resolve_write(kernel.inboxes, put)
    except ConditionFailed as failed:
        item = failed.item or {}
        await delete_orphaned_blob(kernel.blobs, content)
        if is_fence(item):
            raise SignalFenced from None
    return Signal(
        name,
        DECISION_ID,
        accepted_ms_of(item),
        content_of(item),
        stamp_of(item),
        payload_bytes(item),
    )


async def settle_review(
    kernel: Kernel,
    key: ReviewKey,
    decision: Mapping[str, Any],
    *,
    loaded: LoadedReview | None = None,
    alive: Callable[[], bool] | None = None,
) -> LoadedReview | None:
    """Let the trail and the entry of a review say how it was decided; idempotent.

    The process that decides does this, and the worker that takes the decision repeats it. Return
    the review; None if its entry says it already, or there is no entry.
    """
    if loaded is None:
        item = await kernel.reviews.get(key.entry)
        if item is None or stored_review_of(item).status != "pending":
            return None
    for _ in range(_CONFLICTS_MAX):
        loaded = loaded or await load_review(kernel, key)
        if loaded is None:
            return None
        if loaded.settled is None:
            by, data = decision.get("by"), trail_decision(decision)
            loaded = await append_action(kernel, loaded, "decided", by=by, data=data, alive=alive)
            if loaded is None:
                continue  # another action came first
        return await follow_trail(kernel, loaded, alive=alive)
    raise _stuck(key)


async def append_action(
    kernel: Kernel,
    loaded: LoadedReview,
    kind: ActionKind,
    *,
    by: str | None,
    data: Any = None,
    alive: Callable[[], bool] | None = None,
) -> LoadedReview | None:
    """Append an action to the trail of a review; return the review with it.

    None if another action was appended meanwhile: then load the review again. `follow_trail` lets
    the entry follow.
    """
    actions = loaded.actions
    write = append_action_write(
        loaded.key,
        loaded.next_position,
        kind=kind,
        by=by,
        at_ms=kernel.clock.now_ms(),
        data=data,
        before=actions[-1].hash if actions else loaded.digest,
        ttl=loaded.item["ttl"],
        token=kernel.ids.new(),
    )
    try:
        action = stored_action_of(await kernel.resolve_write(kernel.reviews, write, alive=alive))
    except ConditionFailed:
        return None
    return msgspec.structs.replace(
        loaded, actions=(*actions, action), next_position=loaded.next_position + 1
    )


async def follow_trail(
    kernel: Kernel, loaded: LoadedReview, *, alive: Callable[[], bool] | None = None
) -> LoadedReview:
    """Let the entry of a review include the actions of its trail; return the review."""
    for _ in range(_CONFLICTS_MAX):
        changed = followed_entry(loaded.stored, loaded.content, loaded.actions)
        if changed == loaded.stored:
            return loaded
        item = await write_entry(kernel, loaded.item, changed, alive=alive)
        if item is not None:
            return msgspec.structs.replace(loaded, item=item, stored=changed)
        current = await load_review(kernel, loaded.key)
        if current is None:
            return loaded
        loaded = current
    raise _stuck(loaded.key)


async def write_entry(
    kernel: Kernel,
    read: Mapping[str, Any],
    changed: StoredReview,
    *,
    alive: Callable[[], bool] | None = None,
) -> Mapping[str, Any] | None:
    """Write the entry of a review; return its item, or None if it is not what was read."""
    shards = (await kernel.get_settings()).list_shards
    write = review_write(changed, read, list_shards=shards, token=kernel.ids.new())
    try:
        item = await kernel.resolve_write(kernel.reviews, write, alive=alive)
    except ConditionFailed:
        return None
    if changed.has_due_notice(kernel.clock.now_ms()):
        kernel.notice_nudges.nudge(changed.key)
    return item


def _stuck(key: ReviewKey) -> JournalDamaged:
    return JournalDamaged(f"the trail of review {key.id!r} does not take another action")
