"""Agents: a model that calls tools until it has an answer, each of them once."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest

from holdfast import Context, Conversation, Retry, agent, signal, tool
from holdfast.errors import InvalidRequest, TurnsSpent
from holdfast.integrations.offline import Offline
from holdfast.model.invocation import Request, ToolCall
from tests.engine.asking import graph_of
from tests.engine.support import House


def call(name: str, id: str = "1", **arguments: Any) -> ToolCall:
    return ToolCall(id, name, arguments)


class Recorded(Offline):
    """Says what it is told to, and remembers what it was asked."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(list(answers))
        self.asked: list[Request] = []

    async def answer(self, request: Request, emit: Any) -> Any:
        self.asked.append(request)
        return await super().answer(request, emit)


async def test_every_question_and_every_call_is_made_once(either: House) -> None:
    looked, refunded = [], []

    async def look_up(order: int) -> dict[str, Any]:
        """Look up an order.

        Not told to the model.
        """
        looked.append(order)
        return {"order": order, "status": "lost"}

    @tool(idempotent=False)
    async def refund(order: int, reason: str = "none") -> str:
        refunded.append((order, reason))
        return "refunded"

    async def ask_boss(ctx: Context, question: str) -> str:
        return await ctx.wait(signal("boss"))

    model = Recorded(
        [call("look_up", "1", order=42), call("look_up", "2", order=43)],
        call("ask_boss", "3", question="May I?"),
        call("refund", "4", order=42, reason="lost"),
        "It is refunded.",
    )
    support = agent("m", [look_up, refund, ask_boss], system="Be kind.", temperature=0)
    rounds: list[Conversation] = []

    async def node(state: Any, ctx: Any) -> Any:
        told = await support(ctx, "Where is my order?")
        await ctx.wait(signal("go on"))
        rounds.append(told)
        return {"text": told.text, "turns": told.turns}

    graph, hf = graph_of(node), either.open(models={"m": model})
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await either.quiet(worker)
        assert len(model.asked) == 2
        await run.signal("boss", "yes")
        await either.quiet(worker)
        await run.signal("go on")
        assert await run.result(timeout=60) == {"text": "It is refunded.", "turns": 4}
    assert (looked, refunded) == ([42, 43], [(42, "lost")])
    assert len(model.asked) == 4
    assert [spec.name for spec in model.asked[0].tools] == ["look_up", "refund", "ask_boss"]
    assert model.asked[0].tools[0].description == "Look up an order."
    assert list(model.asked[0].tools[2].parameters["properties"]) == ["question"]
    roles = [message["role"] for message in rounds[0].messages]
    assert roles == [
        "system", "user", "assistant", "tool", "tool", "assistant", "tool", "assistant", "tool",
        "assistant",
    ]  # fmt: skip
    assert rounds[0].messages[3]["content"] == '{"order":42,"status":"lost"}'
    assert rounds[0].messages[6]["content"] == "yes"
    assert rounds[0].usage.input_tokens > 0


async def test_what_goes_wrong_is_told_to_the_model(house: House) -> None:
    async def divide(a: int, b: int) -> float:
        return a / b

    model = Recorded(
        [
            call("divide", "1", a=1, b=0),
            call("divide", "2", a="one", b=2),
            call("multiply", "3"),
            ToolCall("4", "divide", malformed="{a: 1"),
        ],
        "I cannot.",
    )
    calculator = agent("m", [divide])

    async def node(state: Any, ctx: Any) -> Any:
        return {"messages": (await calculator(ctx, "1/0?")).messages}

    graph, hf = graph_of(node), house.open(models={"m": model})
    async with house.worker(hf, graph):
        state = await (await hf.start(graph)).result(timeout=60)
    told = [message for message in state["messages"] if message["role"] == "tool"]
    assert all(message["error"] for message in told)
    contents = [message["content"] for message in told]
    assert "ZeroDivisionError" in contents[0]
    assert "the arguments of divide do not fit: a" in contents[1]
    assert "there is no tool 'multiply'; there are: divide" in contents[2]
    assert "not a JSON object" in contents[3]


class Verdict(TypedDict):
    good: bool


async def test_an_agent_is_a_graph_of_its_own(house: House) -> None:
    model = Recorded(call("look"), {"good": True})

    def look() -> str:
        return "fine"

    judge = agent("m", [look], output=Verdict)
    graph = judge.graph("judge", retry=Retry(attempts=2))
    hf = house.open(models={"m": model})
    async with house.worker(hf, graph):
        run = await hf.start(graph, {"messages": "Is it good?"})
        state = await run.result(timeout=60)
    assert state["value"] == {"good": True}
    assert len(state["messages"]) == 4


async def test_an_agent_that_goes_on_for_ever_is_stopped(house: House) -> None:
    model = Offline(lambda request: call("look", str(len(request.messages))))

    def look() -> str:
        return "fine"

    async def node(state: Any, ctx: Any) -> Any:
        with pytest.raises(TurnsSpent, match="3 turns"):
            await agent("m", [look], turns_max=3)(ctx, "Is it good?")

    graph, hf = graph_of(node), house.open(models={"m": model})
    async with house.worker(hf, graph):
        await (await hf.start(graph)).result(timeout=60)


def test_tools_that_cannot_be_told_apart_or_called_are_refused() -> None:
    def look() -> str:
        return "fine"

    with pytest.raises(InvalidRequest, match="tools must have different names"):
        agent("m", [look, look])
    with pytest.raises(InvalidRequest, match="turns_max"):
        agent("m", [look], turns_max=0)
    with pytest.raises(InvalidRequest, match="by name only"):
        agent("m", [lambda *args: None])
