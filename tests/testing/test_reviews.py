"""Reviews in tests: of one node with given decisions, and of whole runs in the kit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Context, Graph, Notice, ReviewOptions, days, workflow
from holdfast.engine.execution.blocking_context import BlockingContext
from holdfast.errors import InvalidRequest, NotPausable
from holdfast.testing import (
    AskedReview,
    FakeContext,
    NotProvided,
    TestKit,
    approved,
    expired,
    rejected,
    withdrawn,
)


@dataclass
class Terms:
    months: int


@dataclass
class Warranty:
    uri: str = "a.pdf"
    risk: str = "high"
    months: int = 24
    outcome: str = ""


graph = Graph("warranty", Warranty)


@graph.node
async def check(state: Warranty, ctx: Context) -> dict[str, Any]:
    decision = await ctx.review(
        "Approve this warranty?",
        show=["uri", "risk"],
        form=Terms,
        values=Terms(state.months),
        assignees=["ana", "bob"],
        expires=days(7),
    )
    months = decision.values.months if decision.approved else 0
    return {"months": months, "outcome": f"{decision.status} by {decision.by}: {decision.comment}"}


async def test_a_node_gets_the_decisions_of_the_test() -> None:
    for answer, months, outcome in (
        (approved(), 24, "approved by reviewer: "),
        (approved(Terms(12), by="ana", comment="fine"), 12, "approved by ana: fine"),
        (approved({"months": 6}), 6, "approved by reviewer: "),
        (rejected("too old"), 0, "rejected by reviewer: too old"),
        (expired(), 0, "expired by None: "),
        (withdrawn("sent twice"), 0, "withdrawn by operator: sent twice"),
    ):
        ctx = FakeContext(reviews=[answer])
        after = await graph.run_node(check, Warranty(), ctx=ctx)
        assert (after.months, after.outcome) == (months, outcome)
        assert ctx.reviews == [
            AskedReview(
                question="Approve this warranty?",
                shown={"uri": "a.pdf", "risk": "high"},
                values={"months": 24},
                assignees=("ana", "bob"),
                expires_seconds=7 * 24 * 3600,
            )
        ]


async def test_a_node_can_be_called_as_a_function() -> None:
    ctx = FakeContext(reviews=[approved()])
    assert (await check(Warranty(months=3), ctx))["months"] == 3
    assert ctx.reviews[0].shown == {"uri": None, "risk": None}  # it does not know the state


async def test_what_is_not_provided_is_not_decided() -> None:
    with pytest.raises(NotProvided, match=r"'Approve this warranty\?'.*reviews=\[approved\(\)\]"):
        await graph.run_node(check, Warranty(), ctx=FakeContext())


@pytest.mark.parametrize("values", [{"months": "many"}, None, {}])
async def test_values_that_do_not_fit_are_a_mistake_of_the_test(values: Any) -> None:
    ctx = FakeContext(reviews=[approved(values)])
    with pytest.raises(NotProvided, match="do not fit its form"):
        await graph.run_node(check, Warranty(), ctx=ctx)


async def test_values_without_a_form_are_a_mistake_of_the_test() -> None:
    @workflow
    async def ask(input: int, ctx: Context) -> bool:
        return (await ctx.review("Go on?")).approved

    assert await ask(1, FakeContext(reviews=[approved()]))
    with pytest.raises(NotProvided, match="the review has no form"):
        await ask(1, FakeContext(reviews=[approved(7)]))


async def test_a_blocking_node_and_wrong_arguments() -> None:
    plain = Graph("plain", Warranty)

    @plain.node
    def ask(state: Warranty, ctx: BlockingContext) -> dict[str, Any]:
        return {"outcome": ctx.review("Go on?", show=["uri"]).status}

    @plain.node
    async def wrong(state: Warranty, ctx: Context) -> None:
        await ctx.review("Go on?", show=["missing"])

    @plain.node(pausable="no")
    async def hurried(state: Warranty, ctx: Context) -> None:
        await ctx.review("Go on?")

    plain.route(ask, wrong, hurried)
    after = await plain.run_node(ask, Warranty(), ctx=FakeContext(reviews=[rejected()]))
    assert after.outcome == "rejected"
    with pytest.raises(InvalidRequest, match="show must name fields of the state, got 'missing'"):
        await plain.run_node(wrong, Warranty(), ctx=FakeContext(reviews=[approved()]))
    with pytest.raises(NotPausable):
        await plain.run_node(hurried, Warranty(), ctx=FakeContext(reviews=[approved()]))


async def test_the_kit_runs_a_review_to_its_expiry_and_to_a_decision() -> None:
    async with TestKit(graph) as kit:
        first = await kit.hf.start(graph, Warranty(), expires=days(30))
        second = await kit.hf.start(graph, Warranty(), expires=days(30))
        await kit.settled()
        (entry,) = (await kit.hf.reviews.list(run=first.id)).reviews
        await kit.hf.reviews.approve(entry.id, by="ana", values={"months": 1})
        await kit.skip(days(8))
        assert (await first.result()).months == 1
        assert (await second.result()).outcome == "expired by None: "


class Postbox:
    """A notifier that keeps what it gets."""

    name = "postbox"

    def __init__(self) -> None:
        self.notices: list[Notice] = []

    async def send(self, notice: Notice) -> None:
        self.notices.append(notice)


@workflow
async def sell(price: int, ctx: Context) -> str:
    decision = await ctx.review("Sell it?", assignees="ana", expires=days(7), remind_after=days(2))
    return decision.status


async def test_notices_come_at_their_time_in_the_kit() -> None:
    box = Postbox()
    async with TestKit() as kit:
        run = await kit.serves(sell, reviews=ReviewOptions(notifiers=[box])).hf.start(sell, 70)
        begin = kit.clock.now
        await kit.skip(days(8))
        assert await run.result() == "expired"
        told = [(notice.kind, notice.at - begin) for notice in box.notices]
        assert told == [("requested", timedelta(0)), ("reminder", timedelta(days=2))]
        with pytest.raises(InvalidRequest, match="reviews must be given before the first use"):
            kit.serves(sell, reviews=ReviewOptions())
