"""Answers of any adapter: what is kept and charged of them, and what errors say of them."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Answer, Budget, Context
from holdfast.errors import AnswerTooLarge, InvalidRequest, RunFailed
from holdfast.model.answer_limits import ANSWER_BYTES_MAX, MODEL_NAME_CHARS_MAX
from holdfast.model.answer_validation import validated_answer
from holdfast.model.invocation import ToolCall
from holdfast.model.pricing import Usage
from tests.engine.asking import HINT, Cents, graph_of
from tests.engine.support import House

CALL = ToolCall("1", "pay")


@pytest.mark.parametrize(
    ("answer", "charged"),
    [
        (Answer(text="yes", usage=Usage(0, 0)), Usage(50, 60)),
        (Answer(text="yes", usage=Usage(0, 3)), Usage(50, 60)),
        (Answer(text="yes", usage=Usage(3, 0)), Usage(50, 60)),
        (Answer(tool_calls=(CALL,), usage=Usage(3, 0)), Usage(50, 60)),
        (Answer(usage=Usage(0, 0)), Usage(50, 60)),
        (Answer(usage=Usage(3, 0)), Usage(3, 0)),
        (Answer(text="yes", usage=Usage(1, 1)), Usage(1, 1)),
    ],
)
def test_no_answer_is_free(answer: Answer, charged: Usage) -> None:
    assert validated_answer(answer, (50, 60)).usage == charged


async def test_usage_of_zero_does_not_stretch_a_budget(house: House) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        for _ in range(9):
            await ctx.model("cheap", "Is it?")
        return {}

    model = Cents()
    model.used = Usage(0, 0)
    graph, hf = graph_of(node), house.open(models={"cheap": model})
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, budget=Budget(tokens=450))
        await house.quiet(worker)
        assert (await run.get()).waits[0].about == f"needs 100 tokens, and 50 are left{HINT}"
    assert len(model.asked) == 4


@pytest.mark.parametrize(
    ("model", "kept"),
    [("m" * 5_000, "m" * MODEL_NAME_CHARS_MAX), ("a\ud800b", "a?b"), (None, ""), ("m", "m")],
    ids=["long", "half", "none", "plain"],
)
def test_the_name_of_a_model_can_be_kept(model: Any, kept: str) -> None:
    answer = Answer(text="yes", usage=Usage(1, 1), model=model)
    assert validated_answer(answer, (50, 50)).model == kept


@pytest.mark.parametrize(
    "call",
    [
        ToolCall("1", "pay", {"note": "n" * ANSWER_BYTES_MAX}),
        ToolCall("1", "pay", malformed="n" * (ANSWER_BYTES_MAX + 1)),
    ],
    ids=["arguments", "malformed"],
)
def test_calls_count_as_part_of_an_answer(call: ToolCall) -> None:
    with pytest.raises(AnswerTooLarge) as refused:
        validated_answer(Answer(tool_calls=(call,), usage=Usage(1, 1)), (50, 50))
    assert (refused.value.field, refused.value.limit) == ("tool_calls", ANSWER_BYTES_MAX)


async def test_an_answer_of_no_use_is_named_shortly(house: House) -> None:
    async def node(state: Any, ctx: Context) -> Any:
        await ctx.model("cheap", "Is it?", check=lambda answer: False)

    graph, hf = graph_of(node), house.open(models={"cheap": Cents(name="m" * 5_000)})
    async with house.worker(hf, graph):
        with pytest.raises(RunFailed, match="did not pass the check") as failed:
            await (await hf.start(graph)).result(timeout=60)
    assert "m" * 79 in str(failed.value)
    assert "m" * 80 not in str(failed.value)


async def test_what_a_check_returns_is_not_quoted(house: House) -> None:
    def check(answer: Answer) -> Any:
        return answer.text

    async def node(state: Any, ctx: Context) -> Any:
        with pytest.raises(InvalidRequest) as refused:
            await ctx.model("cheap", "Is it?", check=check)
        return {"error": str(refused.value)}

    graph, hf = graph_of(node), house.open(models={"cheap": Cents(lambda request: "planted")})
    async with house.worker(hf, graph):
        state = await (await hf.start(graph)).result(timeout=60)
    assert state == {"error": "a check must return True or False, got str"}
