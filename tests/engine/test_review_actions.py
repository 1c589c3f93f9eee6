"""What people do with a review besides deciding it, and the votes of a quorum."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import hours
from holdfast.errors import (
    AlreadyVoted,
    InvalidRequest,
    NotAssigned,
    ReviewChanged,
    ReviewClaimed,
    ReviewDecided,
)
from holdfast.model.review import Review
from holdfast.records.review import PendingNotice, ReviewKey, stored_review_of
from holdfast.review import deciding, delegation
from holdfast.review.delegation import delegate_review, escalate_review
from holdfast.review.options import ReviewOptions
from tests.engine.reviewers import Terms, asked, reviewing, work
from tests.engine.support import House, item_of_head, store_of, tenant_key


def kinds(review: Review) -> list[str]:
    return [action.kind for action in review.trail]


async def key_of(hf: Any, review: Review) -> ReviewKey:
    head = await item_of_head(hf, review.run)
    return ReviewKey(tenant_key(review.run), head["generation"], review.id.rpartition("~")[2])


async def notices_of(hf: Any, review: Review) -> tuple[PendingNotice, ...]:
    item = await store_of(hf).table.get((await key_of(hf, review)).entry)
    assert item is not None
    return stored_review_of(item).notices


# --- who may act ----------------------------------------------------------------------------------


async def test_only_assignees_act(house: House) -> None:
    hf = house.open()
    _, review = await asked(house, hf, reviewing(assignees="Ana", form=Terms, values=Terms(1)))
    reviews: Any = hf.reviews
    for method, arguments in {
        "approve": {}, "reject": {}, "claim": {}, "release": {}, "claim ": {"take_over": True},
        "reassign": {"to": "bob"}, "comment": {"text": "x"}, "edit": {"values": {"months": 2}},
    }.items():  # fmt: skip
        with pytest.raises(NotAssigned, match="is assigned to Ana, and not to bob"):
            await getattr(reviews, method.strip())(review.id, by="bob", **arguments)
    assert (await hf.reviews.get(review.id)).trail == ()
    assert (await hf.reviews.approve(review.id, by="ANA")).status == "approved"


async def test_a_claimed_review_is_decided_by_its_claimer(house: House) -> None:
    hf = house.open()
    _, review = await asked(house, hf, reviewing(form=Terms, values=Terms(1)))
    claimed = await hf.reviews.claim(review.id, by="ana")
    assert claimed.claimed_by == "ana"
    assert kinds(await hf.reviews.claim(review.id, by="Ana")) == ["claimed"]
    for attempt in (
        hf.reviews.approve(review.id, by="bob"),
        hf.reviews.reject(review.id, by="bob"),
        hf.reviews.claim(review.id, by="bob"),
        hf.reviews.release(review.id, by="bob"),
        hf.reviews.edit(review.id, by="bob", values={"months": 2}),
    ):
        with pytest.raises(ReviewClaimed, match="ana has claimed") as caught:
            await attempt
        assert caught.value.by == "ana"
    assert (await hf.reviews.list()).reviews[0].claimed_by == "ana"
    taken = await hf.reviews.claim(review.id, by="bob", take_over=True)
    assert taken.claimed_by == "bob"
    assert taken.rendered == review.rendered  # a claim changes nothing that is decided on
    await hf.reviews.release(review.id, by="bob")
    released = await hf.reviews.release(review.id, by="cleo")
    assert (released.claimed_by, kinds(released)) == (None, ["claimed", "claimed", "released"])
    assert (await hf.reviews.approve(review.id, by="cleo")).status == "approved"


async def test_of_two_who_claim_at_once_one_does(house: House) -> None:
    hf, other = house.open(), house.open()
    _, review = await asked(house, hf, reviewing())
    results = await asyncio.gather(
        hf.reviews.claim(review.id, by="ana"),
        other.reviews.claim(review.id, by="bob"),
        return_exceptions=True,
    )
    assert sorted(type(each).__name__ for each in results) == ["Review", "ReviewClaimed"]


async def test_nothing_is_done_with_a_decided_review(house: House) -> None:
    hf = house.open()
    _, review = await asked(house, hf, reviewing(form=Terms, values=Terms(1)))
    await hf.reviews.approve(review.id, by="ana")
    for attempt in (
        hf.reviews.claim(review.id, by="ana"),
        hf.reviews.release(review.id, by="ana"),
        hf.reviews.reassign(review.id, by="ana", to="bob", force=True),
        hf.reviews.comment(review.id, by="ana", text="late"),
        hf.reviews.edit(review.id, by="ana", values={"months": 2}),
        hf.reviews.withdraw(review.id, by="ana"),
    ):
        with pytest.raises(ReviewDecided, match="was approved by ana"):
            await attempt
    assert kinds(await hf.reviews.get(review.id)) == ["decided"]


# --- reassigning ----------------------------------------------------------------------------------


async def test_a_reassigned_review_belongs_to_others(house: House) -> None:
    hf = house.open()
    _, review = await asked(house, hf, reviewing(assignees=["ana", "bob"], remind_after=hours(1)))
    await hf.reviews.claim(review.id, by="ana")
    moved = await hf.reviews.reassign(review.id, by="ana", to=["bob", "cleo"], comment="ill")
    assert (moved.assignees, moved.claimed_by) == (("bob", "cleo"), None)
    assert moved.trail[-1].data == {
        "from": ["ana", "bob"], "to": ["bob", "cleo"], "comment": "ill",
    }  # fmt: skip
    with pytest.raises(NotAssigned):
        await hf.reviews.approve(review.id, by="ana")
    assert (await hf.reviews.list(assignee="ana")).reviews == []
    assert len((await hf.reviews.list(assignee="CLEO")).reviews) == 1
    told = {notice.kind: notice.to for notice in await notices_of(hf, review)}
    assert told == {"requested": ("bob",), "reminder": ("bob", "cleo"), "reassigned": ("cleo",)}
    everybody = await hf.reviews.reassign(review.id, by="operator", to=(), force=True)
    assert everybody.assignees == ()
    assert len((await hf.reviews.list(assignee="ana")).reviews) == 1
    assert (await hf.reviews.approve(review.id, by="dora")).status == "approved"


async def test_a_repeated_action_with_its_key_is_done_once(house: House) -> None:
    hf = house.open()
    _, review = await asked(house, hf, reviewing(form=Terms, values=Terms(1)))
    for _ in range(2):
        await hf.reviews.comment(review.id, by="ana", text="hm", key="c")
        await hf.reviews.edit(review.id, by="ana", values={"months": 2}, key="e")
        await hf.reviews.reassign(review.id, by="ana", to="ana", key="r")
    after = await hf.reviews.get(review.id)
    assert kinds(after) == ["commented", "edited", "reassigned"]
    assert after.trail[0].data == {"text": "hm", "key": "c"}


async def test_actions_of_many_people_at_once_are_all_in_the_trail(either: House) -> None:
    opened = [either.open() for _ in range(3)]
    _, review = await asked(either, opened[0], reviewing())
    await asyncio.gather(
        *(
            opened[number % 3].reviews.comment(review.id, by="ana", text=f"{number}")
            for number in range(12)
        )
    )
    after = await opened[0].reviews.get(review.id)
    assert after.is_intact
    assert sorted(int(action.data["text"]) for action in after.trail) == list(range(12))


async def test_the_trail_is_limited(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.review.acting._ACTIONS_MAX", 2)
    hf = house.open()
    _, review = await asked(house, hf, reviewing())
    for _ in range(2):
        await hf.reviews.comment(review.id, by="ana", text="again")
    with pytest.raises(InvalidRequest, match="has 2 actions, and takes no more"):
        await hf.reviews.comment(review.id, by="ana", text="again")
    assert (await hf.reviews.approve(review.id, by="ana")).status == "approved"


# --- delegation and escalation --------------------------------------------------------------------


async def test_the_hook_names_who_stands_in(house: House) -> None:
    hf = house.open()
    _, review = await asked(house, hf, reviewing(assignees=["ana", "bob"]))
    away = {"ana": "cleo", "cleo": ["dora", "bob"], "eve": "ana"}
    options = ReviewOptions(delegate=lambda person, entry: away.get(person))
    reviews = house.open(reviews=options).reviews
    key = await key_of(hf, review)
    delegated = await delegate_review(reviews._store, key, options.delegate)
    assert delegated is not None
    assert delegated.state.assignees == ("dora", "bob")
    moved = await reviews.reassign(review.id, by="bob", to="eve")
    assert moved.assignees == ("dora", "bob")
    assert kinds(moved) == ["reassigned"]
    assert moved.trail[0].by is None
    assert moved.trail[0].data["reason"] == "delegated"


async def test_the_hook_is_asked_about_all_people_at_once(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delegation, "_HOOK_SECONDS_MAX", 0.5)
    barrier = asyncio.Barrier(3)

    async def slow(person: str, _: object) -> str:
        await barrier.wait()
        return f"{person} II" if not person.endswith("II") else person

    hf = house.open(reviews=ReviewOptions(delegate=slow))
    _, review = await asked(house, hf, reviewing())
    moved = await hf.reviews.reassign(review.id, by="ana", to=["bob", "cleo", "dora"])
    assert moved.assignees == ("bob II", "cleo II", "dora II")


@pytest.mark.parametrize("named", [ValueError("x"), 7, "", ["*"], "ana", {}])
async def test_a_hook_that_fails_changes_nothing(
    house: House, named: Any, caplog: pytest.LogCaptureFixture
) -> None:
    hf = house.open()
    _, review = await asked(house, hf, reviewing(assignees=["ana"]))

    async def hook(person: str, entry: Any) -> Any:
        if isinstance(named, Exception):
            raise named
        return named

    loaded = await delegate_review(hf.reviews._store, await key_of(hf, review), hook)
    assert loaded is not None
    assert loaded.state.assignees == ("ana",)
    assert ("delegate hook" in caplog.text) == (named != "ana")


async def test_a_delegation_leaves_enough_people_for_the_quorum(house: House) -> None:
    hf = house.open()
    _, review = await asked(house, hf, reviewing(assignees=["ana", "bob"], quorum=2))
    loaded = await delegate_review(
        hf.reviews._store, await key_of(hf, review), lambda person, entry: "bob"
    )
    assert loaded is not None
    assert loaded.state.assignees == ("ana", "bob")


async def test_an_escalation_adds_people(house: House) -> None:
    hf = house.open()
    graph = reviewing(assignees="ana", escalate_after=hours(1), escalate_to=["boss", "Ana"])
    _, review = await asked(house, hf, graph)
    with pytest.raises(NotAssigned):
        await hf.reviews.approve(review.id, by="boss")
    for _ in range(2):
        await escalate_review(hf.reviews._store, await key_of(hf, review), ["boss", "Ana"])
    after = await hf.reviews.get(review.id)
    assert (after.assignees, kinds(after)) == (("ana", "boss"), ["reassigned"])
    assert after.trail[0].data["reason"] == "escalated"
    told = [notice.kind for notice in await notices_of(hf, review)]
    assert told == ["requested", "escalation"]
    assert (await hf.reviews.approve(review.id, by="boss")).status == "approved"


# --- votes ----------------------------------------------------------------------------------------


async def test_a_quorum_of_votes_decides(either: House) -> None:
    hf, graph = either.open(), reviewing(quorum=2, assignees=["ana", "bob", "cleo"])
    run, review = await asked(either, hf, graph)
    first = await hf.reviews.approve(review.id, by="ana", comment="good")
    assert (first.status, [vote.by for vote in first.votes]) == ("pending", ["ana"])
    with pytest.raises(AlreadyVoted, match="ana has voted to approve"):
        await hf.reviews.reject(review.id, by="Ana")
    await hf.reviews.reject(review.id, by="bob")
    decided = await hf.reviews.approve(review.id, by="cleo")
    assert decided.decision is not None
    assert (decided.status, decided.decision.by) == ("approved", "cleo")
    await work(either, graph)
    state = await run.result()
    assert state["votes"] == [["ana", True], ["bob", False], ["cleo", True]]


async def test_two_rejections_of_three_reject(house: House) -> None:
    hf = house.open()
    _, review = await asked(house, hf, reviewing(quorum=2, assignees=["ana", "bob", "cleo"]))
    await hf.reviews.reject(review.id, by="ana")
    assert (await hf.reviews.reject(review.id, by="bob")).status == "rejected"


async def test_one_rejection_rejects_if_all_have_to_approve(house: House) -> None:
    hf = house.open()
    _, review = await asked(house, hf, reviewing(quorum=2, assignees=["ana", "bob"]))
    assert (await hf.reviews.reject(review.id, by="ana")).status == "rejected"


async def test_votes_at_once_decide_once(either: House) -> None:
    opened = [either.open() for _ in range(3)]
    graph = reviewing(quorum=3)
    run, review = await asked(either, opened[0], graph)
    results = await asyncio.gather(
        *(opened[n % 3].reviews.approve(review.id, by=f"p{n}") for n in range(6)),
        return_exceptions=True,
    )
    errors = [each for each in results if isinstance(each, BaseException)]
    assert all(isinstance(each, ReviewDecided) for each in errors)
    after = await opened[0].reviews.get(review.id)
    assert after.decision is not None
    counted = {vote.by for vote in after.decision.votes}
    assert len(counted) >= 3
    # A reviewer is told that the vote counts, or that it came too late.
    told = {f"p{n}" for n, each in enumerate(results) if not isinstance(each, BaseException)}
    assert told == counted
    await work(either, graph)
    assert (await run.result())["status"] == "approved"


async def test_an_edit_begins_a_new_round(house: House) -> None:
    hf, graph = house.open(), reviewing(quorum=2, form=Terms, values=Terms(24))
    run, review = await asked(house, hf, graph)
    await hf.reviews.approve(review.id, by="ana")
    edited = await hf.reviews.approve(review.id, by="bob", values={"months": 12})
    assert (edited.status, kinds(edited)) == ("pending", ["edited"])
    assert [vote.by for vote in edited.votes] == ["bob"]
    assert [vote.by for vote in edited.former_votes] == ["ana"]
    with pytest.raises(ReviewChanged):
        await hf.reviews.approve(review.id, by="ana", seen=review.rendered)
    decided = await hf.reviews.approve(review.id, by="ana", seen=edited.rendered)
    assert decided.status == "approved"
    await work(house, graph)
    assert (await run.result())["values"] == {"months": 12, "note": ""}


async def test_a_vote_is_repeated_with_its_key(house: House) -> None:
    hf = house.open()
    _, review = await asked(house, hf, reviewing(quorum=2))
    for _ in range(2):
        voted = await hf.reviews.approve(review.id, by="ana", key="k")
        assert len(voted.votes) == 1
    with pytest.raises(AlreadyVoted):
        await hf.reviews.reject(review.id, by="ana", key="k")


@pytest.mark.parametrize("completed_by", ["get", "vote", "expiry"])
async def test_votes_that_decide_are_not_lost_with_the_last_voter(
    house: House, monkeypatch: pytest.MonkeyPatch, completed_by: str
) -> None:
    hf, graph = house.open(), reviewing(quorum=2, expires=hours(1))
    run, review = await asked(house, hf, graph)
    await hf.reviews.approve(review.id, by="ana")

    async def die(*_: Any, **__: Any) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(deciding, "decide_review", die)
    with pytest.raises(asyncio.CancelledError):
        await hf.reviews.approve(review.id, by="bob")
    monkeypatch.undo()
    if completed_by == "get":
        assert (await hf.reviews.get(review.id)).status == "approved"
    elif completed_by == "vote":
        with pytest.raises(ReviewDecided, match="approved by bob"):
            await hf.reviews.reject(review.id, by="cleo")
    else:
        house.clock.advance(3600)
    await work(house, graph)
    state = await run.result()
    assert (state["status"], state["by"]) == ("approved", "bob")
    assert (await hf.reviews.get(review.id)).status == "approved"


async def test_a_vote_after_the_expiry_does_not_count(house: House) -> None:
    hf, graph = house.open(), reviewing(quorum=2, expires=hours(1))
    run, review = await asked(house, hf, graph)
    await hf.reviews.approve(review.id, by="ana")
    house.clock.advance(3600)
    with pytest.raises(ReviewDecided, match="was expired"):
        await hf.reviews.approve(review.id, by="bob")
    await work(house, graph)
    assert (await run.result())["status"] == "expired"


async def test_a_review_with_a_quorum_is_not_claimed(house: House) -> None:
    hf = house.open()
    _, review = await asked(house, hf, reviewing(quorum=2, assignees=["ana", "bob"]))
    with pytest.raises(InvalidRequest, match="needs 2 votes"):
        await hf.reviews.claim(review.id, by="ana")
    with pytest.raises(InvalidRequest, match="to must contain at least 2 people"):
        await hf.reviews.reassign(review.id, by="ana", to="bob")
