"""Bounds of a call that are smaller than a token for each byte: counters and learned estimates."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from holdfast import Budget, Retry, tool
from holdfast.engine.effects import model_bounds
from holdfast.engine.effects.token_estimates import TokenEstimates
from holdfast.errors import BudgetShared, CallFailed, InvalidRequest, ModelUnavailable
from holdfast.graph.schemas import tool_of
from holdfast.integrations.offline import Offline
from holdfast.model.budget import BudgetLimits
from holdfast.model.invocation import Request, ToolCall, input_bytes, tokens_max
from holdfast.model.pricing import ModelPrice, Usage
from tests.engine.asking import A_CENT, Cents, graph_of
from tests.engine.support import Gate, House, item_of_head, kill, reached

SONNET = ModelPrice(input_usd=3, output_usd=15)
MANUAL = "The harbour master writes down each ship that comes in, and when it leaves. " * 135


class Bytes(Cents):
    """A model whose upper bound is a token for each byte, and that takes what it is told to take.

    It has no counter unless one is given.
    """

    def __init__(self, used: int, **options: Any) -> None:
        super().__init__(**options)
        self.used = Usage(used, 1)
        self.max_tokens = 10

    def tokens_max(self, request: Request) -> tuple[int, int]:
        return tokens_max(request, image_tokens=0, context_tokens=10**6, max_tokens=10)


class Counting(Bytes):
    def __init__(self, used: int, counts: Any, **options: Any) -> None:
        super().__init__(used, **options)
        self.counts = counts
        self.counted = 0

    async def count_tokens(self, request: Request) -> Any:
        self.counted += 1
        if isinstance(self.counts, Exception):
            raise self.counts
        if self.counts == "hangs":
            await asyncio.Event().wait()
        return self.counts


@tool
async def look_up(ship: str) -> str:
    """Look up where a ship is now, in the register of the harbour."""
    return f"{ship} lies at berth 4"


async def advise(state: Any, ctx: Any) -> Any:
    """An agent with a long prompt and a tool, as people write them."""
    answer = await ctx.model("sonnet", MANUAL, tools=[tool_of(look_up)[0]], max_tokens=1024)
    answer = await ctx.model("sonnet", [{"role": "user", "content": f"{MANUAL}{answer.text}"}])
    return {"text": answer.text}


def sonnet(*, counts: bool = False) -> Offline:
    script = [ToolCall("1", "look_up", {"ship": "Ann"}), "At berth 4. " * 30]
    return Offline(script, price=SONNET, max_tokens=1024, counts_tokens=counts)


@pytest.mark.parametrize(
    ("counts", "estimate"), [(False, False), (True, False), (False, True), (True, True)]
)
async def test_a_run_that_costs_two_cents_fits_into_five(
    house: House, caplog: pytest.LogCaptureFixture, counts: bool, estimate: bool
) -> None:
    graph = graph_of(advise)
    hf = house.open(models={"sonnet": sonnet(counts=counts)})
    async with house.worker(hf, graph) as worker:
        budget = Budget(usd=0.05, estimate=estimate)
        run = await hf.start(graph, id="doc-42", budget=budget)
        await house.quiet(worker)
        row = await run.get()
        if counts or estimate:
            assert row.status == "finished"
            assert 0.015 < row.cost_usd < 0.02
            assert not [each for each in caplog.records if "first call" in each.message]
            return
        # The hard bound is the promise. The pause says what it consists of, and what helps.
        assert row.reason == "budget"
        about = row.waits[0].about
        assert about.startswith("needs $0.05")
        assert about.endswith(
            " input tokens by bytes, 1,024 output tokens (max_tokens); lower max_tokens, "
            "set estimate=True or raise the budget"
        )
        await house.move(100, worker)  # it checks again
    warnings = [each.message for each in caplog.records if "first call" in each.message]
    assert len(warnings) == 1
    assert about in warnings[0]
    assert "run doc-42 of tenant default" in warnings[0]


# --- counters -------------------------------------------------------------------------------------


async def ask(state: Any, ctx: Any) -> Any:
    """Ask as often as the state says, 1,000 bytes each."""
    return {"n": [(await ctx.model("cheap", "x" * 1000)).text for _ in range(state["n"])]}


async def test_a_counter_is_asked_only_if_the_upper_bound_does_not_fit(house: House) -> None:
    model = Counting(90, 100, price=None)
    graph, hf = graph_of(ask), house.open(models={"cheap": model})
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {"n": 1}, budget=Budget(tokens=1100))
        await run.result(timeout=60)
        assert model.counted == 0
        run = await hf.start(graph, {"n": 1}, budget=Budget(tokens=110))
        await run.result(timeout=60)
        assert model.counted == 1
        run = await hf.start(graph, {"n": 1}, budget=Budget(tokens=109))
        await house.quiet(worker)
        assert (await run.get()).waits[0].about == (
            "needs 110 tokens, and 109 are left: 100 input tokens as counted, 10 output tokens "
            "(max_tokens); lower max_tokens or raise the budget"
        )
        counted = model.counted
        run = await hf.start(graph, {"n": 1}, budget=Budget(tokens=10))
        await house.quiet(worker)  # not even a token of input fits, whatever it counts
        assert ((await run.get()).reason, model.counted) == ("budget", counted)
    assert len(model.asked) == 2


@pytest.mark.parametrize(
    "counts", [None, 0, -1, True, 1.5, "100", 10**9, 1_000_000, OSError("no network"), "hangs"]
)
async def test_a_count_that_cannot_be_used_leaves_the_upper_bound(
    house: House, monkeypatch: pytest.MonkeyPatch, counts: Any
) -> None:
    monkeypatch.setattr(model_bounds, "_COUNT_SECONDS_MAX", 0.05)
    model = Counting(90, counts, price=None)
    graph, hf = graph_of(ask), house.open(models={"cheap": model})
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {"n": 1}, budget=Budget(tokens=200))
        await house.quiet(worker)
        assert (await run.get()).waits[0].about.startswith("needs 1,092 tokens, and 200 are left")
        assert (model.counted, model.asked) == (1, [])
        await run.set_budget(Budget(tokens=1092))
        await run.result(timeout=60)


async def test_what_a_lying_counter_left_out_counts_and_is_logged(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    model = Counting(900, 10, price=None)
    graph, hf = graph_of(ask), house.open(models={"cheap": model})
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {"n": 2}, budget=Budget(tokens=500))
        await house.quiet(worker)
        row = await run.get()
        assert (row.reason, row.tokens) == ("budget", 901)
        assert "and 0 are left" in row.waits[0].about
    assert len(model.asked) == 1
    assert "took 900 input tokens, but its token counter said 10" in caplog.text


# --- estimates ------------------------------------------------------------------------------------


def test_an_estimate_is_learned_and_never_above_the_upper_bound() -> None:
    estimates = TokenEstimates()
    request = Request.of("m", "x" * 10_000)
    assert estimates.estimate("m", request, 10_082) == 6_274  # 0.625 a byte, and its framing
    for _ in range(20):
        estimates.learn("m", request, 2_524)
    assert 3_124 < estimates.estimate("m", request, 10_082) < 3_400
    assert estimates.estimate("other", request, 10_082) == 6_274
    for _ in range(200):
        estimates.learn("m", request, 1)
    assert estimates.estimate("m", request, 10_082) == 1_274  # an eighth of a token a byte
    for _ in range(500):
        estimates.learn("m", request, 10_082)
    assert estimates.estimate("m", request, 10_082) == 10_082


def test_images_are_not_estimated() -> None:
    estimates = TokenEstimates()
    image = {"type": "image", "media_type": "image/png", "data": b"\x89PNG"}
    note = {"type": "document", "media_type": "text/plain", "data": b"12345", "name": "n"}
    request = Request.of("m", [{"role": "user", "content": [image, {"type": "text", "text": "?"}]}])
    assert input_bytes(request) is None
    assert estimates.estimate("m", request, 7_777) == 7_777
    estimates.learn("m", request, 1)
    assert input_bytes(Request.of("m", [{"role": "user", "content": [note]}])) == 6
    assert input_bytes(Request.of("m", "é")) == 2


async def test_a_call_that_took_more_than_estimated_stops_the_next_one(house: House) -> None:
    model = Bytes(1080, price=None)
    graph, hf = graph_of(ask), house.open(models={"cheap": model})
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {"n": 3}, budget=Budget(tokens=1000, estimate=True))
        await house.quiet(worker)
        row = await run.get()
        assert (row.reason, row.tokens) == ("budget", 1081)  # at most its upper bound: 1,092
        assert row.budget == BudgetLimits(tokens=1000, estimate=True)
    assert len(model.asked) == 1


async def test_a_lost_call_counts_with_its_upper_bound(house: House) -> None:
    """Nothing says what it took: an estimate of it would hide an overshoot for ever."""
    model, gate = Bytes(400, price=None), Gate()

    class Stuck(Bytes):
        async def answer(self, request: Any, emit: Any) -> Any:
            await gate.pass_through()

    hf = house.open(models={"cheap": Stuck(1)})
    graph = graph_of(ask)
    doomed = house.worker(hf, graph, lease=10)
    await doomed.start()
    await hf.start(graph, {"n": 1}, id="doc-42", budget=Budget(tokens=1000, estimate=True))
    await gate.waited_at()
    kill(doomed)
    other = house.open(models={"cheap": model})
    async with house.worker(other, graph, lease=10) as worker:
        await house.clock.asleep(3)
        for _ in range(8):
            await house.move(5, worker)
        row = await reached(other, "doc-42", "waiting")
        assert (row.reason, model.asked) == ("budget", [])
        await other.run("doc-42").set_budget(Budget(tokens=1800, estimate=True))
        await other.run("doc-42").result(timeout=60)
        # 1,092 for the lost one, 401 for the other one.
        assert (await other.run("doc-42").get()).tokens == 1493


async def test_a_call_that_failed_counts_with_its_upper_bound(house: House) -> None:
    model = Bytes(400, price=None)
    model.errors = [ModelUnavailable("the connection was cut")]

    async def node(state: Any, ctx: Any) -> Any:
        with pytest.raises(CallFailed):
            await ctx.model("cheap", "x" * 1000, retry=Retry(attempts=1))
        return {}

    graph, hf = graph_of(node), house.open(models={"cheap": model})
    async with house.worker(hf, graph):
        run = await hf.start(graph, budget=Budget(tokens=1000, estimate=True))
        await run.result(timeout=60)
        assert (await run.get()).tokens == 1092


# --- families -------------------------------------------------------------------------------------

ASKING = graph_of(ask, "asking")


async def test_the_answers_of_a_process_are_learned_from(house: House) -> None:
    model = Bytes(250, price=None)
    graph, hf = graph_of(ask), house.open(models={"cheap": model})
    async with house.worker(hf, graph) as worker:
        await (await hf.start(graph, {"n": 40})).result(timeout=60)
        # By the prior it would be estimated as 659 tokens.
        run = await hf.start(graph, {"n": 1}, budget=Budget(tokens=500, estimate=True))
        await house.quiet(worker)
        assert (await run.get()).status == "finished"


@pytest.mark.parametrize("own", [None, Budget(tokens=900), Budget(tokens=900, estimate=True)])
async def test_children_inherit_estimates(house: House, own: Budget | None) -> None:
    async def begin(state: Any, ctx: Any) -> Any:
        return await ctx.run(ASKING, {"n": 1}, id="child", budget=own)

    model = Bytes(300, price=None)
    graph, hf = graph_of(begin, "family"), house.open(models={"cheap": model})
    async with house.worker(hf, graph, ASKING):
        run = await hf.start(graph, id="root", budget=Budget(tokens=1000, estimate=True))
        await run.result(timeout=60)
        child = await hf.run("child").get()
        assert child.budget == (None if own is None else BudgetLimits(tokens=900, estimate=True))


async def test_a_slice_may_not_estimate_where_the_budget_does_not(house: House) -> None:
    async def begin(state: Any, ctx: Any) -> Any:
        with pytest.raises(InvalidRequest, match="must not set estimate"):
            await ctx.start(ASKING, {"n": 1}, budget=Budget(tokens=900, estimate=True))
        return await ctx.run(ASKING, {"n": 1}, id="child", budget=Budget(tokens=900))

    model = Bytes(300, price=None)
    graph, hf = graph_of(begin, "family"), house.open(models={"cheap": model})
    async with house.worker(hf, graph, ASKING) as worker:
        await hf.start(graph, id="root", budget=Budget(tokens=1000))
        await house.quiet(worker)
        assert (await hf.run("child").get()).reason == "budget"
        with pytest.raises(BudgetShared):
            await hf.run("child").set_budget(Budget(tokens=800, estimate=True))


async def test_estimates_are_stored_only_if_they_are_wanted(house: House) -> None:
    graph, hf = graph_of(ask), house.open()
    await hf.start(graph, {"n": 1}, id="a", budget=Budget(tokens=5))
    await hf.start(graph, {"n": 1}, id="b", budget=Budget(tokens=5, estimate=True))
    assert (await item_of_head(hf, "a"))["budget"] == {"tokens": 5}
    assert (await item_of_head(hf, "b"))["budget"] == {"tokens": 5, "estimate": True}
    await hf.run("b").set_budget(Budget(tokens=6))
    assert (await item_of_head(hf, "b"))["budget"] == {"tokens": 6}


# --- budgets as values ----------------------------------------------------------------------------


async def test_the_budget_of_a_run_can_be_read_and_given_back(house: House) -> None:
    graph, hf = graph_of(ask), house.open()
    budget = Budget(usd=0.05, tokens=7, node_time=0.035, wall="2d", estimate=True)
    run = await hf.start(graph, {"n": 1}, id="a", budget=budget)
    row = await run.get()
    assert row.budget is not None
    assert (row.budget.usd, row.budget.tokens, row.budget.estimate) == (0.05, 7, True)
    await run.set_budget(row.budget)
    assert (await run.get()).budget == row.budget == budget.limits
    copy = await hf.start(graph, {"n": 1}, id="b", budget=row.budget)
    assert (await copy.get()).budget == row.budget
    for bad in (
        BudgetLimits(),
        BudgetLimits(tokens=-1),
        BudgetLimits(nanodollars="1"),  # pyright: ignore[reportArgumentType]
        BudgetLimits(nanodollars=10**30),
        BudgetLimits(node_time_ms=10**400),
        BudgetLimits(wall_ms=10**400),
        BudgetLimits(wall_ms=-1),
        BudgetLimits(tokens=1, estimate=1),  # pyright: ignore[reportArgumentType]
    ):
        with pytest.raises(InvalidRequest):
            await run.set_budget(bad)
    with pytest.raises(InvalidRequest, match="estimate must be True or False, got 'yes'"):
        Budget(usd=1, estimate="yes")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("budget", "told"),
    [
        (Budget(tokens=80), "even the smallest call of cheap needs 84 tokens, and 80 are left"),
        (Budget(tokens=84), ""),
        (Budget(tokens=80, estimate=True), ""),
        (Budget(tokens=1, estimate=True), "needs 2 tokens, and 1 are left"),
        (Budget(usd=0.001), "needs $0.008400, and $0.001000 are left"),
        (Budget(node_time=1), ""),
        (Budget(wall=1), ""),
    ],
)
async def test_a_start_that_no_call_fits_into_is_warned_about(
    house: House, caplog: pytest.LogCaptureFixture, budget: Budget, told: str
) -> None:
    class Small(Bytes):
        def tokens_max(self, request: Request) -> tuple[int, int]:
            return super().tokens_max(request)[0], request.params["max_tokens"]

    models = {"cheap": Small(1, price=A_CENT)}
    if budget.usd is not None:
        models["free"] = Small(1, price=None)  # a call of it raises PriceUnknown
    graph, hf = graph_of(ask), house.open(models=models)
    with caplog.at_level(logging.WARNING):
        await hf.start(graph, {"n": 1}, id="a", budget=budget)
    assert (told in caplog.text) if told else not caplog.text


async def test_a_broken_adapter_does_not_stop_a_start(house: House) -> None:
    class Broken(Cents):
        def tokens_max(self, request: Request) -> tuple[int, int]:
            raise RuntimeError("not today")

    hf = house.open(models={"cheap": Broken()})
    await hf.start(graph_of(ask), {"n": 1}, budget=Budget(usd=1))
