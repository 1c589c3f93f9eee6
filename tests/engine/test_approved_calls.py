"""Approved calls that are tampered with, that fail, that die in the middle, and in other places."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Context, Graph, Holdfast, Quota, Retry, tool, workflow
from holdfast.errors import CallChanged, CallRejected
from holdfast.model.review import Review
from holdfast.model.wait import ReviewWait
from holdfast.records.codec import pack, unpack_value
from holdfast.records.keys import inbox_key
from holdfast.records.review import ReviewKey
from holdfast.storage import Delete, Put
from holdfast.testing import FakeContext, raises
from tests.engine.asking import graph_of
from tests.engine.support import House, item_of_head, kill, store_of, tenant_key


class Bank:
    """Makes transfers, and knows which ones."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.keys: list[str] = []
        self.failing = 0
        self.held: asyncio.Event | None = None
        self.begun = asyncio.Event()

    def transfer(self, **options: Any) -> Any:
        @tool(name="transfer", **{"approval": True, **options})
        async def transfer(amount: int, password: str = "", idempotency_key: str = "") -> int:
            self.keys.append(idempotency_key)
            self.begun.set()
            if self.held is not None:
                await self.held.wait()
            if self.failing:
                self.failing -= 1
                raise ConnectionError("closed")
            self.made.append((amount, password) if password else amount)
            return amount

        return transfer


async def only(hf: Holdfast, run: str = "r") -> Review:
    (entry,) = (await hf.reviews.list(run=run)).reviews
    return await hf.reviews.get(entry.id)


def calling(transfer: Any, **options: Any) -> Graph:
    async def node(state: Any, ctx: Context) -> Any:
        try:
            return {"made": await ctx.call(transfer, 100)}
        except CallChanged as error:
            return {"changed": str(error)}

    return graph_of(node, **options)


async def tamper(hf: Holdfast, id: str, what: str) -> None:
    generation = (await item_of_head(hf, "r"))["generation"]
    key = ReviewKey(tenant_key("r"), generation, id.rpartition("~")[2])
    decision = inbox_key(key.run, generation, ReviewWait(key.name).signal, "decision")
    table = store_of(hf).table
    if what == "nothing":
        return
    if what == "gone":
        for place in (key.entry, key.shown):
            await table.write(Delete(place))
        return
    places = {"shown": key.shown, "values": key.shown, "inbox": decision}
    item = await table.get(places.get(what, key.action(0)))
    assert item is not None
    attribute = "payload" if what == "inbox" and "data" not in item else "data"
    value = unpack_value(item[attribute])
    if what == "shown":
        value["tools"][0]["arguments"]["amount"] = 1_000_000
    elif what == "values" or what == "inbox":
        value["values"]["amount"] = 1_000_000
    else:
        value[3]["values"]["amount"] = 1_000_000
    await table.write(Put({**item, attribute: pack(value)}))


@pytest.mark.parametrize("what", ["nothing", "shown", "values", "inbox", "trail", "edit", "gone"])
async def test_what_was_changed_in_the_store_is_not_executed(either: House, what: str) -> None:
    bank = Bank()
    graph, hf = calling(bank.transfer(at_most_once=True)), either.open()
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="r")
        await either.quiet(worker)
    review = await only(hf)
    if what == "edit":  # the decision is intact, and the trail that led to it is not
        await hf.reviews.edit(review.id, by="Cleo", values={"amount": 50})
    await hf.reviews.approve(review.id, by="Cleo")
    await tamper(hf, review.id, what)
    async with either.worker(hf, graph):
        state = await run.result(timeout=60)
    if what == "nothing":
        assert (state, bank.made) == ({"made": 100}, [100])
        return
    assert bank.made == []
    assert "is not what was approved: " in state["changed"]
    assert state["changed"].endswith("nothing was called")
    # Nothing is left that looks like a call that may have been made.
    assert not [e for e in (await run.history()).entries if e.kind == "intent"]


async def test_neither_attempts_of_the_call_nor_of_the_node_ask_again(house: House) -> None:
    bank = Bank()
    bank.failing = 3
    transfer = bank.transfer(retry=Retry(attempts=2, backoff=0))
    graph, hf = calling(transfer, retry=Retry(attempts=2, backoff=0)), house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="r")
        await house.quiet(worker)
        await hf.reviews.approve((await only(hf)).id, by="Cleo")
        assert await run.result(timeout=60) == {"made": 100}
        assert (await hf.reviews.list(run="r")).reviews == []
    assert bank.made == [100]
    assert len(bank.keys) == 4
    assert len(set(bank.keys)) == 1


async def test_a_crash_during_an_approved_call_executes_the_same_arguments(house: House) -> None:
    bank = Bank()
    bank.held = asyncio.Event()
    amounts = iter([100, 200, 300, 400])
    transfer = bank.transfer()

    async def node(state: Any, ctx: Context) -> Any:
        return {"made": await ctx.call(transfer, next(amounts))}

    graph, hf = graph_of(node), house.open()
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, id="r")
        await house.quiet(worker)
    first = house.open()
    worker = house.worker(first, graph, lease=15)
    async with worker:
        await first.reviews.approve((await only(first)).id, by="Cleo")
        await bank.begun.wait()
        kill(worker)
    bank.held = None
    second = house.open()
    async with house.worker(second, graph) as worker:
        await house.move(60, worker)
        assert await second.run("r").result(timeout=60) == {"made": 100}
    assert bank.made == [100]
    assert len(set(bank.keys)) == 1


async def test_nothing_of_a_call_happens_before_its_approval(house: House) -> None:
    bank = Bank()
    transfer = bank.transfer(quota=Quota("transfers", requests=1, per="1h"))
    graph, hf = calling(transfer), house.open()
    async with house.worker(hf, graph) as worker:
        for id in ("r", "s"):
            await hf.start(graph, id=id)
        await house.quiet(worker)
        # A permit that a waiting call held would be lost for the others.
        await hf.reviews.approve((await only(hf, "s")).id, by="Cleo")
        assert await hf.run("s").result(timeout=60) == {"made": 100}
    assert bank.made == [100]


async def test_plain_functions_workflows_and_calls_inside_of_calls(house: House) -> None:
    bank = Bank()
    transfer = bank.transfer()

    async def outer(ctx: Context, amount: int) -> int:
        return await ctx.call(transfer, amount) + 1

    def plain(state: Any, ctx: Any) -> Any:
        return {
            "plain": ctx.call(transfer, 1),
            "keyed": ctx.with_options(key="k").call(transfer, 2),
        }

    async def nested(state: Any, ctx: Context) -> Any:
        return {"nested": await ctx.call(outer, amount=3)}

    @workflow
    async def flow(amount: int, ctx: Context) -> int:
        return await ctx.call(transfer, amount)

    plainly, inside = graph_of(plain, "plainly"), graph_of(nested, "inside")
    hf = house.open()
    async with house.worker(hf, plainly, inside, flow) as worker:
        runs = [
            await hf.start(plainly, id="p"),
            await hf.start(inside, id="n"),
            await hf.start(flow, 4, id="f"),
        ]
        for id in ("p", "p", "n", "f"):
            await house.quiet(worker)
            await hf.reviews.approve((await only(hf, id)).id, by="Cleo")
        results = [await run.result(timeout=60) for run in runs]
    assert results == [{"plain": 1, "keyed": 2}, {"nested": 4}, 4]
    assert sorted(bank.made) == [1, 2, 3, 4]


async def test_reviewers_see_the_exact_arguments_and_lists_no_secrets(house: House) -> None:
    bank = Bank()
    transfer = bank.transfer()

    async def node(state: Any, ctx: Context) -> Any:
        return {"made": await ctx.call(transfer, 5, password="hunter2")}

    graph, hf = graph_of(node), house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="r")
        await house.quiet(worker)
        review = await only(hf)
        assert review.question == "Call transfer(amount=5, password=***)?"
        assert review.values["password"] == "hunter2"
        await hf.reviews.approve(review.id, by="Cleo")
        await run.result(timeout=60)
        history = str([e.details for e in (await run.history()).entries if e.kind == "call"])
    assert bank.made == [(5, "hunter2")]
    assert "hunter2" not in history


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (object(), "a reviewer cannot be shown the arguments of 'pay'"),
        (float("nan"), "would come back from the review with another type"),
        ("x" * 200_000, "which needs an approval, have 200,0"),
        ({1: "a"}, "JSON cannot express the arguments of 'pay'"),
        (b"bytes", "a bytes needs an annotation"),
        ("\ud800", "lone surrogate"),
    ],
)
async def test_arguments_that_no_reviewer_can_see_are_refused(
    house: House, value: Any, fault: str
) -> None:
    @tool(name="pay", approval=True)
    async def pay(to: Any) -> None:
        raise AssertionError

    async def node(state: Any, ctx: Context) -> Any:
        try:
            await ctx.call(pay, value)
        except Exception as error:
            return {"fault": str(error)}

    graph, hf = graph_of(node), house.open()
    async with house.worker(hf, graph):
        state = await (await hf.start(graph, id="r")).result(timeout=60)
    assert fault in state["fault"]
    assert (await hf.reviews.list()).reviews == []


async def test_a_node_that_must_not_pause_cannot_ask(house: House) -> None:
    bank = Bank()
    graph, hf = calling(bank.transfer(), pausable="no"), house.open()
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="r")
        assert (await run.until("failed", timeout=60)).status == "failed"
    assert bank.made == []


async def test_a_fake_context_answers_calls_without_a_review() -> None:
    bank = Bank()
    graph = calling(bank.transfer())
    assert await graph.run_node("node", {}, ctx=FakeContext(calls={"transfer": 7})) == {"made": 7}
    refusing = FakeContext(calls={"transfer": raises(CallRejected("Cleo rejected it"))})
    with pytest.raises(CallRejected, match="Cleo rejected it"):
        await graph.run_node("node", {}, ctx=refusing)
