"""An edit or a reassignment that was acknowledged stops every decision on the page before it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from holdfast import Graph, Holdfast, hours
from holdfast.errors import (
    JournalDamaged,
    NotAssigned,
    ReviewChanged,
    ReviewDecided,
)
from holdfast.model.review import Review
from holdfast.records.journal import fence_of, fence_write, is_fence
from holdfast.records.review import ReviewKey
from holdfast.review.delegation import delegate_review, escalate_review
from holdfast.storage import Put, Update
from holdfast.storage.operations import Operation, WriteItem
from tests.engine.reviewers import Terms, asked, reviewing, work
from tests.engine.staging import Hold, Stage, staged
from tests.engine.support import House, item_of_head, store_of, tenant_key

EDITED = "months: 24 → 12"
REASSIGNED = "assignees: ana, bob → bob, cleo"


def terms(**options: Any) -> Graph:
    options.setdefault("assignees", ["ana", "bob"])
    return reviewing(form=Terms, values=Terms(24), **options)


async def change(hf: Holdfast, id: str, what: str, key: str | None = None) -> Review:
    """Edit or reassign a review, as another person than the decider."""
    if what == "edit":
        return await hf.reviews.edit(id, by="bob", values={"months": 12, "note": ""}, key=key)
    return await hf.reviews.reassign(id, by="bob", to=["bob", "cleo"], key=key)


async def key_of(hf: Holdfast, review: Review) -> ReviewKey:
    head = await item_of_head(hf, review.run)
    return ReviewKey(tenant_key(review.run), head["generation"], review.id.rpartition("~")[2])


async def item_of_decision(hf: Holdfast, review: Review) -> dict[str, Any] | None:
    return await store_of(hf).table.get((await key_of(hf, review)).decision)


def is_decision(operation: Operation) -> bool:
    """Return whether an operation puts a decision into an inbox."""
    return (
        isinstance(operation, WriteItem)
        and isinstance(operation.write, Put)
        and ("#IN#%review." in operation.write.key.sk)
    )


def is_fencing(operation: Operation) -> bool:
    return (
        isinstance(operation, WriteItem)
        and isinstance(operation.write, Update)
        and ("#IN#%review." in operation.write.key.sk)
    )


def is_appending(operation: Operation) -> bool:
    return isinstance(operation, WriteItem) and "#A#" in operation.write.key.sk


async def stalled(
    stage: Stage, deed: Coroutine[Any, Any, Review], which: Any = is_decision
) -> tuple[asyncio.Task[Review], Hold]:
    """Begin with a deed, and return when it is about to write."""
    hold = stage.hold(which)
    task = asyncio.create_task(deed)
    await hold.reached()
    return task, hold


# --- the change comes first -----------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["approve", "reject"])
@pytest.mark.parametrize(("what", "difference"), [("edit", EDITED), ("reassign", REASSIGNED)])
async def test_a_change_stops_a_decision_that_was_checked_before_it(
    either: House, what: str, difference: str, verb: str
) -> None:
    graph, hf = terms(), either.open()
    slow, stage = staged(either)
    run, page = await asked(either, hf, graph)
    decide = getattr(slow.reviews, verb)
    task, hold = await stalled(stage, decide(page.id, by="bob", seen=page.rendered))
    changed = await change(hf, page.id, what)
    hold.release()
    with pytest.raises(ReviewChanged, match="look at it again") as caught:
        await task
    assert caught.value.difference == (difference,)
    assert caught.value.review.rendered == changed.rendered != page.rendered
    assert (await hf.reviews.get(page.id)).status == "pending"
    decided = await decide(page.id, by="bob", seen=caught.value.review.rendered)
    await work(either, graph)
    state = await run.result()
    assert state["status"] == decided.status == {"approve": "approved", "reject": "rejected"}[verb]
    months = {"edit": 12, "reassign": 24}[what]
    assert state["values"] == ({"months": months, "note": ""} if verb == "approve" else None)


async def test_a_decision_without_a_page_is_made_on_what_stands_then(house: House) -> None:
    graph, hf = terms(), house.open()
    slow, stage = staged(house)
    run, page = await asked(house, hf, graph)
    task, hold = await stalled(stage, slow.reviews.approve(page.id, by="ana"))
    await change(hf, page.id, "edit")
    hold.release()
    assert (await task).status == "approved"
    await work(house, graph)
    assert (await run.result())["values"] == {"months": 12, "note": ""}


async def test_a_person_who_is_not_assigned_any_more_does_not_decide(house: House) -> None:
    hf = house.open()
    slow, stage = staged(house)
    _, page = await asked(house, hf, terms())
    task, hold = await stalled(stage, slow.reviews.approve(page.id, by="ana"))
    await change(hf, page.id, "reassign")
    hold.release()
    with pytest.raises(NotAssigned, match="bob, cleo"):
        await task
    assert (await hf.reviews.approve(page.id, by="cleo")).status == "approved"


async def test_what_changes_no_page_stops_no_decision(house: House) -> None:
    hf = house.open()
    slow, stage = staged(house)
    _, page = await asked(house, hf, terms())
    task, hold = await stalled(stage, slow.reviews.approve(page.id, by="ana", seen=page.rendered))
    await hf.reviews.comment(page.id, by="bob", text="wait for me")
    assert await item_of_decision(hf, page) is None
    hold.release()
    assert (await task).status == "approved"


async def test_many_changes_one_after_the_other(house: House) -> None:
    hf = house.open()
    slow, stage = staged(house)
    _, page = await asked(house, hf, terms())
    for months in (1, 2, 3):
        attempt = slow.reviews.approve(page.id, by="ana", seen=page.rendered)
        task, hold = await stalled(stage, attempt)
        await hf.reviews.edit(page.id, by="bob", values={"months": months, "note": ""})
        hold.release()
        with pytest.raises(ReviewChanged) as caught:
            await task
        page = caught.value.review
    assert (await slow.reviews.approve(page.id, by="ana", seen=page.rendered)).values == {
        "months": 3, "note": "",
    }  # fmt: skip


# --- votes ----------------------------------------------------------------------------------------


async def test_an_edit_voids_votes_that_were_about_to_decide(house: House) -> None:
    graph, hf = terms(quorum=2), house.open()
    slow, stage = staged(house)
    run, page = await asked(house, hf, graph)
    editing, edits = staged(house)
    editor, appends = await stalled(edits, change(editing, page.id, "edit"), is_appending)
    await hf.reviews.approve(page.id, by="bob")
    task, hold = await stalled(stage, slow.reviews.approve(page.id, by="ana", seen=page.rendered))
    appends.release()
    changed = await editor
    hold.release()
    with pytest.raises(ReviewChanged) as caught:
        await task
    assert caught.value.difference == (EDITED,)
    for name in ("ana", "bob"):
        await hf.reviews.approve(page.id, by=name, seen=changed.rendered)
    await work(house, graph)
    assert (await run.result())["values"] == {"months": 12, "note": ""}


async def test_votes_are_counted_again_after_a_reassignment(house: House) -> None:
    hf = house.open()
    slow, stage = staged(house)
    _, page = await asked(house, hf, terms(quorum=2, assignees=["ana", "bob", "cleo"]))
    editor, edits = await stalled(
        stage, slow.reviews.reassign(page.id, by="cleo", to=["ana", "bob", "dora"]), is_appending
    )
    await hf.reviews.reject(page.id, by="ana")
    voter, votes = staged(house)
    task, hold = await stalled(votes, voter.reviews.reject(page.id, by="bob"))
    edits.release()
    await editor
    hold.release()
    voted = await task
    assert (voted.status, len(voted.votes)) == ("rejected", 2)
    assert voted.assignees == ("ana", "bob", "dora")


@pytest.mark.parametrize("counted_by", ["reader", "worker at the expiry"])
async def test_votes_that_an_edit_voids_are_not_counted_for_a_voter_that_died(
    house: House, counted_by: str
) -> None:
    graph, hf = terms(quorum=2, expires=hours(1)), house.open()
    run, page = await asked(house, hf, graph)
    slow, stage = staged(house)
    editor, edits = await stalled(stage, change(slow, page.id, "edit"), is_appending)
    await hf.reviews.approve(page.id, by="bob")
    dying, deathbed = staged(house)
    dead, _ = await stalled(deathbed, dying.reviews.approve(page.id, by="ana"))
    counting, counts = staged(house)
    hold = counts.hold(is_decision)
    if counted_by == "reader":
        reader = asyncio.create_task(counting.reviews.get(page.id))
        await hold.reached()
        edits.release()
        await editor
        hold.release()
        assert (await reader).status == "pending"
    else:
        house.clock.advance(3600)
        async with house.worker(counting, graph):
            await hold.reached()
            edits.release()
            await editor
            hold.release()
            assert (await run.result(timeout=60))["status"] == "expired"
    dead.cancel()


# --- the decision comes first ---------------------------------------------------------------------


@pytest.mark.parametrize("what", ["edit", "reassign"])
async def test_a_change_whose_decision_came_first_is_refused(either: House, what: str) -> None:
    graph, hf = terms(), either.open()
    run, page = await asked(either, hf, graph)
    deciding, decisions = staged(either)
    decider, decides = await stalled(
        decisions, deciding.reviews.approve(page.id, by="ana", seen=page.rendered)
    )
    changing, changes = staged(either)
    changer, fences = await stalled(changes, change(changing, page.id, what), is_fencing)
    decides.release()
    assert (await decider).status == "approved"
    fences.release()
    with pytest.raises(ReviewDecided, match="approved by ana") as caught:
        await changer
    assert caught.value.decision.by == "ana"
    await work(either, graph)
    assert (await run.result())["values"] == {"months": 24, "note": ""}
    after = await hf.reviews.get(page.id)
    assert [action.kind for action in after.trail] == [f"{what}ed", "decided"]
    assert after.is_intact


async def test_a_vote_with_values_whose_decision_came_first_is_refused(house: House) -> None:
    hf = house.open()
    _, page = await asked(house, hf, terms(quorum=2, assignees=["ana", "bob", "cleo"]))
    voting, votes = staged(house)
    values = {"months": 1, "note": ""}
    vote = voting.reviews.approve(page.id, by="cleo", values=values, seen=page.rendered)
    voter, appends = await stalled(votes, vote, is_appending)
    await hf.reviews.approve(page.id, by="ana")
    deciding, decisions = staged(house)
    decider, decides = await stalled(decisions, deciding.reviews.approve(page.id, by="bob"))
    fences = votes.hold(is_fencing)
    appends.release()
    await fences.reached()
    decides.release()
    assert (await decider).status == "approved"
    fences.release()
    with pytest.raises(ReviewDecided, match="approved by bob"):
        await voter


# --- a process that died between the two writes ---------------------------------------------------


@pytest.mark.parametrize("completed_by", ["get", "the same edit", "the same edit with its key"])
async def test_what_a_reader_was_shown_stops_older_decisions(
    house: House, completed_by: str
) -> None:
    hf = house.open()
    _, page = await asked(house, hf, terms())
    deciding, decisions = staged(house)
    decider, decides = await stalled(
        decisions, deciding.reviews.approve(page.id, by="ana", seen=page.rendered)
    )
    dying, deathbed = staged(house)
    key = "k" if completed_by.endswith("key") else None
    dead, _ = await stalled(deathbed, change(dying, page.id, "edit", key), is_fencing)
    if completed_by == "get":
        shown = await hf.reviews.get(page.id)
    else:
        shown = await change(hf, page.id, "edit", key)
    assert [action.kind for action in shown.trail] == ["edited"]
    decides.release()
    with pytest.raises(ReviewChanged):
        await decider
    dead.cancel()


async def test_an_edit_that_was_not_acknowledged_stops_no_decision(house: House) -> None:
    hf = house.open()
    _, page = await asked(house, hf, terms())
    deciding, decisions = staged(house)
    decider, decides = await stalled(
        decisions, deciding.reviews.approve(page.id, by="ana", seen=page.rendered)
    )
    dying, deathbed = staged(house)
    dead, _ = await stalled(deathbed, change(dying, page.id, "edit"), is_fencing)
    decides.release()
    assert (await decider).decision.values == {"months": 24, "note": ""}  # type: ignore[union-attr]
    dead.cancel()


@pytest.mark.parametrize("carried_out", [True, False])
async def test_the_answer_to_a_fence_may_be_lost(house: House, carried_out: bool) -> None:
    hf, stage = staged(house)
    _, page = await asked(house, hf, terms())
    stage.lose(is_fencing, carried_out=carried_out)
    changed = asyncio.create_task(change(hf, page.id, "edit"))
    await house.clock.asleep(1)
    house.clock.advance(1)
    assert (await changed).values == {"months": 12, "note": ""}
    item = await item_of_decision(hf, page)
    assert item is not None
    assert fence_of(item) == 0


# --- what is withdrawn or expires -----------------------------------------------------------------


async def test_a_withdrawal_does_not_mind_a_change(house: House) -> None:
    graph, hf = terms(), house.open()
    run, page = await asked(house, hf, graph)
    slow, stage = staged(house)
    task, hold = await stalled(stage, slow.reviews.withdraw(page.id, by="ana"))
    await change(hf, page.id, "edit")
    hold.release()
    assert (await task).status == "withdrawn"
    await work(house, graph)
    assert (await run.result())["status"] == "withdrawn"


@pytest.mark.parametrize("first", ["reader", "worker"])
async def test_a_review_that_was_edited_expires(either: House, first: str) -> None:
    graph, hf = terms(expires=hours(1)), either.open()
    run, page = await asked(either, hf, graph)
    await change(hf, page.id, "edit")
    either.clock.advance(3600)
    if first == "reader":
        assert (await hf.reviews.get(page.id)).status == "expired"
    await work(either, graph)
    assert (await run.result())["status"] == "expired"
    assert (await hf.reviews.get(page.id)).status == "expired"


async def test_nothing_expires_over_a_decision_that_replaced_a_fence(house: House) -> None:
    graph, hf = terms(expires=hours(1)), house.open()
    run, page = await asked(house, hf, graph)
    await change(hf, page.id, "edit")
    await hf.reviews.approve(page.id, by="ana")
    house.clock.advance(3600)
    await work(house, graph)
    assert (await run.result())["status"] == "approved"


# --- reassignments that no person asks for --------------------------------------------------------


@pytest.mark.parametrize("kind", ["delegation", "escalation"])
async def test_an_automatic_reassignment_stops_decisions(house: House, kind: str) -> None:
    hf = house.open()
    _, page = await asked(house, hf, terms(assignees="ana"))
    slow, stage = staged(house)
    task, hold = await stalled(stage, slow.reviews.approve(page.id, by="ana", seen=page.rendered))
    await reassigned(hf, page, kind)
    hold.release()
    if kind == "delegation":
        with pytest.raises(NotAssigned, match="is assigned to dora, and not to ana"):
            await task
    else:
        with pytest.raises(ReviewChanged) as caught:
            await task
        assert caught.value.difference == ("assignees: ana → ana, boss",)


@pytest.mark.parametrize("kind", ["delegation", "escalation"])
async def test_an_automatic_reassignment_of_a_decided_review(house: House, kind: str) -> None:
    hf = house.open()
    _, page = await asked(house, hf, terms(assignees="ana"))
    deciding, decisions = staged(house)
    decider, decides = await stalled(
        decisions, deciding.reviews.approve(page.id, by="ana", seen=page.rendered)
    )
    slow, stage = staged(house)
    task, hold = await stalled(stage, reassigned(slow, page, kind), is_fencing)
    decides.release()
    await decider
    hold.release()
    assert await task is None


async def reassigned(hf: Holdfast, page: Review, kind: str) -> Any:
    store, key = hf.reviews._store, await key_of(hf, page)
    if kind == "delegation":
        hook = {"ana": "dora"}.get
        return await delegate_review(store, key, lambda person, entry: hook(person, person))
    return await escalate_review(store, key, ["boss"])


# --- a fence is no signal -------------------------------------------------------------------------


async def test_a_run_does_not_take_a_fence(either: House) -> None:
    graph, hf = Graph("g", dict), either.open()

    @graph.node
    async def ask(state: Any, ctx: Any) -> Any:
        one, two = await asyncio.gather(ctx.review("one?"), ctx.review("two?"))
        return {"got": [one.status, two.status]}

    run = await hf.start(graph, {}, id="r")
    await work(either, graph)
    entries = {entry.question: entry for entry in (await hf.reviews.list(run="r")).reviews}
    before = await item_of_head(hf, "r")
    one = await hf.reviews.reassign(entries["one?"].id, by="ana", to="bob")
    assert await item_of_head(hf, "r") == before  # it wakes nothing
    item = await item_of_decision(hf, one)
    assert item is not None
    assert is_fence(item)
    assert item["ttl"] == before["ttl"]
    await hf.reviews.approve(entries["two?"].id, by="ana")
    await work(either, graph)
    after = await item_of_head(hf, "r")
    assert (after["status"], after.get("inbox_items", 0)) == ("waiting", 0)
    await hf.reviews.reject(one.id, by="bob")
    await work(either, graph)
    assert (await run.result())["got"] == ["rejected", "approved"]


async def test_a_fence_lasts_as_long_as_its_run(either: House) -> None:
    hf = either.open()
    run, page = await asked(either, hf, terms(), expires=hours(1))
    await change(hf, page.id, "edit")
    await run.extend(hours(48))
    head, item = await item_of_head(hf, "r"), await item_of_decision(hf, page)
    assert item is not None
    assert item["ttl"] == head["ttl"]
    await change(hf, page.id, "reassign")
    item = await item_of_decision(hf, page)
    assert item is not None
    assert (item["ttl"], fence_of(item)) == (head["ttl"], 1)
    assert (await hf.reviews.approve(page.id, by="cleo")).status == "approved"


async def test_a_fence_goes_with_its_run(house: House) -> None:
    graph, hf = terms(), house.open()
    run, page = await asked(house, hf, graph, expires=hours(1))
    await change(hf, page.id, "edit")
    house.clock.advance(3600)
    await work(house, graph)
    assert (await run.get()).status == "expired"
    assert await item_of_decision(hf, page) is None
    assert (await hf.reviews.get(page.id)).status == "expired"


async def test_a_trail_that_lost_actions_can_only_be_withdrawn(house: House) -> None:
    hf = house.open()
    _, page = await asked(house, hf, terms())
    key = await key_of(hf, page)
    head = await item_of_head(hf, "r")
    fence = fence_write(key.decision, 3, ttl=head["ttl"], token="t")
    await store_of(hf).table.write(fence)
    with pytest.raises(JournalDamaged, match="lacks its last actions: withdraw the review"):
        await hf.reviews.approve(page.id, by="ana")
    assert (await hf.reviews.withdraw(page.id, by="ana")).status == "withdrawn"
