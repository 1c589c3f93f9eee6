"""Agents whose tools need a person: one by one, together, mixed, and rejected."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Agent, Approval, Context, Holdfast, Retry, agent, tool
from holdfast.errors import InvalidRequest
from holdfast.integrations.offline import Offline
from holdfast.model.invocation import Request, ToolCall
from holdfast.model.review import Review
from tests.engine.asking import graph_of
from tests.engine.support import House


class Shop:
    """Tools of an agent, and what they did."""

    def __init__(self) -> None:
        self.did: list[Any] = []

        @tool(approval=True)
        async def refund(order: int, amount: int) -> str:
            """Refund an order."""
            self.did.append(("refund", order, amount))
            return "refunded"

        @tool(approval=lambda order: order > 10)
        async def cancel(order: int) -> str:
            self.did.append(("cancel", order))
            return "cancelled"

        @tool(approval=Approval(assignees="Boss"))
        async def close(order: int) -> str:
            self.did.append(("close", order))
            return "closed"

        async def look_up(order: int) -> str:
            self.did.append(("look_up", order))
            return "lost"

        self.tools = [refund, cancel, close, look_up]


class Talker(Offline):
    """Says what it is told to, and remembers what it was asked."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(list(answers))
        self.asked: list[Request] = []

    async def answer(self, request: Request, emit: Any) -> Any:
        self.asked.append(request)
        return await super().answer(request, emit)

    @property
    def told(self) -> list[str]:
        """What it was told of its last calls."""
        return [m["content"] for m in self.asked[-1].messages if m["role"] == "tool"]


def graph_with(shopkeeper: Agent[Any]) -> Any:
    async def node(state: Any, ctx: Context) -> Any:
        return {"text": (await shopkeeper(ctx, "Help!")).text}

    return graph_of(node)


async def pending(hf: Holdfast) -> list[Review]:
    page = await hf.reviews.list()
    reviews = [await hf.reviews.get(entry.id) for entry in page.reviews]
    return sorted(reviews, key=lambda review: str(review.values))


async def test_each_call_has_a_review_and_all_are_asked_for_at_once(either: House) -> None:
    shop = Shop()
    model = Talker(
        [
            ToolCall("1", "refund", {"order": 1, "amount": 10}),
            ToolCall("2", "refund", {"order": 2, "amount": 20}),
            ToolCall("3", "look_up", {"order": 3}),
            ToolCall("4", "cancel", {"order": 4}),
            ToolCall("5", "cancel", {"order": 50}),
        ],
        "Done.",
    )
    graph, hf = graph_with(agent("m", shop.tools)), either.open(models={"m": model})
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="r")
        await either.quiet(worker)
        # What needs no person is done, and is not done again.
        assert sorted(shop.did) == [("cancel", 4), ("look_up", 3)]
        refund_1, refund_2, cancel = await pending(hf)
        assert refund_1.values == {"order": 1, "amount": 10}
        assert refund_1.shown["model"]
        assert (refund_1.tool or "").endswith("refund")
        await hf.reviews.approve(refund_2.id, by="Ana")
        await either.quiet(worker)
        assert shop.did[2:] == [("refund", 2, 20)]
        await hf.reviews.reject(refund_1.id, by="Ana", comment="too much")
        await either.quiet(worker)
        await hf.reviews.approve(cancel.id, by="Ana")
        assert await run.result(timeout=60) == {"text": "Done."}
    assert shop.did[2:] == [("refund", 2, 20), ("cancel", 50)]
    assert len(model.asked) == 2
    assert model.told == [
        "Ana rejected this call: too much", "refunded", "lost", "cancelled", "cancelled",
    ]  # fmt: skip
    (rejected,) = [m for m in model.asked[-1].messages if m.get("error")]
    assert rejected["tool_call_id"] == "1"


async def test_calls_are_approved_together_and_edited(either: House) -> None:
    shop = Shop()
    model = Talker(
        [
            ToolCall("1", "refund", {"order": 1, "amount": 10}),
            ToolCall("2", "look_up", {"order": 2}),
            ToolCall("3", "cancel", {"order": 30}),
            ToolCall("4", "cancel", {"order": 4}),
            ToolCall("5", "refund", {"order": "five"}),
        ],
        "Done.",
    )
    graph = graph_with(agent("m", shop.tools, approvals="together"))
    hf = either.open(models={"m": model})
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="r")
        await either.quiet(worker)
        assert sorted(shop.did) == [("cancel", 4), ("look_up", 2)]
        (review,) = await pending(hf)
        assert review.values == {
            "refund_1": {"order": 1, "amount": 10},
            "cancel_2": {"order": 30},
        }
        assert review.question.startswith("Make these 2 calls? (1) ")
        assert "refund(order=1, amount=10) (2) " in review.question
        assert review.shown["refund_1"]["description"] == "Refund an order."
        assert review.form is not None
        assert list(review.form["properties"]) == ["refund_1", "cancel_2"]
        edited = {"refund_1": {"order": 1, "amount": 5}, "cancel_2": {"order": 30}}
        await hf.reviews.approve(review.id, by="Ana", values=edited)
        assert await run.result(timeout=60) == {"text": "Done."}
    assert sorted(shop.did[2:]) == [("cancel", 30), ("refund", 1, 5)]
    told = 'Ana changed the arguments to {"order":1,"amount":5}\nrefunded'
    assert model.told[:4] == [told, "lost", "cancelled", "cancelled"]
    assert "the arguments of refund do not fit" in model.told[4]


async def test_calls_together_show_the_questions_of_their_tools(house: House) -> None:
    @tool(approval=Approval(question=lambda order: f"Pay for {order}?"))
    async def pay(order: int) -> str:
        return "paid"

    model = Talker(
        [ToolCall("1", "pay", {"order": 1}), ToolCall("2", "pay", {"order": 2})], "Done."
    )
    graph = graph_with(agent("m", [pay], approvals="together"))
    hf = house.open(models={"m": model})
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, id="r")
        await house.quiet(worker)
        (review,) = await pending(hf)
    assert review.question == "Make these 2 calls? (1) Pay for 1? (2) Pay for 2?"
    assert review.shown["pay_2"]["question"] == "Pay for 2?"


async def test_a_model_is_told_of_edited_arguments_also_when_the_call_fails(house: House) -> None:
    calls: list[int] = []

    @tool(approval=True, retry=Retry(attempts=1))
    async def pay(amount: int) -> str:
        calls.append(amount)
        if amount == 3:
            raise ValueError("empty account")
        return "paid"

    asked = [ToolCall(f"{amount}", "pay", {"amount": amount}) for amount in (10, 20, 30)]
    model = Talker(asked, "Done.")
    graph, hf = graph_with(agent("m", [pay])), house.open(models={"m": model})
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="r")
        await house.quiet(worker)
        for review, amount in zip(await pending(hf), (1, 20, 3), strict=True):
            await hf.reviews.approve(review.id, by="Ana", values={"amount": amount})
            await house.quiet(worker)
        assert await run.result(timeout=60) == {"text": "Done."}
    assert calls == [1, 20, 3]
    first, second, third = model.told
    assert first == 'Ana changed the arguments to {"amount":1}\npaid'
    assert second == "paid"
    assert third.startswith('Ana changed the arguments to {"amount":3}\n')
    assert "empty account" in third


async def test_a_rejection_of_calls_together_rejects_each(house: House) -> None:
    shop = Shop()
    calls = [ToolCall(str(n), "refund", {"order": n, "amount": n}) for n in (1, 2)]
    model = Talker([*calls, ToolCall("3", "look_up", {"order": 3})], "Sorry.")
    graph = graph_with(agent("m", shop.tools, approvals="together"))
    hf = house.open(models={"m": model})
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="r")
        await house.quiet(worker)
        (review,) = await pending(hf)
        await hf.reviews.reject(review.id, by="Ana", comment="no budget")
        assert await run.result(timeout=60) == {"text": "Sorry."}
        ended = [e.details for e in (await run.history()).entries if e.kind == "call"]
    assert shop.did == [("look_up", 3)]
    assert model.told == ["Ana rejected this call: no budget"] * 2 + ["lost"]
    rejected = [each for each in ended if each.get("by") == "person"]
    assert len(rejected) == 2


async def test_calls_that_other_people_approve_have_a_review_of_their_own(house: House) -> None:
    shop = Shop()
    model = Talker(
        [
            ToolCall("1", "refund", {"order": 1, "amount": 1}),
            ToolCall("2", "close", {"order": 2}),
            ToolCall("3", "refund", {"order": 3, "amount": 3}),
        ],
        "Done.",
    )
    graph = graph_with(agent("m", shop.tools, approvals="together"))
    hf = house.open(models={"m": model})
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="r")
        await house.quiet(worker)
        boss, others = await pending(hf)
        assert (boss.assignees, list(boss.values)) == (("Boss",), ["close_1"])
        assert (others.assignees, list(others.values)) == ((), ["refund_1", "refund_2"])
        await hf.reviews.approve(others.id, by="Ana")
        await house.quiet(worker)
        assert sorted(shop.did) == [("refund", 1, 1), ("refund", 3, 3)]
        await hf.reviews.approve(boss.id, by="Boss")
        assert await run.result(timeout=60) == {"text": "Done."}
    assert shop.did[2:] == [("close", 2)]
    assert len(model.asked) == 2


def test_a_wrong_grouping_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="approvals must be 'each' or 'together', got 'all'"):
        agent("m", approvals="all")  # pyright: ignore[reportArgumentType]
