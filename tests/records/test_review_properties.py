"""Votes and trails of reviews, for all inputs."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as some

from holdfast.records.review import PendingNotice, ReviewContent, StoredReview
from holdfast.records.review_state import (
    folded_review,
    followed_entry,
    votes_decision,
    votes_outcome,
)
from holdfast.records.review_trail import StoredAction, StoredVote, broken_at

PEOPLE = ("ana", "bob", "cleo", "dora")


@some.composite
def ballots(draw: Any) -> tuple[list[StoredVote], int, tuple[str, ...]]:
    assignees = tuple(draw(some.sets(some.sampled_from(PEOPLE))))
    quorum = draw(some.integers(1, max(len(assignees), 1) if assignees else 4))
    voters = draw(some.sets(some.sampled_from(assignees or PEOPLE)))
    votes = [
        StoredVote(reviewer=name, approve=draw(some.booleans()), at_ms=draw(some.integers(0, 9)))
        for name in sorted(voters)
    ]
    return votes, quorum, assignees


@given(ballots())
def test_votes_decide_as_soon_as_the_others_cannot_change_it(
    ballot: tuple[list[StoredVote], int, tuple[str, ...]],
) -> None:
    votes, quorum, assignees = ballot
    outcome = votes_outcome(votes, quorum=quorum, assignees=assignees)
    approvals = sum(vote.approve for vote in votes)
    missing = (
        len(assignees) - len(votes) if assignees else quorum  # everybody: others may always come
    )
    assert (outcome is True) == (approvals >= quorum)
    if outcome is None:
        assert approvals + missing >= quorum
    if outcome is False:
        assert approvals < quorum


@given(ballots(), some.integers(0, 10))
def test_only_votes_in_time_decide(
    ballot: tuple[list[StoredVote], int, tuple[str, ...]], expires_ms: int
) -> None:
    votes, quorum, assignees = ballot
    content = ReviewContent(question="?", quorum=quorum, assignees=assignees)
    decision = votes_decision(content, "digest", (), votes, expires_ms=expires_ms)
    in_time = [vote for vote in votes if vote.at_ms < expires_ms]
    expected = votes_outcome(in_time, quorum=quorum, assignees=assignees)
    if quorum == 1 or expected is None or not in_time:
        assert decision is None
        return
    assert decision is not None
    assert decision["status"] == ("approved" if expected else "rejected")
    assert decision["at_ms"] < expires_ms
    assert len(decision["votes"]) == len(in_time)


def action(position: int, kind: Any, **data: Any) -> StoredAction:
    before = f"hash {position - 1}" if position else "digest"
    hash = f"hash {position}"
    return StoredAction(
        position=position, kind=kind, by="ana", at_ms=position, data=data or None,
        before=before, hash=hash, written_hash=hash,
    )  # fmt: skip


@some.composite
def trails(draw: Any) -> tuple[StoredAction, ...]:
    kinds = draw(some.lists(some.sampled_from(("claimed", "released", "reassigned", "edited"))))
    made: list[StoredAction] = []
    for position, kind in enumerate(kinds):
        data: dict[str, Any] = {}
        if kind == "reassigned":
            before = folded_review(ReviewContent(question="?"), made).assignees
            to = draw(some.lists(some.sampled_from(PEOPLE), unique=True))
            data = {"from": list(before), "to": to}
        elif kind == "edited":
            data = {"values": draw(some.integers(0, 3))}
        made.append(action(position, kind, **data))
    return tuple(made)


@given(trails(), some.data())
def test_an_entry_that_follows_in_steps_is_the_same(trail: Any, data: Any) -> None:
    content = ReviewContent(question="?", quorum=data.draw(some.integers(1, 2)))
    entry = StoredReview(
        tenant="t", run="r", generation="g", name="n", graph="g", node="n", question="?",
        digest="digest", created_ms=0,
        notices=(PendingNotice(kind="requested", due_ms=0, to=("*",)),),
    )  # fmt: skip
    whole = followed_entry(entry, content, trail)
    cut = data.draw(some.integers(0, len(trail)))
    steps = followed_entry(followed_entry(entry, content, trail[:cut]), content, trail)
    assert steps == whole
    assert followed_entry(whole, content, trail) == whole


@given(trails(), some.data())
def test_a_trail_without_one_action_is_broken(trail: Any, data: Any) -> None:
    assert broken_at("digest", trail) is None
    if len(trail) > 1:
        gone = data.draw(some.integers(0, len(trail) - 2))
        assert broken_at("digest", trail[:gone] + trail[gone + 1 :]) == gone


@given(trails())
def test_what_a_page_shows_changes_with_values_and_assignees_only(trail: Any) -> None:
    content = ReviewContent(question="?")
    for count in range(len(trail)):
        before, after = (folded_review(content, trail[:n]) for n in (count, count + 1))
        same = before.rendered("d") == after.rendered("d")
        kind = trail[count].kind
        assert same == (kind in ("claimed", "released") or (before.assignees == after.assignees
                        and kind == "reassigned"))  # fmt: skip
