"""Models that answer to do harm: to a budget, to a quota, to a worker, to the run of an agent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Answer, Budget, Holdfast, Quota, agent
from holdfast.errors import AnswerTooLarge, InvalidAnswer, ModelUnavailable, RunFailed
from holdfast.integrations.offline import Offline
from holdfast.model.answer_limits import ANSWER_BYTES_MAX, RETRY_AFTER_SECONDS_MAX, TOOL_CALLS_MAX
from holdfast.model.answer_validation import validated_answer
from holdfast.model.invocation import Request, ToolCall
from holdfast.model.pricing import Usage
from tests import hostile
from tests.engine.asking import CENT, HINT, Cents, graph_of
from tests.engine.support import House

HOSTILE_USAGE = [
    Usage(-1_000_000, -1_000_000),
    Usage(-1, 50),
    Usage(50, -1),
    Usage(10**17, 10**17),
    Usage(10**30, 1),
    Usage(10**5_000, 1),
    Usage(51, 50),
    Usage(50, 51),
    Usage(50, 50, -50),
    Usage(50, 50, 51),
    Usage(float("nan"), 1),  # type: ignore[arg-type]
    Usage(True, 1),
    Usage("50", 1),  # type: ignore[arg-type]
    Usage(None, 1),  # type: ignore[arg-type]
]


async def asks(state: Any, ctx: Any) -> Any:
    for _ in range(state["n"]):
        await ctx.model("cheap", "Is it?")
    return {}


@pytest.mark.parametrize("usage", HOSTILE_USAGE, ids=range(len(HOSTILE_USAGE)))
@pytest.mark.parametrize("share", [False, True], ids=["own", "shared"])
async def test_usage_out_of_bounds_costs_what_was_reserved(
    house: House, caplog: pytest.LogCaptureFixture, usage: Usage, share: bool
) -> None:
    model = Cents()
    model.used = usage

    async def node(state: Any, ctx: Any) -> Any:
        answer = await ctx.model("cheap", "Is it?", share=share)
        return {"usage": [answer.usage.input_tokens, answer.usage.output_tokens]}

    graph, hf = graph_of(node), house.open(models={"cheap": model})
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="greedy", tenant="acme", budget=Budget(usd=1))
        assert await run.result(timeout=60) == {"usage": [50, 50]}
        row = await run.get()
    assert (row.tokens, row.cost_usd) == (100, CENT / 1e9)
    (line,) = [each for each in caplog.messages if "out of bounds" in each]
    assert line.startswith("run greedy of tenant acme: ")


async def test_negative_usage_does_not_fill_a_budget(house: House) -> None:
    model = Cents()
    model.used = Usage(-1_000_000, -1_000_000)
    graph, hf = graph_of(asks), house.open(models={"cheap": model})
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {"n": 9}, budget=Budget(tokens=450))
        await house.quiet(worker)
        assert (await run.get()).waits[0].about == f"needs 100 tokens, and 50 are left{HINT}"
    assert len(model.asked) == 4


async def test_negative_usage_does_not_fill_a_quota(house: House) -> None:
    model = Cents()
    model.used = Usage(-1_000_000, -1_000_000)
    quotas = {"cheap": Quota("q", tokens=400, per=60)}
    graph, hf = graph_of(asks), house.open(models={"cheap": model}, quotas=quotas)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {"n": 9})
        await house.quiet(worker)
        assert (await run.get()).reason == "quota"
    assert len(model.asked) <= 4


async def test_a_service_cannot_put_a_run_off_until_its_expiry(house: House) -> None:
    model = Cents()
    model.errors = [ModelUnavailable("busy", retry_after_seconds=99_999_999, unpaid=True)]
    graph, hf = graph_of(asks), house.open(models={"cheap": model})
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {"n": 1})
        await house.quiet(worker)
        assert (await run.get()).reason == "retry"
        await house.move(RETRY_AFTER_SECONDS_MAX + 1, worker)
        await run.result(timeout=60)
    assert len(model.asked) == 2


class Says:
    """A model whose adapter returns whatever it is told to."""

    name = "says"
    price = None
    max_tokens = 100

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Request] = []

    def tokens_max(self, request: Request) -> tuple[int, int]:
        return 1_000_000, 100

    async def answer(self, request: Request, emit: Any) -> Any:
        self.asked.append(request)
        return self.answers.pop(0)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer(text="x" * (ANSWER_BYTES_MAX + 1)), AnswerTooLarge),
        (Answer(tool_calls=(ToolCall("1", "f"),) * (TOOL_CALLS_MAX + 1)), AnswerTooLarge),
        (Answer(text="\ud800"), InvalidAnswer),
        (None, InvalidAnswer),
    ],
    ids=["text", "calls", "surrogate", "none"],
)
async def test_an_answer_beyond_its_bounds_is_asked_for_once(
    house: House, answer: Any, kind: type[Exception]
) -> None:
    model = Says(answer, Answer(text="never asked"))

    async def node(state: Any, ctx: Any) -> Any:
        await ctx.model("m", "Is it?")

    graph, hf = graph_of(node), house.open(models={"m": model})
    async with house.worker(hf, graph):
        run = await hf.start(graph, budget=Budget(tokens=2_000_000))
        with pytest.raises(RunFailed, match=f"CallFailed: 'model.m' failed: {kind.__name__}"):
            await run.result(timeout=60)
        # It may have been paid.
        assert (await run.get()).tokens == 1_000_100
    assert len(model.asked) == 1


@pytest.mark.parametrize(
    "calls",
    [
        [ToolCall("", "take", {"x": 1}), ToolCall("", "take", {"x": 2})],
        [ToolCall("a", "take", {"x": 1}), ToolCall("a", "take", {"x": 2})],
        [ToolCall("call_1", "take", {"x": 1}), ToolCall("i" * 300, "take", {"x": 2})],
        [ToolCall("a", "take", {"x": 1}), ToolCall("\ud800", "take", {"x": 2})],
    ],
    ids=["empty", "twice", "long", "surrogate"],
)
async def test_ids_of_calls_that_no_prompt_can_hold_are_replaced(
    house: House, calls: list[ToolCall]
) -> None:
    model = Says(Answer(tool_calls=tuple(calls)), Answer(text="done"))
    taken: list[int] = []

    async def take(x: int) -> int:
        taken.append(x)
        return x

    helper = agent("m", [take])

    async def node(state: Any, ctx: Any) -> Any:
        return {"text": (await helper(ctx, "Help.")).text}

    graph, hf = graph_of(node), house.open(models={"m": model})
    async with house.worker(hf, graph):
        assert (await (await hf.start(graph)).result(timeout=60))["text"] == "done"
    assert sorted(taken) == [1, 2]
    results = [message["tool_call_id"] for message in model.asked[1].messages[2:]]
    assert len(set(results)) == 2


@pytest.mark.parametrize("name", ["", "x" * 10**6, "take it", "ta\x00ke", "none", "take²"])
async def test_a_tool_that_no_prompt_can_name_is_told_to_the_model(house: House, name: str) -> None:
    model = Says(Answer(tool_calls=(ToolCall("1", name, {"x": 1}),)), Answer(text="done"))

    async def take(x: int) -> None:
        raise AssertionError("it was not called")

    helper = agent("m", [take])

    async def node(state: Any, ctx: Any) -> Any:
        return {"text": (await helper(ctx, "Help.")).text}

    graph, hf = graph_of(node), house.open(models={"m": model})
    async with house.worker(hf, graph):
        assert (await (await hf.start(graph)).result(timeout=60))["text"] == "done"
    told = model.asked[1].messages[-1]
    assert told["error"] is True
    assert "there is no tool" in told["content"]
    assert len(told["content"]) < 500


@settings(deadline=None)
@given(
    calls=st.lists(
        st.builds(
            ToolCall,
            id=hostile.texts(surrogates=True),
            name=hostile.texts(surrogates=True) | st.just("take"),
            arguments=st.dictionaries(hostile.texts() | st.just("x"), hostile.values(), max_size=3),
            malformed=hostile.texts(),
        ),
        max_size=4,
    ),
    text=hostile.texts(surrogates=True),
    usage=st.builds(Usage, hostile.numbers(), hostile.numbers(), hostile.numbers()),
)
def test_any_answer_is_admitted_or_a_typed_error(
    calls: list[ToolCall], text: str, usage: Usage
) -> None:
    answer = Answer(text=text, tool_calls=tuple(calls), usage=usage)
    try:
        kept = validated_answer(answer, (50, 50))
    except InvalidAnswer:
        return
    assert kept.usage == usage or kept.usage == Usage(50, 50)
    assert len({call.id for call in kept.tool_calls}) == len(calls)


@settings(deadline=None, max_examples=40)
@given(text=hostile.fragments() | hostile.texts(), value=hostile.fragments())
async def test_whatever_an_agent_is_told_it_comes_to_an_end(text: str, value: str) -> None:
    async def take(x: int, when: str = "") -> int:
        return x

    said = [
        [ToolCall.read("1", "take", text), ToolCall.read("1", "take", f'{{"x": {value}}}')],
        text,
    ]
    helper = agent("m", [take])

    async def node(state: Any, ctx: Any) -> Any:
        return {"text": (await helper(ctx, "Help.")).text}

    graph = graph_of(node)
    models = {"m": Offline(said, max_tokens=10**7)}
    async with Holdfast("sqlite://:memory:", models=models) as hf, hf.worker([graph]):
        assert (await (await hf.start(graph)).result(timeout=60))["text"] == text
