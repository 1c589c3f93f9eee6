"""Reviews that are large, damaged, asked for oddly, or decided by requests that are repeated."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from typing import Any

import pytest

from holdfast.engine.runs import signalling
from holdfast.errors import InvalidRequest, ReviewDecided, RunEnded
from holdfast.records.codec import compress, encode
from holdfast.records.review import ReviewKey
from holdfast.review import acting, deciding
from holdfast.storage import Put
from tests.engine.reviewers import Terms, asked, reviewing, work
from tests.engine.support import House, item_of_head, store_of, tenant_key


@dataclasses.dataclass
class Letter:
    text: str


def noise(chars: int, seed: int = 0, *, first: int = 0x20, last: int = 0x7E) -> str:
    """Return a text that hardly shrinks when it is compressed."""
    drawn = random.Random(seed)
    return "".join(chr(drawn.randint(first, last)) for _ in range(chars))


def long_comment(number: int) -> str:
    return noise(4_000, number, first=0x1F300, last=0x1F9FF)


# --- sizes ----------------------------------------------------------------------------------------


async def test_what_is_shown_and_the_values_together_fit_into_an_item(either: House) -> None:
    hf = either.open()
    graph = reviewing(show={"x": noise(260_000)}, form=Letter, values=Letter(noise(260_000, 1)))
    run = await hf.start(graph, {}, id="r")
    await work(either, graph)
    failed = await run.get()
    assert failed.status == "failed"
    assert failed.failure is not None
    assert "show and values together" in failed.failure.message


async def test_the_longest_decision_reaches_its_run(either: House) -> None:
    hf, graph = either.open(), reviewing(quorum=20, form=Letter, values=Letter(noise(260_000)))
    run, review = await asked(either, hf, graph)
    for number in range(19):
        await hf.reviews.reject(review.id, by=f"n{number}", comment=long_comment(number))
    for number in range(20):
        review = await hf.reviews.approve(
            review.id, by=f"y{number}", comment=long_comment(20 + number)
        )
    assert review.status == "approved"
    assert review.decision is not None
    assert len(review.decision.votes) == 39
    await work(either, graph)
    assert len((await run.result())["votes"]) == 39


async def test_the_edits_of_a_review_are_limited(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acting, "_EDITS_MAX", 2)
    hf = house.open()
    _, review = await asked(house, hf, reviewing(form=Terms, values=Terms(24)))
    for months in (1, 2):
        await hf.reviews.edit(review.id, by="ana", values={"months": months})
    with pytest.raises(InvalidRequest, match="was edited 2 times"):
        await hf.reviews.edit(review.id, by="ana", values={"months": 3})
    assert (await hf.reviews.approve(review.id, by="ana", values={"months": 3})).status


# --- odd requests ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"question": "\ud800"}, "question"),
        ({"show": [["risk"]]}, "show"),
        ({"show": {"x": "\ud800"}}, "show"),
    ],
)
async def test_a_request_that_cannot_be_stored_fails_in_the_node(
    house: House, options: Any, field: str
) -> None:
    hf, graph = house.open(), reviewing(**options)
    run = await hf.start(graph, {}, id="r")
    await work(house, graph)
    failed = await run.get()
    assert failed.status == "failed"
    assert failed.failure is not None
    assert failed.failure.type == "InvalidRequest"
    assert field in failed.failure.message


# --- votes ----------------------------------------------------------------------------------------


async def test_a_reassignment_after_which_too_few_can_approve_rejects(house: House) -> None:
    hf, graph = house.open(), reviewing(quorum=2, assignees=["ana", "bob", "cleo"])
    run, review = await asked(house, hf, graph)
    assert (await hf.reviews.reject(review.id, by="ana")).status == "pending"
    left = await hf.reviews.reassign(review.id, by="bob", to=["ana", "bob"])
    assert left.status == "rejected"
    await work(house, graph)
    assert (await run.result())["status"] == "rejected"


async def test_a_vote_with_edited_values_is_repeated_with_its_key(house: House) -> None:
    hf = house.open()
    _, review = await asked(house, hf, reviewing(quorum=2, form=Terms, values=Terms(24)))
    for _ in range(2):
        voted = await hf.reviews.approve(
            review.id, by="ana", values={"months": 12}, seen=review.rendered, key="k"
        )
        assert len(voted.votes) == 1


async def test_the_vote_that_decides_is_repeated_with_its_key(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = house.open()
    _, review = await asked(house, hf, reviewing(quorum=2))
    await hf.reviews.approve(review.id, by="ana")

    async def die(*_: Any, **__: Any) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(deciding, "decide_review", die)
    with pytest.raises(asyncio.CancelledError):
        await hf.reviews.approve(review.id, by="bob", key="k")
    monkeypatch.undo()
    assert (await hf.reviews.approve(review.id, by="bob", key="k")).status == "approved"
    with pytest.raises(ReviewDecided):
        await hf.reviews.reject(review.id, by="bob", key="k")


async def test_a_key_that_is_used_for_another_decision_does_not_repeat_the_first(
    house: House,
) -> None:
    hf = house.open()
    _, review = await asked(house, hf, reviewing())
    await hf.reviews.approve(review.id, by="ana", key="k")
    with pytest.raises(ReviewDecided, match="approved by ana"):
        await hf.reviews.reject(review.id, by="ana", key="k")
    with pytest.raises(ReviewDecided, match="approved by ana"):
        await hf.reviews.withdraw(review.id, by="ana", key="k")


async def test_who_decides_while_the_run_fails_is_told_that_it_counts(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf, graph = house.open(), reviewing()
    run, review = await asked(house, hf, graph)

    async def fail(*_: Any, **__: Any) -> None:
        monkeypatch.undo()
        raise RunEnded("run 'r' has failed", status="failed")

    monkeypatch.setattr(signalling, "wake_run", fail)
    assert (await hf.reviews.approve(review.id, by="ana")).status == "approved"
    await work(house, graph)
    assert (await run.result())["by"] == "ana"


async def test_a_program_that_wants_values_now_asks_for_them(house: House) -> None:
    hf = house.open()
    run, review = await asked(house, hf, reviewing())
    await hf.reviews.approve(review.id, by="ana")
    graph = reviewing(form=Terms, values=Terms(24))
    await work(house, graph)
    (entry,) = (await hf.reviews.list(run="r")).reviews
    again = await hf.reviews.get(entry.id)
    assert again.id != review.id
    assert again.note.startswith("ana approved values that do not fit")
    await hf.reviews.approve(again.id, by="ana")
    await work(house, graph)
    assert (await run.result())["values"] == {"months": 24, "note": ""}


# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "action",
    [
        ["edited", "ana", 1, None],
        ["edited", "ana", 1, {}],
        ["reassigned", "ana", 1, {"to": 5}],
        ["reassigned", "ana", 1, {"to": ["bob", 5]}],
        ["reassigned", "ana", 1, "text"],
        ["decided", "ana", 1, {"status": "approved"}],
        ["decided", "ana", 1, {"status": "maybe", "at_ms": 1}],
    ],
)
async def test_an_action_that_says_nothing_is_left_out(house: House, action: Any) -> None:
    hf, graph = house.open(), reviewing(form=Terms, values=Terms(24))
    run, review = await asked(house, hf, graph)
    await hf.reviews.comment(review.id, by="ana", text="one")
    head = await item_of_head(hf, "r")
    key = ReviewKey(tenant_key("r"), head["generation"], review.id.rpartition("~")[2])
    table = store_of(hf).table
    item = await table.get(key.action(0))
    assert item is not None
    await table.write(Put({**item, "data": compress(encode(action))}))
    damaged = await hf.reviews.get(review.id)
    assert (damaged.status, damaged.is_intact, damaged.trail) == ("pending", False, ())
    assert (await hf.reviews.approve(review.id, by="ana")).status == "approved"
    await work(house, graph)
    assert (await run.result())["status"] == "approved"
