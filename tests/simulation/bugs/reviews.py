"""Bugs to plant in reviews: in their decisions, their votes, their expiry and their trail."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import msgspec
import pytest

from holdfast.engine.effects.call_ids import CallIds
from holdfast.engine.execution import reviews as asking
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs import review_outcomes, reviewing, signalling
from holdfast.model.signals import Signal
from holdfast.records import review_state, review_trail
from holdfast.records.head import Head
from holdfast.records.review import DECISION_ID, EVERY_FENCE, ReviewKey, StoredReview
from holdfast.records.review_trail import StoredVote
from holdfast.review import acting, deciding
from holdfast.storage import Put
from tests.simulation.bugs.planting import bug

_RESTLESS = {"restless": 1.0, "restart_seconds_max": 1.0}


@bug("reviewing")
def a_decision_written_over_another(patch: pytest.MonkeyPatch) -> None:
    write = signalling.signal_write

    def heedless(head: Head, *, id: str, **values: Any) -> Any:
        put = write(head, id=id, **values)
        return Put(put.item, None, put.token) if id == DECISION_ID else put

    patch.setattr(signalling, "signal_write", heedless)


@bug("reviewing")
def a_decision_at_the_millisecond_of_the_expiry_counts(patch: pytest.MonkeyPatch) -> None:
    def lenient(self: Any, head: Head, now_ms: int) -> bool:
        late = self.deadline_ms is not None and now_ms > self.deadline_ms
        return late or (now_ms >= head.expires_ms and not self.ends_child)

    patch.setattr(signalling._OutgoingSignal, "is_late", lenient)


@bug("reviewing")
def a_decision_whose_own_time_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """The decider looks at its clock, and then reads the row, and then writes."""
    decide = review_outcomes.decide_review

    async def heedless(*args: Any, deadline_ms: int | None = None, **options: Any) -> Any:
        return await decide(*args, **options)

    for module in (review_outcomes, deciding):
        patch.setattr(module, "decide_review", heedless)


@bug("reviewing", late_write=0.2, slow_signal=0.3, slow=0.3, restless=0.0)
def an_expiry_that_does_not_compete(patch: pytest.MonkeyPatch) -> None:
    """The owner of a run takes what it would have written, whatever stands there."""

    async def deaf(
        kernel: Kernel, head: Head, key: ReviewKey, payload: Any, **options: Any
    ) -> Signal:
        stands = await put(kernel, head, key, payload, **options)
        packed = await reviewing.pack_payload(kernel, payload, bytes_max=10**6)
        content = await reviewing.spill_if_large(kernel, head, packed.data, "deaf")
        return msgspec.structs.replace(stands, body=content)

    put = asking.put_decision
    patch.setattr(asking, "put_decision", deaf)


@bug("reviewing")
def votes_that_decided_are_forgotten_at_the_expiry(patch: pytest.MonkeyPatch) -> None:
    """A reviewer dies after the vote that decides, and nobody counts."""
    patch.setattr(reviewing.LoadedReview, "votes_decision", lambda self, expires_ms: None)


@bug("reviewing")
def a_vote_for_each_attempt(patch: pytest.MonkeyPatch) -> None:
    """A reviewer who does not hear the answer votes again, and both votes count."""
    write = review_trail.vote_write

    def another(key: ReviewKey, vote: StoredVote, *, ttl: int, token: str) -> Put:
        put = write(key, vote, ttl=ttl, token=token)
        return Put({**put.item, "SK": f"{put.item['SK']}{token}"}, put.condition, token)

    patch.setattr(deciding, "vote_write", another)


@bug("reviewing")
def a_count_from_before_the_own_vote(patch: pytest.MonkeyPatch) -> None:
    put = deciding._put_vote

    async def early(store: Any, loaded: Any, vote: StoredVote) -> StoredVote:
        early_count.append(loaded)
        return await put(store, loaded, vote)

    async def stale(kernel: Kernel, key: ReviewKey) -> Any:
        return early_count.pop() if early_count else await reviewing.load_review(kernel, key)

    early_count: list[Any] = []
    patch.setattr(deciding, "_put_vote", early)
    patch.setattr(deciding, "load_review", stale)


@bug("reviewing")
def votes_of_an_earlier_round_count(patch: pytest.MonkeyPatch) -> None:
    decision = review_state.votes_decision

    def all_rounds(content: Any, digest: str, actions: Any, votes: Any, **options: Any) -> Any:
        now = review_state.folded_review(content, actions).round
        moved = [msgspec.structs.replace(vote, round=now) for vote in votes]
        return decision(content, digest, actions, moved, **options)

    patch.setattr(reviewing, "votes_decision", all_rounds)


@bug("reviewing")
def a_majority_of_those_who_voted(patch: pytest.MonkeyPatch) -> None:
    def hasty(votes: Sequence[StoredVote], *, quorum: int, assignees: Sequence[str]) -> Any:
        approvals = sum(vote.approve for vote in votes)
        return None if not votes else approvals * 2 > len(votes)

    patch.setattr(review_state, "votes_outcome", hasty)


@bug("reviewing", crash=0.008)
def a_second_attempt_that_does_not_wake_the_run(patch: pytest.MonkeyPatch) -> None:
    """The first decider died between the decision and the wake."""
    notify = signalling._notify_run

    async def silent(kernel: Kernel, workers: Any, head: Head, signal: Any, stored: Any) -> None:
        if not (stored.repeated and signal.id == DECISION_ID):
            await notify(kernel, workers, head, signal, stored)

    patch.setattr(signalling, "_notify_run", silent)


@bug("reviewing")
def a_trail_that_is_ahead_of_the_decision(patch: pytest.MonkeyPatch) -> None:
    send = review_outcomes._send

    async def reversed_order(kernel: Kernel, workers: Any, loaded: Any, decision: Any, **more: Any):
        await reviewing.settle_review(kernel, loaded.key, decision)
        return await send(kernel, workers, loaded, decision, **more)

    patch.setattr(review_outcomes, "_send", reversed_order)


@bug("reviewing")
def entries_that_do_not_follow_their_decisions(patch: pytest.MonkeyPatch) -> None:
    follow = reviewing.followed_entry

    def pending(stored: StoredReview, *args: Any) -> StoredReview:
        return msgspec.structs.replace(follow(stored, *args), status=stored.status)

    patch.setattr(reviewing, "followed_entry", pending)


@bug("reviewing")
def a_trail_without_a_condition(patch: pytest.MonkeyPatch) -> None:
    append = review_trail.append_action_write

    def over(*args: Any, **values: Any) -> Put:
        put = append(*args, **values)
        return Put(put.item, None, put.token)

    patch.setattr(reviewing, "append_action_write", over)


@bug("reviewing")
def a_withdrawal_that_only_the_trail_knows(patch: pytest.MonkeyPatch) -> None:
    """It does not compete with decisions: a review that is withdrawn can still be approved."""
    decide = deciding.decide_review

    async def aside(kernel: Kernel, workers: Any, loaded: Any, decision: Any, **more: Any) -> Any:
        if decision["status"] != "withdrawn":
            return await decide(kernel, workers, loaded, decision, **more)
        settled = await reviewing.settle_review(kernel, loaded.key, decision, loaded=loaded)
        return settled or loaded, True

    patch.setattr(deciding, "decide_review", aside)


@bug("reviewing")
def a_pause_before_all_reviews_are_asked_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CallIds, "keep_running", lambda self: nullcontext())


@bug("reviewing", **_RESTLESS)
def an_edit_that_is_acknowledged_without_a_fence(patch: pytest.MonkeyPatch) -> None:
    """A decider who has read the page before it decides after it."""

    async def open_to_all(kernel: Kernel, loaded: Any) -> bool:
        return True

    for module in (acting, review_outcomes):
        patch.setattr(module, "fence_decisions", open_to_all)


@bug("reviewing", **_RESTLESS)
def a_decider_that_ignores_the_fence(patch: pytest.MonkeyPatch) -> None:
    send = review_outcomes._send

    async def heedless(*args: Any, fences_below: int = 0, **options: Any) -> Any:
        return await send(*args, fences_below=EVERY_FENCE, **options)

    patch.setattr(review_outcomes, "_send", heedless)


@bug("reviewing", **_RESTLESS, slow=0.2)
def an_edit_whose_decision_came_first_is_acknowledged(patch: pytest.MonkeyPatch) -> None:
    fence = reviewing.fence_decisions

    async def deaf(kernel: Kernel, loaded: Any) -> bool:
        await fence(kernel, loaded)
        return True

    patch.setattr(acting, "fence_decisions", deaf)


@bug("reviewing", **_RESTLESS)
def a_fence_written_over_a_decision(patch: pytest.MonkeyPatch) -> None:
    write = reviewing.fence_write

    def over(*args: Any, **values: Any) -> Any:
        return msgspec.structs.replace(write(*args, **values), condition=None)

    patch.setattr(reviewing, "fence_write", over)


@bug("reviewing", **_RESTLESS, crash=0.02, slow_signal=0.8, slow_signal_seconds_max=30.0)
def a_repeated_edit_is_acknowledged_without_a_fence(patch: pytest.MonkeyPatch) -> None:
    """The first attempt died between the action and the fence."""
    patch.setattr(reviewing.DecisionPlace, "is_open_to", lambda self, loaded: False)
