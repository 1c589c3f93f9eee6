"""Calls under quotas, answers that runs share, text that is followed: as nodes see them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Budget, Graph, Holdfast, Quota, Retry, minutes, signal, tool
from holdfast.errors import InvalidRequest, ModelUnavailable
from holdfast.storage.operations import Operation, WriteItem
from tests.engine.asking import Cents, graph_of
from tests.engine.staging import staged
from tests.engine.support import House, tenant_key, work_of


async def test_a_run_that_a_quota_puts_off_is_parked_on_a_timer(either: House) -> None:
    made: list[int] = []

    @tool(quota=Quota("mail", requests=2, per=minutes(1)))
    async def send(n: int) -> int:
        made.append(n)
        return n

    async def node(state: Any, ctx: Any) -> Any:
        return {"sent": [await ctx.call(send, n) for n in range(3)]}

    graph, hf = graph_of(node), either.open()
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await either.quiet(worker)
        row = await run.get()
        assert (row.status, row.reason, row.waits[0].about) == ("waiting", "quota", "quota mail")
        for _ in range(10):
            if (await run.get()).status != "waiting":
                break
            await either.move(20, worker)
        assert await run.result(timeout=60) == {"sent": [0, 1, 2]}
    assert made == [0, 1, 2]


async def test_a_recorded_answer_takes_nothing_of_a_quota(house: House) -> None:
    model = Cents()

    async def node(state: Any, ctx: Any) -> Any:
        for _ in range(3):
            await ctx.model("cheap", "Is it?", key=f"q{state['n']}")
        await ctx.wait(signal("go on"))
        return {}

    quota = Quota("cheap", requests=1, per=minutes(10))
    graph, hf = graph_of(node), house.open(models={"cheap": model}, quotas={"cheap": quota})
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {"n": 1}, id="one")
        await house.quiet(worker)
        await run.signal("go on")
        await run.result(timeout=60)
        await hf.start(graph, {"n": 2}, id="two")
        await house.quiet(worker)
        assert (await hf.run("two").get()).reason == "quota"
    assert len(model.asked) == 1


async def test_a_slot_given_to_a_worker_that_lost_its_run_is_free_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process goes on, and would renew the slot for as long as it lives."""
    quota, hf = Quota("slow", concurrency=1), house.open()
    desk, made = hf._resources.quota_limiter, list[int]()
    admit, lost = desk.acquire, asyncio.Event()

    async def call() -> None:
        made.append(1)

    async def node(state: Any, ctx: Any) -> Any:
        await ctx.with_options(quota=quota).call(call)

    async def late(*arguments: Any, **options: Any) -> Any:
        granted = await admit(*arguments, **options)
        worker._owner.lease._deadline = 0.0
        lost.set()
        return granted

    monkeypatch.setattr(desk, "acquire", late)
    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, id="doc-42")
        async with asyncio.timeout(60):
            await lost.wait()
        await asyncio.wait(work_of(worker))
        assert made == []
        assert [list(counter.held_permits) for counter in desk._items.values()] == [[]]


async def test_slots_are_given_back_whatever_becomes_of_the_call(house: House) -> None:
    under_way, most = [], []
    quota = Quota("slow", concurrency=2)

    async def slow(n: int) -> int:
        under_way.append(n)
        most.append(len(under_way))
        await asyncio.wait({asyncio.ensure_future(house.clock.sleep(1))})
        under_way.remove(n)
        if n % 2:
            raise OSError("torn")
        return n

    async def node(state: Any, ctx: Any) -> Any:
        results = await asyncio.gather(
            *(ctx.with_options(quota=quota).call(slow, n) for n in range(6)), return_exceptions=True
        )
        return {"done": sum(isinstance(result, int) for result in results)}

    graph, hf = graph_of(node), house.open()
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        result = asyncio.ensure_future(run.result(timeout=60))
        while not result.done():
            house.clock.advance(0.25)
            await asyncio.wait({result}, timeout=0.01)
        assert await result == {"done": 3}
    assert max(most) == 2


async def test_runs_share_an_answer_and_pay_it_once(either: House) -> None:
    model = Cents()

    async def node(state: Any, ctx: Any) -> Any:
        return {"text": (await ctx.model("cheap", "Is it?", share=True)).text}

    quota = Quota("cheap", requests=1, per=minutes(10))
    graph = graph_of(node)
    hf = either.open(models={"cheap": model}, quotas={"cheap": quota})
    async with either.worker(hf, graph):
        runs = [await hf.start(graph, id=f"run-{n}", budget=Budget(usd=1)) for n in range(10)]
        states = [await run.result(timeout=60) for run in runs]
        other = await hf.start(graph, id="other", tenant="other", budget=Budget(usd=1))
    assert states == [{"text": "yes"}] * 10
    costs = sorted([(await run.get()).cost_usd for run in runs])
    assert costs == [0.0] * 9 + [0.01]
    assert len(model.asked) == 1  # that of the other tenant waits for its quota
    assert other.tenant == "other"
    saved = [
        entry.details["saved"]["tokens"]
        for run in runs
        for entry in (await run.history()).entries
        if entry.kind == "call" and entry.details["by"] == "cache"
    ]
    assert saved == [100] * 9
    assert (hf.saved.calls, hf.saved.tokens) == (9, 900)


async def test_a_shared_question_that_waits_for_its_quota_reserves_nothing(house: House) -> None:
    model = Cents()

    async def node(state: Any, ctx: Any) -> Any:
        return {"text": (await ctx.model("cheap", state["question"], share=True)).text}

    graph, quota = graph_of(node), Quota("cheap", requests=1, per=minutes(10))
    hf = house.open(models={"cheap": model}, quotas={"cheap": quota})
    async with house.worker(hf, graph) as worker:
        first = await hf.start(graph, {"question": "Is it?"}, id="first", budget=Budget(usd=1))
        await first.result(timeout=60)
        second = await hf.start(graph, {"question": "Was it?"}, id="second", budget=Budget(usd=1))
        await house.quiet(worker)
        waiting = await second.get()
        assert (waiting.status, waiting.cost_usd) == ("waiting", 0.0)
        for _ in range(2):  # the second time the moment that it was told has come
            await house.move(600, worker)
        assert await second.result(timeout=60) == {"question": "Was it?", "text": "yes"}
        assert (await second.get()).cost_usd == 0.01
    assert len(model.asked) == 2


async def test_equal_questions_side_by_side_wait_for_their_quota_together(house: House) -> None:
    """One asks for both and is told to wait; it must not wait for the other, which waits for it."""
    model = Cents()

    async def node(state: Any, ctx: Any) -> Any:
        asked = (ctx.model("cheap", state["question"], share=True) for _ in range(2))
        return {"texts": [answer.text for answer in await asyncio.gather(*asked)]}

    graph, quota = graph_of(node), Quota("cheap", requests=1, per=minutes(10))
    hf = house.open(models={"cheap": model}, quotas={"cheap": quota})
    async with house.worker(hf, graph) as worker:
        await (await hf.start(graph, {"question": "Is it?"}, id="first")).result(timeout=60)
        second = await hf.start(graph, {"question": "Was it?"}, id="second")
        await house.quiet(worker)
        assert (await second.get()).status == "waiting"
    assert len(model.asked) == 1


async def test_the_text_of_an_answer_is_followed_as_it_comes(house: House) -> None:
    class Slowly(Cents):
        async def answer(self, request: Any, emit: Any) -> Any:
            for word in ("It ", "is ", "so."):
                emit(word)
            return await super().answer(request, None)

    model = Slowly(lambda request: "It is so.")
    model.errors = [ModelUnavailable("cut")]

    async def node(state: Any, ctx: Any) -> Any:
        retry = Retry(attempts=2, backoff=0)
        return {"text": (await ctx.model("cheap", "Is it?", stream=True, retry=retry)).text}

    graph, hf = graph_of(node), house.open(models={"cheap": model})
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        await run.result(timeout=60)
        pieces = [piece async for piece in hf.run("doc-42").tokens(follow=False)]
    last = [piece for piece in pieces if piece.restarted][-1]
    after = pieces[pieces.index(last) :]
    assert "".join(piece.text for piece in after) == "It is so."
    assert after[-1].last


async def test_the_texts_of_different_calls_are_told_apart(house: House) -> None:
    """Branches and visits name their calls alike; who follows must not take one for another."""
    graph = Graph("talks", dict, reducers={"texts": "append"})

    @graph.node
    async def begin(state: Any, ctx: Any) -> Any:
        return {"parts": ["left", "right"]}

    @graph.node(writes=["texts"])
    async def ask(state: Any, ctx: Any) -> Any:
        answer = await ctx.model("talker", state["part"], stream=True)
        return {"texts": [answer.text]}

    @graph.node
    async def end(state: Any, ctx: Any) -> Any:
        answer = await ctx.model("talker", "end", stream=True)
        return {"texts": [answer.text]}

    graph.each(begin, ask, over="parts", into="part", join=end)
    both = asyncio.Barrier(2)

    class Talker(Cents):
        async def answer(self, request: Any, emit: Any) -> Any:
            asked = request.messages[0]["content"]
            for word in ("It ", "is ", asked):
                emit(word)
                if asked != "end":
                    await both.wait()  # so that the two are told side by side
            return await super().answer(request, None)

    model = Talker(lambda request: f"It is {request.messages[0]['content']}")
    hf = house.open(models={"talker": model})
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        await run.result(timeout=60)
        pieces = [piece async for piece in hf.run("doc-42").tokens(follow=False)]
    shown: dict[str, str] = {}
    for piece in pieces:
        shown[piece.call] = ("" if piece.restarted else shown.get(piece.call, "")) + piece.text
    assert sorted(shown.values()) == ["It is end", "It is left", "It is right"]
    assert not any(piece.restarted for piece in pieces)


async def test_quotas_of_models_are_checked_at_once() -> None:
    for quotas in ({"cheap": 3}, {"dear": Quota("q", requests=1)}):
        with pytest.raises(InvalidRequest) as refused:
            Holdfast("sqlite://:memory:", models={"cheap": Cents()}, quotas=quotas)  # pyright: ignore[reportArgumentType]
        assert refused.value.field == "quotas"


async def test_a_call_whose_intent_took_too_long_asks_its_quota_again(house: House) -> None:
    """What comes between an admission and its call may take longer than the quota allows for."""
    quota, made = Quota("wires", requests=10, per=2), list[str]()

    @tool(at_most_once=True, quota=quota)
    async def wire(*, idempotency_key: str) -> None:
        made.append(idempotency_key)

    async def node(state: Any, ctx: Any) -> Any:
        await ctx.call(wire)

    graph, (hf, stage) = graph_of(node), staged(house)
    row = tenant_key("doc-42")
    async with house.worker(hf, graph) as worker:
        intent = stage.hold(lambda operation: is_record(operation, row.pk))
        run = await hf.start(graph, id="doc-42")
        await intent.reached()
        assert hf._resources.quota_limiter.counts["admitted"] == 1
        house.clock.advance(1)
        intent.release()
        await house.quiet(worker)
        assert (await run.get()).status == "finished"
    assert hf._resources.quota_limiter.counts["admitted"] == 2
    assert len(made) == 1


def is_record(operation: Operation, pk: str) -> bool:
    """Return whether an operation writes into a run's journal."""
    key = operation.write.key if isinstance(operation, WriteItem) else None
    return key is not None and key.pk == pk and key.sk.startswith("J#")
