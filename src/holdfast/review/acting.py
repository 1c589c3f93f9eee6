"""What people do with a review before it is decided: claim, release, reassign, comment, edit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.engine.runs.review_arguments import validated_form_values
from holdfast.engine.runs.review_outcomes import find_decision
from holdfast.engine.runs.reviewing import (
    LoadedReview,
    append_action,
    fence_decisions,
    follow_trail,
)
from holdfast.errors import InvalidRequest, NotAssigned, ReviewChanged, ReviewClaimed
from holdfast.model.review import ActionKind, Review
from holdfast.records.codec import canonical_hash
from holdfast.records.review_state import DELEGATED, is_same_person
from holdfast.review.delegation import Delegate, delegates_of, replaced_people
from holdfast.review.loading import OpenReview, ReviewStore
from holdfast.review.showing import difference_since

__all__ = [
    "act",
    "changed_error",
    "check_assigned",
    "check_may_decide",
    "check_seen",
    "claim",
    "comment",
    "edit",
    "edit_values",
    "is_same",
    "reassign",
    "release",
    "with_caller",
]

_ACTIONS_MAX = 1_000
# Each edit stores all values, and each reader reads them.
_EDITS_MAX = 100

Plan = Callable[[OpenReview], tuple[ActionKind, Mapping[str, Any]] | None]
"""Returns the action that a person wants, after its checks; None if there is nothing to do."""


async def act(store: ReviewStore, id: str, tenant: str, *, by: str | None, plan: Plan) -> Review:
    """Append an action to the trail of a review that is pending, and let its entry follow.

    Raises:
        ReviewNotFound: the tenant has no such review.
        ReviewDecided: it is decided.
        InvalidRequest: its trail is full, or it was edited too often.
    """
    while True:
        found = await store.find_pending(id, tenant)
        planned = plan(found)
        if planned is None:
            return store.shown(found)
        loaded = await _append(store, found.loaded, planned, by=by)
        if loaded is None:
            continue  # another action came first, or a decision
        decision: Mapping[str, Any] | None = None
        if planned[0] == "reassigned" and loaded.votes:  # too few may be left to approve it
            loaded, decision = await find_decision(store.kernel, store.workers, found.head, loaded)
        return store.shown(OpenReview(found.head, loaded, decision))


async def _append(
    store: ReviewStore,
    loaded: LoadedReview,
    planned: tuple[ActionKind, Mapping[str, Any]],
    *,
    by: str | None,
) -> LoadedReview | None:
    """Append an action; None if another one came first, or before a change of it a decision."""
    if loaded.next_position >= _ACTIONS_MAX:
        raise InvalidRequest(
            f"review {loaded.key.id!r} has {_ACTIONS_MAX:,} actions, and takes no more: decide it"
        )
    kind, data = planned[0], {**planned[1]} | with_caller(store)
    if kind == "edited" and loaded.state.round >= _EDITS_MAX:
        raise InvalidRequest(
            f"review {loaded.key.id!r} was edited {_EDITS_MAX:,} times, and takes no more edits: "
            "decide it",
            field="values",
        )
    appended = await append_action(store.kernel, loaded, kind, by=by, data=data or None)
    if appended is None:
        return None
    if kind in ("edited", "reassigned") and not await fence_decisions(store.kernel, appended):
        return None
    return await follow_trail(store.kernel, appended)


# --- who may act ----------------------------------------------------------------------------------


def check_assigned(loaded: LoadedReview, person: str) -> None:
    """Check that a person may decide a review.

    Raises:
        NotAssigned: it is assigned to other people.
    """
    state = loaded.state
    if not state.may_decide(person):
        raise NotAssigned(
            f"review {loaded.key.id!r} is assigned to {', '.join(state.assignees)}, and not to "
            f"{person}"
        )


def check_may_decide(loaded: LoadedReview, person: str) -> None:
    """Check that a person may decide a review now.

    Raises:
        NotAssigned: it is assigned to other people.
        ReviewClaimed: another reviewer has claimed it.
    """
    check_assigned(loaded, person)
    claimer = loaded.state.claimed_by
    if claimer is not None and not is_same_person(claimer, person):
        raise ReviewClaimed(
            f"{claimer} has claimed review {loaded.key.id!r}: they decide it, release it, or "
            "another reviewer takes it over",
            by=claimer,
        )


def check_seen(store: ReviewStore, found: OpenReview, seen: str | None) -> None:
    """Check that a review is still what a reviewer was shown.

    Raises:
        ReviewChanged: its values or its assignees were changed since.
    """
    if seen is not None and seen != found.loaded.state.rendered(found.loaded.digest):
        raise changed_error(store, found, seen)


def changed_error(store: ReviewStore, found: OpenReview, seen: str) -> ReviewChanged:
    """Return the error that a review is not what a reviewer was shown, which says what changed."""
    difference = difference_since(found.loaded, seen)
    return ReviewChanged(
        f"review {found.loaded.key.id!r} was changed since it was shown ({'; '.join(difference)}): "
        "look at it again",
        review=store.shown(found),
        difference=difference,
    )


# --- the actions ----------------------------------------------------------------------------------


async def claim(store: ReviewStore, id: str, tenant: str, *, by: str, take_over: bool) -> Review:
    """Claim a review, so that only this person decides it; see `Reviews.claim`."""

    def plan(found: OpenReview) -> tuple[ActionKind, Mapping[str, Any]] | None:
        loaded = found.loaded
        if loaded.content.quorum > 1:
            raise InvalidRequest(
                f"review {loaded.key.id!r} needs {loaded.content.quorum} votes: it cannot be "
                "claimed by one reviewer"
            )
        (check_assigned if take_over else check_may_decide)(loaded, by)
        claimer = loaded.state.claimed_by
        if claimer is not None and is_same_person(claimer, by):
            return None
        return "claimed", {} if claimer is None else {"from": claimer}

    return await act(store, id, tenant, by=by, plan=plan)


async def release(store: ReviewStore, id: str, tenant: str, *, by: str) -> Review:
    """Give a claim back; see `Reviews.release`."""

    def plan(found: OpenReview) -> tuple[ActionKind, Mapping[str, Any]] | None:
        check_may_decide(found.loaded, by)
        return None if found.loaded.state.claimed_by is None else ("released", {})

    return await act(store, id, tenant, by=by, plan=plan)


async def comment(
    store: ReviewStore, id: str, tenant: str, *, by: str, text: str, force: bool, key: str
) -> Review:
    """Add a comment to the trail of a review; see `Reviews.comment`."""

    def plan(found: OpenReview) -> tuple[ActionKind, Mapping[str, Any]] | None:
        if not force:
            check_assigned(found.loaded, by)
        if _was_done(found.loaded, "commented", by, key):
            return None
        return "commented", {"text": text} | _with_key(key)

    return await act(store, id, tenant, by=by, plan=plan)


async def reassign(
    store: ReviewStore,
    id: str,
    tenant: str,
    *,
    by: str,
    to: tuple[str, ...],
    text: str,
    force: bool,
    key: str,
    delegate: Delegate | None,
) -> Review:
    """Assign a review to other people; see `Reviews.reassign`."""
    stand_ins: Mapping[str, tuple[str, ...]] = {}
    if delegate is not None:
        asked = (await store.find_pending(id, tenant)).loaded.stored
        now_ms = store.kernel.clock.now_ms()
        stand_ins = await delegates_of(delegate, to, review=asked, now_ms=now_ms)

    def plan(found: OpenReview) -> tuple[ActionKind, Mapping[str, Any]] | None:
        loaded = found.loaded
        if not force:
            check_assigned(loaded, by)
        if _was_done(loaded, "reassigned", by, key):
            return None
        before, quorum = loaded.state.assignees, loaded.content.quorum
        people = replaced_people(to, stand_ins)
        if people and len(people) < quorum:
            people = to
        if people and len(people) < quorum:
            raise InvalidRequest(
                f"to must contain at least {quorum} people, as many as decide, got {len(people)}",
                field="to",
            )
        if people == before:
            return None
        data: dict[str, Any] = {"from": list(before), "to": list(people)} | _with_key(key)
        if people != to:
            data |= {"asked": list(to), "reason": DELEGATED}
        if text:
            data["comment"] = text
        return "reassigned", data

    return await act(store, id, tenant, by=by, plan=plan)


async def edit(
    store: ReviewStore,
    id: str,
    tenant: str,
    *,
    by: str,
    values: Any,
    seen: str | None,
    key: str,
) -> Review:
    """Change the values of the form of a review; see `Reviews.edit`."""

    def plan(found: OpenReview) -> tuple[ActionKind, Mapping[str, Any]] | None:
        check_may_decide(found.loaded, by)
        if _was_done(found.loaded, "edited", by, key):
            return None
        check_seen(store, found, seen)
        stored = validated_form_values(values, found.loaded.content.form)
        if is_same(stored, found.loaded.state.values):
            return None
        return "edited", {"values": stored} | _with_key(key)

    return await act(store, id, tenant, by=by, plan=plan)


async def edit_values(
    store: ReviewStore, found: OpenReview, *, by: str, values: Any
) -> LoadedReview:
    """Change the values of a review that was just read, before a vote on them.

    Raises:
        ReviewChanged, ReviewDecided, NotAssigned: it was changed or decided meanwhile.
    """
    key, seen = found.loaded.key, found.loaded.state.rendered(found.loaded.digest)
    while True:
        loaded = await _append(store, found.loaded, ("edited", {"values": values}), by=by)
        if loaded is not None:
            return loaded
        found = await store.find_pending(key.id, key.run.tenant)
        check_assigned(found.loaded, by)
        check_seen(store, found, seen)


def is_same(values: Any, others: Any) -> bool:
    """Return whether the values of a form are the same. 0 and False are not."""
    return canonical_hash([values]) == canonical_hash([others])


def with_caller(store: ReviewStore) -> dict[str, str]:
    """Return what an action or a decision says of the caller that acts on behalf of a person."""
    return {"through": store.through} if store.through else {}


def _with_key(key: str) -> dict[str, str]:
    return {"key": key} if key else {}


def _was_done(loaded: LoadedReview, kind: ActionKind, by: str, key: str) -> bool:
    """Return whether the same request has appended its action before."""
    return bool(key) and any(
        (action.kind, action.request_key) == (kind, key) and is_same_person(action.by or "", by)
        for action in loaded.actions
    )
