"""Scripted models: each answer once, in its order, and what was asked is remembered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import Context, agent, hours
from holdfast.errors import CallFailed, InvalidRequest, ModelUnavailable
from holdfast.model.invocation import Answer, Request, ToolCall, Usage
from holdfast.testing import FakeContext, ScriptedModel, TestKit, raises, scripted
from tests.testing.flows import Order, one_node


@dataclass
class Verdict:
    good: bool
    score: int


async def ask(model: ScriptedModel, *questions: str, **options: Any) -> list[Answer]:
    ctx = FakeContext(models={"m": model})
    return [await ctx.model("m", question, **options) for question in questions]


async def test_texts_and_typed_values() -> None:
    model = scripted("yes", "no")
    assert [answer.text for answer in await ask(model, "a", "b")] == ["yes", "no"]
    assert [request.messages[-1]["content"] for request in model.requests] == ["a", "b"]
    typed = scripted(Verdict(True, 3), {"good": False, "score": 1}, '{"good": true, "score": 2}')
    answers = await ask(typed, "a", "b", "c", output=Verdict)
    assert [answer.value for answer in answers] == [
        Verdict(True, 3),
        Verdict(False, 1),
        Verdict(True, 2),
    ]
    assert (await ask(scripted([1, 2], 7), "list?"))[0].text == "[1,2]"


async def test_answers_and_functions_and_usage() -> None:
    def echo(request: Request) -> str:
        return request.messages[-1]["content"].upper()

    async def later(request: Request) -> Answer:
        return Answer.to(request, text="later", usage=Usage(1, 2))

    answers = await ask(scripted(echo, later), "loud", "x")
    assert [answer.text for answer in answers] == ["LOUD", "later"]
    assert answers[1].usage == Usage(1, 2)
    fixed = ScriptedModel(["a"], usage=Usage(10, 20))
    assert (await ask(fixed, "x"))[0].usage == Usage(10, 20)


async def test_running_out_shows_the_question() -> None:
    model = scripted("only")
    with pytest.raises(CallFailed, match="no answer left for question 2: user: 'second\\?'"):
        await ask(model, "first?", "second?")


async def test_answers_that_are_left_are_found() -> None:
    model = scripted("a", "b")
    await ask(model, "x")
    with pytest.raises(AssertionError, match="asked 1 times, and has 1 answers left: \\['b'\\]"):
        model.assert_all_used()
    await ask(model, "y")
    model.assert_all_used()


async def test_errors_are_raised_and_retried_as_in_a_run() -> None:
    model = scripted(ModelUnavailable("busy"), raises(ModelUnavailable("busy")), "at last")
    assert (await ask(model, "x"))[0].text == "at last"
    assert len(model.requests) == 3


async def test_an_agent_calls_tools() -> None:
    def lookup(order: int) -> str:
        """Find an order."""
        return "in Rome"

    support = agent("m", [lookup])
    model = scripted(ToolCall("c1", "lookup", {"order": 4}), "It is in Rome.")
    ctx = FakeContext(models={"m": model}, calls={lookup: lambda order: f"order {order}: Rome"})
    conversation = await support(ctx, "Where is order 4?")
    assert conversation.text == "It is in Rome."
    assert model.requests[1].messages[-1]["content"] == "order 4: Rome"
    assert ctx.calls[0].kwargs == {"order": 4}


async def test_a_kit_takes_scripted_models_and_their_backoffs_follow_its_clock() -> None:
    async def node(order: Order, ctx: Context) -> dict[str, list[str]]:
        return {"log": [(await ctx.model("small", "hello")).text]}

    model = scripted(ModelUnavailable("busy"), ModelUnavailable("busy"), "hi")
    graph = one_node(node)
    async with TestKit(graph, models={"small": model}) as kit:
        run = await kit.hf.start(graph, Order())
        await kit.settled()
        assert len(model.requests) == 1
        await kit.skip(hours(1))
        assert (await run.result()).log == ["hi"]
    model.assert_all_used()


def test_wrong_answers() -> None:
    with pytest.raises(InvalidRequest, match="answers must be a list"):
        ScriptedModel("yes")
