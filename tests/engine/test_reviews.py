"""Reviews: a node asks people, the run pauses, and the first decision counts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Graph, Holdfast, days, hours, seconds
from holdfast.engine.runs import review_outcomes, signalling
from holdfast.errors import (
    InvalidRequest,
    ReviewChanged,
    ReviewDecided,
    ReviewNotFound,
)
from holdfast.records.codec import compress, encode
from holdfast.records.review import ReviewKey, review_ttl, run_reviews_range
from holdfast.storage import Delete, Put
from tests.engine.branching import forked
from tests.engine.reviewers import Terms, asked, reviewing, work
from tests.engine.support import House, item_of_head, store_of, tenant_key


async def test_the_node_gets_the_decision_and_the_review_tells_what_became_of_it(
    either: House,
) -> None:
    graph = reviewing(show={"risk": "high"}, form=Terms, values=Terms(24), assignees=["Ana", "bob"])
    hf = either.open()
    run, review = await asked(either, hf, graph)
    assert (review.status, review.question, review.shown) == (
        "pending",
        "Approve?",
        {"risk": "high"},
    )
    assert (review.values, review.assignees) == ({"months": 24, "note": ""}, ("Ana", "bob"))
    decided = await hf.reviews.approve(
        review.id, by="ana", comment="fine", values={"months": 12}, seen=review.rendered
    )
    assert (decided.status, decided.decision and decided.decision.by) == ("approved", "ana")
    await work(either, graph)
    state = await run.result()
    assert (state["status"], state["by"], state["comment"]) == ("approved", "ana", "fine")
    assert state["values"] == {"months": 12, "note": ""}
    after = await hf.reviews.get(review.id)
    assert after.as_dict() == decided.as_dict()
    (action,) = after.trail
    assert (action.kind, action.by) == ("decided", "ana")
    assert (action.data["digest"], action.data["seen"]) == (review.digest, review.rendered)
    assert after.is_intact


async def test_the_second_decision_is_told_what_was_decided(house: House) -> None:
    hf = house.open()
    _, review = await asked(house, hf, reviewing())
    await hf.reviews.reject(review.id, by="ana", comment="too old")
    with pytest.raises(ReviewDecided, match="was rejected by ana at") as caught:
        await hf.reviews.approve(review.id, by="bob")
    decision = caught.value.decision
    assert (decision.status, decision.by, decision.comment) == ("rejected", "ana", "too old")


async def test_of_many_at_once_exactly_one_decides(either: House) -> None:
    hf, other = either.open(), either.open()
    _, review = await asked(either, hf, reviewing())
    results = await asyncio.gather(
        *(
            (hf if number % 2 else other).reviews.approve(review.id, by=f"person {number}")
            for number in range(10)
        ),
        return_exceptions=True,
    )
    won = [each for each in results if not isinstance(each, BaseException)]
    lost = [each for each in results if isinstance(each, ReviewDecided)]
    assert (len(won), len(lost)) == (1, 9)
    assert {each.decision.by for each in lost} == {won[0].decision and won[0].decision.by}
    trail = (await hf.reviews.get(review.id)).trail
    assert [action.kind for action in trail] == ["decided"]


async def test_a_second_attempt_wakes_the_run_of_a_decider_who_died(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf, graph = house.open(), reviewing()
    run, review = await asked(house, hf, graph)

    async def die(*_: Any, **__: Any) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(signalling, "wake_run", die)
    with pytest.raises(asyncio.CancelledError):
        await hf.reviews.approve(review.id, by="ana")
    monkeypatch.undo()
    await work(house, graph)
    assert (await run.get()).status == "waiting"
    with pytest.raises(ReviewDecided, match="approved by ana"):
        await hf.reviews.reject(review.id, by="bob")
    await work(house, graph)
    assert (await run.result())["status"] == "approved"


async def test_a_reader_completes_what_a_decider_left(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf, graph = house.open(), reviewing()
    run, review = await asked(house, hf, graph)

    async def die(*_: Any, **__: Any) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(review_outcomes, "settle_review", die)
    with pytest.raises(asyncio.CancelledError):
        await hf.reviews.approve(review.id, by="ana")
    monkeypatch.undo()
    assert (await hf.reviews.get(review.id)).status == "approved"
    assert (await hf.reviews.list(status="approved")).reviews[0].decided_by == "ana"
    await work(house, graph)
    assert (await run.result())["by"] == "ana"


async def test_a_repeated_request_with_its_key_returns_the_review(house: House) -> None:
    hf = house.open()
    _, review = await asked(house, hf, reviewing())
    first = await hf.reviews.approve(review.id, by="ana", key="k1")
    again = await hf.reviews.approve(review.id, by="Ana", key="k1")
    assert first.decision == again.decision
    for by, key in (("ana", "k2"), ("bob", "k1"), ("ana", None)):
        with pytest.raises(ReviewDecided):
            await hf.reviews.approve(review.id, by=by, key=key)


@pytest.mark.parametrize("late_ms", [-1, 0, 1])
async def test_a_review_expires_to_the_millisecond(house: House, late_ms: int) -> None:
    hf, graph = house.open(), reviewing(expires=hours(1))
    run, review = await asked(house, hf, graph)
    assert review.expires_at is not None
    expires_ms = round(review.expires_at.timestamp() * 1000)
    house.clock.advance((expires_ms + late_ms - house.clock.now_ms()) / 1000)
    if late_ms < 0:
        await hf.reviews.approve(review.id, by="ana")
        house.clock.advance(10)
    else:
        with pytest.raises(ReviewDecided, match="was expired at") as caught:
            await hf.reviews.approve(review.id, by="ana")
        assert caught.value.decision.at == review.expires_at
    await work(house, graph)
    assert (await run.result())["status"] == ("approved" if late_ms < 0 else "expired")
    after = await hf.reviews.get(review.id)
    assert after.status == ("approved" if late_ms < 0 else "expired")


async def test_a_decision_that_reaches_the_inbox_at_the_expiry_is_late(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf, graph = house.open(), reviewing(expires=hours(1))
    run, review = await asked(house, hf, graph)
    house.clock.advance(3599)
    pack = signalling._pack_payload

    async def slow(*args: Any) -> Any:
        house.clock.advance(1)
        return await pack(*args)

    monkeypatch.setattr(signalling, "_pack_payload", slow)
    with pytest.raises(ReviewDecided, match="was expired"):
        await hf.reviews.approve(review.id, by="ana")
    monkeypatch.undo()
    await work(house, graph)
    assert (await run.result())["status"] == "expired"


async def test_a_worker_expires_a_review_that_no_reviewer_decides(house: House) -> None:
    hf, graph = house.open(), reviewing(expires=hours(1))
    run, review = await asked(house, hf, graph)
    house.clock.advance(3600)
    await work(house, graph)
    assert (await run.result())["status"] == "expired"
    (entry,) = (await hf.reviews.list(status="expired")).reviews
    assert (entry.id, entry.decided_at) == (review.id, review.expires_at)


async def test_a_review_expires_with_its_run(house: House) -> None:
    hf, graph = house.open(), reviewing()
    run, review = await asked(house, hf, graph, expires=seconds(100))
    assert review.expires_at == (await run.get()).expires_at
    house.clock.advance(100)
    with pytest.raises(ReviewDecided, match="was expired"):
        await hf.reviews.approve(review.id, by="ana")
    assert (await hf.reviews.get(review.id)).status == "expired"
    assert (await hf.reviews.list()).reviews == []
    await work(house, graph)
    assert (await run.get()).status == "expired"
    assert (await hf.reviews.get(review.id)).status == "expired"
    assert len((await hf.reviews.list(status="decided")).reviews) == 1


async def test_an_extended_run_gives_its_review_the_time(house: House) -> None:
    hf, graph = house.open(), reviewing(expires=days(3))
    run, review = await asked(house, hf, graph, expires=hours(1))
    await run.extend(expires=days(2))
    house.clock.advance(3600)
    extended = await hf.reviews.get(review.id)
    assert extended.expires_at == (await run.get()).expires_at
    await hf.reviews.approve(review.id, by="ana")
    await work(house, graph)
    assert (await run.result())["status"] == "approved"


async def test_a_withdrawn_review_says_so_to_its_node(house: House) -> None:
    hf, graph = house.open(), reviewing()
    run, review = await asked(house, hf, graph)
    await hf.reviews.withdraw(review.id, by="operator", comment="sent twice")
    await work(house, graph)
    state = await run.result()
    assert (state["status"], state["by"], state["comment"]) == (
        "withdrawn", "operator", "sent twice",
    )  # fmt: skip


async def test_a_cancelled_run_withdraws_its_review(house: House) -> None:
    hf, graph = house.open(), reviewing()
    run, review = await asked(house, hf, graph)
    await run.cancel("no longer needed")
    await work(house, graph)
    assert (await hf.reviews.list()).reviews == []
    (entry,) = (await hf.reviews.list(status="withdrawn")).reviews
    assert entry.id == review.id
    with pytest.raises(ReviewDecided, match="was withdrawn at"):
        await hf.reviews.approve(review.id, by="ana")


async def test_a_failed_run_cannot_be_decided_until_it_is_retried(house: House) -> None:
    broken = [True]

    async def ask(state: Any, ctx: Any) -> Any:
        return {"log": [(await ctx.review("Approve?")).status]}

    async def fail(state: Any, ctx: Any) -> Any:
        await ctx.sleep(10)
        if broken[0]:
            raise ValueError("broken")
        return {}

    graph = forked(ask, fail)
    hf = house.open()
    run, review = await asked(house, hf, graph)
    house.clock.advance(10)
    await work(house, graph)
    assert (await run.get()).status == "failed"
    assert (await hf.reviews.get(review.id)).status == "pending"
    assert (await hf.reviews.list()).reviews == []
    with pytest.raises(ReviewDecided, match="its run is failed; retry the run first"):
        await hf.reviews.approve(review.id, by="ana")
    broken[0] = False
    await run.retry()
    await work(house, graph)
    assert [entry.id for entry in (await hf.reviews.list()).reviews] == [review.id]
    await hf.reviews.approve(review.id, by="ana")
    await work(house, graph)
    assert (await run.result())["log"] == ["approved"]


async def test_a_node_that_fails_after_the_decision_does_not_ask_again(house: House) -> None:
    graph, attempts = Graph("g", dict), [0]

    @graph.node
    async def ask(state: Any, ctx: Any) -> Any:
        decision = await ctx.review("Approve?", show={"attempt": attempts[0]})
        attempts[0] += 1
        if attempts[0] < 3:
            raise ValueError("after the decision")
        return {"by": decision.by}

    hf = house.open()
    run, review = await asked(house, hf, graph)
    await hf.reviews.approve(review.id, by="ana")
    await work(house, graph)
    for _ in range(3):
        if (await run.get()).status == "failed":
            await run.retry()
        house.clock.advance(600)
        await work(house, graph)
    assert (await run.result())["by"] == "ana"
    assert attempts[0] == 3
    assert [each.id for each in (await hf.reviews.list(status="decided")).reviews] == [review.id]
    assert (await hf.reviews.get(review.id)).shown == {"attempt": 0}


async def test_a_node_asks_for_several_reviews_at_once(house: House) -> None:
    graph = Graph("g", dict)

    @graph.node
    async def ask(state: Any, ctx: Any) -> Any:
        decisions = await asyncio.gather(*(ctx.review(f"Question {n}?") for n in range(3)))
        return {"by": [decision.by for decision in decisions]}

    hf = house.open()
    run = await hf.start(graph, {}, id="r")
    await work(house, graph)
    entries = sorted((await hf.reviews.list()).reviews, key=lambda entry: entry.question)
    assert [entry.question for entry in entries] == ["Question 0?", "Question 1?", "Question 2?"]
    for entry in reversed(entries):
        await hf.reviews.approve(entry.id, by=f"for {entry.question[9]}")
        await work(house, graph)
    assert (await run.result())["by"] == ["for 0", "for 1", "for 2"]


async def test_each_of_twenty_branches_has_a_review(house: House) -> None:
    def branch(number: int) -> Any:
        async def ask(state: Any, ctx: Any) -> Any:
            return {"log": [(await ctx.review(f"Question {number:02}?")).by]}

        return ask

    graph = forked(*(branch(number) for number in range(20)))
    hf = house.open()
    run = await hf.start(graph, {}, id="r")
    await work(house, graph)
    page = await hf.reviews.list(limit=7)
    entries = list(page.reviews)
    while page.cursor is not None:
        page = await hf.reviews.list(limit=7, cursor=page.cursor)
        entries += page.reviews
    assert sorted(entry.question for entry in entries) == [f"Question {n:02}?" for n in range(20)]
    for entry in entries:
        await hf.reviews.approve(entry.id, by=entry.question[9:11])
    await work(house, graph)
    assert (await run.result())["log"] == [f"{number:02}" for number in range(20)]


async def test_a_blocking_node_of_a_run_in_memory_asks(house: House) -> None:
    graph = Graph("g", dict)

    @graph.node
    def ask(state: Any, ctx: Any) -> Any:
        return {"by": ctx.review("Approve?").by}

    hf = house.open()
    run, review = await asked(house, hf, graph, durability="on_pause")
    await hf.reviews.approve(review.id, by="ana")
    await work(house, graph)
    assert (await run.result())["by"] == "ana"


async def test_a_review_of_another_tenant_or_a_forged_id_is_not_found(house: House) -> None:
    hf = house.open()
    _, review = await asked(house, hf, reviewing())
    with pytest.raises(ReviewNotFound):
        await hf.reviews.get(review.id, tenant="other")
    bad: list[Any] = [
        "", "r", "r~", "r~0123456789abcdef", "~0123456789abcdef", None, 7, "r~" + "z" * 16,
        "a#b~0123456789abcdef", "\ud800~0123456789abcdef", "x" * 5000 + "~0123456789abcdef",
    ]  # fmt: skip
    for id in bad:
        with pytest.raises(ReviewNotFound, match="has no review"):
            await hf.reviews.approve(id, by="ana")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"by": ""}, "by"),
        ({"by": 7}, "by"),
        ({"by": "*"}, "by"),
        ({"by": "a\nb"}, "by"),
        ({"by": "x" * 201}, "by"),
        ({"comment": "x" * 4_001}, "comment"),
        ({"comment": None}, "comment"),
        ({"comment": "\ud800"}, "comment"),
        ({"key": ""}, "key"),
        ({"key": "x" * 257}, "key"),
        ({"seen": 7}, "seen"),
        ({"values": {"months": "many"}}, "values"),
        ({"values": {"months": 1, "other": 2}}, "values"),
        ({"values": None}, "values"),
        ({"values": {"months": 1, "note": "x" * 300_000}}, "values"),
        ({"values": {"months": object()}}, "values"),
    ],
)
async def test_arguments_are_checked(house: House, arguments: Any, field: str) -> None:
    hf = house.open()
    _, review = await asked(house, hf, reviewing(form=Terms, values=Terms(1)))
    with pytest.raises(InvalidRequest) as caught:
        await hf.reviews.approve(review.id, **{"by": "ana", **arguments})
    assert caught.value.field == field
    assert (await hf.reviews.get(review.id)).trail == ()


async def test_a_form_without_values_needs_them(house: House) -> None:
    hf, graph = house.open(), reviewing(form=Terms)
    run, review = await asked(house, hf, graph)
    with pytest.raises(InvalidRequest, match="values must fit the form"):
        await hf.reviews.approve(review.id, by="ana")
    await hf.reviews.approve(review.id, by="ana", values=Terms(6))
    await work(house, graph)
    assert (await run.result())["values"] == {"months": 6, "note": ""}


async def test_values_for_a_review_without_a_form_are_refused(house: House) -> None:
    hf = house.open()
    _, review = await asked(house, hf, reviewing())
    with pytest.raises(InvalidRequest, match="the review has no form"):
        await hf.reviews.approve(review.id, by="ana", values={"months": 1})


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"show": ["missing"]}, "show"),
        ({"show": {"x": "y" * 300_000}}, "show"),
        ({"show": "text"}, "show"),
        ({"values": {"months": 1}}, "values"),
        ({"quorum": 0}, "quorum"),
        ({"quorum": 2, "assignees": ["ana"]}, "quorum"),
        ({"assignees": [""]}, "assignees"),
        ({"assignees": [f"p{n}" for n in range(51)]}, "assignees"),
        ({"expires": -1}, "expires"),
        ({"expires": "1h", "remind_after": "1h"}, "remind_after"),
        ({"expires": "1h", "escalate_after": "2h"}, "escalate_after"),
        ({"escalate_to": ["boss"]}, "escalate_to needs escalate_after="),
        ({"assignees": "ana,bob"}, "pass several people as a list"),
        ({"show": ["missing"]}, 'pass a dict: show={"name": value}'),
        ({"question": ""}, "question"),
    ],
)
async def test_a_wrong_request_fails_in_the_node(house: House, options: Any, field: str) -> None:
    hf, graph = house.open(), reviewing(**options)
    run = await hf.start(graph, {}, id="r")
    await work(house, graph)
    failed = await run.get()
    assert failed.status == "failed"
    assert failed.failure is not None
    assert field in failed.failure.message


@pytest.mark.parametrize("what", ["shown", "action", "last", "missing"])
async def test_a_change_in_the_store_shows(
    house: House, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    hf = house.open()
    _, review = await asked(house, hf, reviewing(show={"risk": "high"}))
    for text in ("one", "two"):
        await hf.reviews.comment(review.id, by="ana", text=text)
    assert (await hf.reviews.get(review.id)).is_intact
    await _tamper(hf, review.id, what)
    changed = await hf.reviews.get(review.id)
    assert not changed.is_intact
    assert "its trail is broken" in caplog.text
    # It can still be decided, and the trail goes on.
    assert (await hf.reviews.approve(review.id, by="ana")).status == "approved"


async def _tamper(hf: Holdfast, id: str, what: str) -> None:
    head = await item_of_head(hf, "r")
    key = ReviewKey(tenant_key("r"), head["generation"], id.rpartition("~")[2])
    table = store_of(hf).table
    place = {"shown": key.shown, "last": key.action(1)}.get(what, key.action(0))
    if what == "missing":
        await table.write(Delete(key.action(1)))
        return
    item = await table.get(place)
    assert item is not None
    changed: Any = {"question": "Approve?", "shown": {"risk": "low"}}
    if what != "shown":
        changed = ["commented", "bob", 1, {"text": "forged"}]
    await table.write(Put({**item, "data": compress(encode(changed))}))


async def test_a_page_from_before_an_edit_decides_nothing(house: House) -> None:
    hf = house.open()
    _, review = await asked(
        house, hf, reviewing(form=Terms, values=Terms(24), assignees=["ana", "bob"])
    )
    await hf.reviews.edit(review.id, by="bob", values={"months": 12, "note": "x"})
    with pytest.raises(ReviewChanged) as caught:
        await hf.reviews.approve(review.id, by="ana", seen=review.rendered)
    assert caught.value.difference == ("months: 24 → 12", "note:  → x")
    assert caught.value.review.values == {"months": 12, "note": "x"}
    seen = caught.value.review.rendered
    await hf.reviews.reassign(review.id, by="ana", to=["ana", "cleo"])
    with pytest.raises(ReviewChanged) as caught:
        await hf.reviews.reject(review.id, by="ana", seen=seen)
    assert caught.value.difference == ("assignees: ana, bob → ana, cleo",)
    seen = caught.value.review.rendered
    with pytest.raises(ReviewChanged, match="what was shown before is not known"):
        await hf.reviews.reject(review.id, by="ana", seen="0" * 32)
    decided = await hf.reviews.approve(review.id, by="ana", seen=seen)
    assert decided.status == "approved"
    assert decided.decision is not None
    assert decided.decision.values == {"months": 12, "note": "x"}


async def test_an_extension_keeps_the_items_of_reviews(house: House) -> None:
    hf, graph = house.open(), reviewing(form=Terms, values=Terms(1), quorum=2)
    run, review = await asked(house, hf, graph, expires=hours(1))
    await hf.reviews.comment(review.id, by="ana", text="hm")
    await hf.reviews.approve(review.id, by="ana")
    await run.extend(expires=days(60))
    head = await item_of_head(hf, "r")
    items = [
        item
        async for item in store_of(hf).table.query_all(
            tenant_key("r").pk, run_reviews_range(head["generation"])
        )
    ]
    assert len(items) == 4
    assert {item["ttl"] for item in items} == {review_ttl(head["ttl"])}
    await hf.reviews.comment(review.id, by="ana", text="later")  # keeps the ttl
    (entry,) = (await hf.reviews.list()).reviews
    assert entry.expires_at == (await run.get()).expires_at
