"""Reviews of nodes that run again, of children and workflows, and of runs that were copied."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Retry, days, hours, restart, seconds, tool, workflow
from holdfast.engine.execution import reviews as asking
from holdfast.engine.runs import review_outcomes
from holdfast.errors import ReviewDecided, ReviewNotFound
from holdfast.model.wait import ReviewWait
from holdfast.storage import backup_store, restore_store
from tests.engine.reviewers import Terms, asked, reviewing, work
from tests.engine.support import Gate, House, item_of_head, kill, reached


def shows(shown: list[str], beside: Any = None, **options: Any) -> Graph:
    """Return a graph whose node shows the last text of a list, and makes a call beside it."""
    graph = Graph("g", dict)

    @graph.node(**options)
    async def ask(state: Any, ctx: Context) -> Any:
        review = ctx.review("Approve?", show={"text": shown[-1]}, expires=hours(1))
        if beside is None:
            return {"status": (await review).status}
        decision, _ = await asyncio.gather(review, ctx.call(beside))
        return {"status": decision.status}

    return graph


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """What is set when a review is listed."""
    event, create = asyncio.Event(), asking._create

    async def spied(*args: Any) -> Any:
        made = await create(*args)
        event.set()
        return made

    monkeypatch.setattr(asking, "_create", spied)
    return event


async def test_what_was_shown_before_a_crash_counts(either: House, listed: asyncio.Event) -> None:
    gate, shown = Gate(), ["first"]

    @tool
    async def slow() -> None:  # the run does not pause before it ends
        await gate.pass_through()

    graph, hf = shows(shown, slow), either.open()
    run = await hf.start(graph, {}, id="r")
    worker = either.worker(either.open(), graph, lease=60)
    await worker.start()
    await gate.waited_at()
    await asyncio.wait_for(listed.wait(), 60)
    (entry,) = (await hf.reviews.list()).reviews
    before = await hf.reviews.get(entry.id)
    kill(worker)
    gate.open()
    shown.append("second")
    either.clock.advance(120)
    await work(either, graph)
    await reached(hf, "r", "waiting")
    assert gate.entered == 2
    (entry,) = (await hf.reviews.list()).reviews
    after = await hf.reviews.get(entry.id)
    assert (after.id, after.shown, after.digest) == (before.id, {"text": "first"}, before.digest)
    # Reviewers were told when it expires.
    assert entry.expires_at == before.expires_at
    assert after.is_intact
    assert before.expires_at is not None
    left_ms = round(before.expires_at.timestamp() * 1000) - either.clock.now_ms()
    assert left_ms == 3_480_000
    either.clock.advance(left_ms / 1000)
    await work(either, graph)
    await reached(hf, "r", "finished")
    assert (await run.result())["status"] == "expired"


async def test_what_was_shown_before_a_failed_attempt_counts(
    house: House, listed: asyncio.Event
) -> None:
    shown, hf, graph = ["first"], house.open(), Graph("g", dict)

    @graph.node(retry=Retry(attempts=2, backoff=600, jitter=0))
    async def ask(state: Any, ctx: Context) -> Any:
        review = asyncio.ensure_future(ctx.review("Approve?", show={"text": shown[-1]}))
        if len(shown) == 1:
            await listed.wait()
            shown.append("second")
            review.cancel()  # before it pauses the run
            raise ValueError("once")
        return {"status": (await review).status}

    run, review = await asked(house, hf, graph)
    house.clock.advance(600)
    await work(house, graph)
    await reached(hf, "r", "waiting")
    assert [wait.kind.tag for wait in (await run.get()).waits] == ["review"]
    again = await hf.reviews.get(review.id)
    assert (again.shown, again.digest) == ({"text": "first"}, review.digest)
    assert [entry.id for entry in (await hf.reviews.list()).reviews] == [review.id]
    await hf.reviews.approve(review.id, by="ana", seen=review.rendered)
    await work(house, graph)
    assert (await run.result())["status"] == "approved"


async def test_what_was_shown_before_the_code_changed_counts(house: House) -> None:
    hf = house.open()
    run, review = await asked(house, hf, shows(["first"]))
    changed = shows(["second"])
    await hf.reviews.comment(review.id, by="ana", text="hm")
    house.clock.advance(3600)  # it expires: the changed node runs
    await work(house, changed)
    assert (await run.result())["status"] == "expired"
    assert (await hf.reviews.get(review.id)).shown == {"text": "first"}


async def test_a_child_asks(either: House) -> None:
    child, parent, hf = reviewing("Approve the child?"), Graph("parent", dict), either.open()

    @parent.node
    async def start(state: Any, ctx: Context) -> Any:
        return {"child": (await ctx.run(child, {}, id="child"))["by"]}

    run = await hf.start(parent, {}, id="parent")
    await work(either, parent, child)
    (entry,) = (await hf.reviews.list()).reviews
    assert (entry.run, entry.id.rpartition("~")[0]) == ("child", "child")
    assert (await hf.reviews.list(run="parent")).reviews == []
    await hf.reviews.approve(entry.id, by="ana")
    await work(either, parent, child)
    await work(either, parent, child)
    assert (await run.result())["child"] == "ana"


async def test_the_reviews_of_children_are_withdrawn_with_their_parent(house: House) -> None:
    child, parent, hf = reviewing(), Graph("parent", dict), house.open()

    @parent.node
    async def start(state: Any, ctx: Context) -> Any:
        return await ctx.run(child, {}, id="child")

    run = await hf.start(parent, {}, id="parent")
    await work(house, parent, child)
    (entry,) = (await hf.reviews.list()).reviews
    await run.cancel("not needed")
    for _ in range(3):
        await work(house, parent, child)
    assert (await hf.run("child").get()).status == "cancelled"
    with pytest.raises(ReviewDecided, match="was withdrawn"):
        await hf.reviews.approve(entry.id, by="ana")
    assert (await hf.reviews.list()).reviews == []


async def test_a_workflow_asks_again_and_again(house: House) -> None:
    @workflow
    async def offers(prices: list[int], ctx: Context) -> list[str]:
        return [
            (await ctx.review("Offer?", form=Terms, values=Terms(price))).values.note
            for price in prices
        ]

    hf = house.open()
    run = await hf.start(offers, [3, 3, 5], id="r")
    ids: list[str] = []
    for number in range(3):
        await work(house, offers)
        (entry,) = (await hf.reviews.list()).reviews
        ids.append(entry.id)
        values = {"months": 1, "note": f"n{number}"}
        await hf.reviews.approve(entry.id, by="ana", values=values)
        house.clock.advance(1)
    await work(house, offers)
    assert await run.result() == ["n0", "n1", "n2"]
    assert len(set(ids)) == 3
    assert [entry.id for entry in (await hf.reviews.list(status="decided")).reviews] == ids[::-1]


@pytest.mark.parametrize("read_first", [False, True])
async def test_a_stale_review_expires_and_the_node_asks_again(
    house: House, read_first: bool
) -> None:
    graph, hf = shows(["text"], max_pause=60, on_stale=restart("ask")), house.open()
    run, first = await asked(house, hf, graph)
    assert first.expires_at == first.created_at + seconds(60)
    house.clock.advance(60)
    if read_first:
        with pytest.raises(ReviewDecided, match="was expired"):
            await hf.reviews.approve(first.id, by="ana")
    await work(house, graph)
    await reached(hf, "r", "waiting")
    (wait,) = (await run.waits()).waits
    assert isinstance(wait.kind, ReviewWait)
    second = wait.kind.review_id("r")
    assert second != first.id
    await hf.reviews.approve(second, by="bob")
    await work(house, graph)
    assert (await run.result())["status"] == "approved"
    stale = await hf.reviews.get(first.id)
    assert stale.decision is not None
    assert (stale.status, stale.decision.at) == ("expired", first.expires_at)
    assert [action.kind for action in stale.trail] == ["decided"]


async def test_the_review_of_an_expired_run_can_be_read_until_it_is_deleted(house: House) -> None:
    hf, graph = house.open(), reviewing(show={"risk": "high"})
    run, review = await asked(house, hf, graph, expires=seconds(100))
    await hf.reviews.comment(review.id, by="ana", text="hm")
    house.clock.advance(101)
    await work(house, graph)
    assert (await run.get()).status == "expired"  # its journal and its inbox are deleted
    expired = await hf.reviews.get(review.id)
    assert (expired.status, expired.shown, expired.is_intact) == ("expired", {"risk": "high"}, True)
    assert [action.kind for action in expired.trail] == ["commented", "decided"]
    head = await item_of_head(hf, "r")
    house.clock.advance(head["ttl"] - house.clock.now_ms() / 1000 + 1)
    with pytest.raises(ReviewNotFound):
        await hf.reviews.get(review.id)
    with pytest.raises(ReviewNotFound):
        await hf.reviews.approve(review.id, by="ana")


async def test_a_new_run_of_the_same_id_has_reviews_of_its_own(house: House) -> None:
    hf, graph = house.open(), reviewing()
    _, old = await asked(house, hf, graph, expires=seconds(100))
    house.clock.advance(101)
    await work(house, graph)
    house.clock.advance((await item_of_head(hf, "r"))["ttl"] - house.clock.now_ms() / 1000 + 1)
    run, new = await asked(house, hf, graph, expires=days(1))
    assert new.id != old.id
    with pytest.raises(ReviewNotFound):
        await hf.reviews.approve(old.id, by="ana")
    await hf.reviews.approve(new.id, by="ana")
    await work(house, graph)
    assert (await run.result())["by"] == "ana"


async def test_a_review_is_decided_in_a_restored_store(house: House, tmp_path: Path) -> None:
    graph, hf = reviewing(form=Terms, values=Terms(24), show={"risk": "high"}), house.open()
    _, review = await asked(house, hf, graph)
    await hf.reviews.comment(review.id, by="ana", text="hm")
    await hf.reviews.edit(review.id, by="ana", values=Terms(12))
    before = await hf.reviews.get(review.id)
    backup_store(house.url, tmp_path / "copy.db")
    copied = House(f"sqlite:///{tmp_path}/restored.db", house.clock)
    restore_store(tmp_path / "copy.db", copied.url)
    await hf.reviews.reject(review.id, by="cleo")
    restored = copied.open()
    assert (await restored.reviews.get(review.id)).as_dict() == before.as_dict()
    decided = await restored.reviews.approve(review.id, by="ana", seen=before.rendered)
    assert decided.is_intact
    await work(copied, graph)
    state = await restored.run("r").result()
    await copied.close()
    assert (state["status"], state["values"]) == ("approved", {"months": 12, "note": ""})


async def test_the_history_says_who_decided_which_review_and_how(house: House) -> None:
    hf, graph = house.open(), reviewing()
    run, review = await asked(house, hf, graph)
    await hf.reviews.reject(review.id, by="ana", comment="too old")
    await work(house, graph)
    await run.result()
    (taken,) = [entry for entry in (await run.history()).entries if entry.kind == "signal"]
    assert list(taken.details.items())[:3] == [
        ("review", review.id), ("status", "rejected"), ("by", "ana"),
    ]  # fmt: skip
    assert taken.details["payload"]["comment"] == "too old"


async def test_a_reader_that_stalled_past_the_expiry_looks_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = house.open()
    _, review = await asked(house, hf, reviewing())
    read, stalls = review_outcomes.read_decision, [True]

    async def stalled(*args: Any) -> Any:
        found = await read(*args)
        if stalls:
            stalls.clear()
            await house.open().reviews.approve(review.id, by="ana")
            house.clock.advance(7 * 24 * 3600)
        return found

    monkeypatch.setattr(review_outcomes, "read_decision", stalled)
    assert (await hf.reviews.get(review.id)).status == "approved"
