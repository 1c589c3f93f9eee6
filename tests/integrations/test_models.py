"""What holds for every model, whoever speaks to it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast.errors import InvalidAnswer, ModelRefused, ModelUnavailable
from holdfast.model.invocation import Answer, Model, Request, ToolCall, ToolSpec
from tests.integrations.dialects import MEASURED
from tests.integrations.kinds import Fault, Kind, Plan

OUTPUT = {
    "type": "object",
    "properties": {"risk": {"type": "string"}},
    "required": ["risk"],
    "additionalProperties": False,
}
TOOL = ToolSpec("look_up", "Looks a thing up.", OUTPUT)
CALL = ToolCall("call_1", "look_up", {"risk": "high"})
PIECES = ("Once ", "upon ", "a time — ", "ends.")


async def asked(
    model: Model, streamed: bool, messages: Any = "Tell me.", **how: Any
) -> tuple[Answer, list[str]]:
    heard: list[str] = []
    request = Request.of(model.name, messages, **how)
    answer = await asyncio.wait_for(
        model.answer(request, heard.append if streamed else None), timeout=30
    )
    return answer, heard


async def test_a_text_comes_with_its_usage(kind: Kind, streamed: bool) -> None:
    kind.plan(Plan(PIECES), streamed=streamed)
    answer, _ = await asked(kind.model, streamed)
    assert answer.text == "".join(PIECES)
    assert answer.usage == MEASURED
    assert answer.stop_reason == "end"
    assert answer.tool_calls == ()
    assert answer.model


async def test_what_is_told_as_it_comes_is_the_text(kind: Kind) -> None:
    kind.plan(Plan(PIECES), streamed=True)
    answer, heard = await asked(kind.model, True)
    assert "".join(heard) == answer.text
    assert len(heard) >= len(PIECES)


async def test_it_is_told_before_the_answer_is_whole(kind: Kind) -> None:
    heard: list[str] = []
    told = asyncio.Event()

    def emit(text: str) -> None:
        heard.append(text)
        told.set()

    async def between(number: int) -> None:
        if number == 3 and kind.model.name != "offline":
            await told.wait()

    kind.plan(Plan(PIECES, between=between), streamed=True)
    answering = kind.model.answer(Request.of(kind.model.name, "Tell me."), emit)
    answer = await asyncio.wait_for(answering, timeout=30)
    assert "".join(heard) == answer.text


async def test_a_tool_is_called_and_its_result_is_told(kind: Kind, streamed: bool) -> None:
    kind.plan(Plan(calls=[CALL]), Plan(PIECES), streamed=streamed)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is the risk?"}]
    first, heard = await asked(kind.model, streamed, messages, tools=[TOOL])
    assert first.tool_calls == (CALL,)
    assert first.stop_reason == "tool_calls"
    assert heard == []
    result = {"role": "tool", "tool_call_id": CALL.id, "content": "it is high"}
    messages += [first.message(), result]
    second, _ = await asked(kind.model, streamed, messages, tools=[TOOL])
    assert second.text == "".join(PIECES)


async def test_several_tools_are_called_at_once(kind: Kind, streamed: bool) -> None:
    calls = [CALL, ToolCall("call_2", "look_up", {"risk": "low"})]
    kind.plan(Plan(["I look. "], calls), streamed=streamed)
    answer, heard = await asked(kind.model, streamed, tools=[TOOL])
    assert answer.tool_calls == tuple(calls)
    assert answer.text == "I look. "
    assert "".join(heard) == (answer.text if streamed else "")


async def test_an_object_is_answered(kind: Kind, streamed: bool) -> None:
    kind.plan(Plan(value={"risk": "high"}), streamed=streamed)
    answer, heard = await asked(kind.model, streamed, output=OUTPUT)
    assert answer.value == answer.json() == {"risk": "high"}
    assert answer.stop_reason == "end"
    assert answer.tool_calls == ()
    assert msgspec.json.decode(answer.text) == {"risk": "high"}
    if streamed:
        assert "".join(heard) == answer.text


async def test_what_is_not_the_object_is_paid_and_returned(kind: Kind, streamed: bool) -> None:
    kind.plan(Plan(["No ", "idea."]), streamed=streamed)
    answer, heard = await asked(kind.model, streamed, output=OUTPUT)
    assert answer.value is None
    assert answer.usage == MEASURED
    if streamed:
        assert "".join(heard) == answer.text == "No idea."
    with pytest.raises(InvalidAnswer, match="not JSON"):
        answer.json()


async def test_an_answer_that_was_cut_says_so(kind: Kind, streamed: bool) -> None:
    kind.plan(Plan(['{"risk": ', '"hi'], too_long=True), streamed=streamed)
    answer, _ = await asked(kind.model, streamed, output=OUTPUT, max_tokens=20)
    assert answer.stop_reason == "length"
    with pytest.raises(InvalidAnswer, match=r"cut after 20 tokens.*max_tokens"):
        answer.json()


async def test_an_answer_can_be_kept(kind: Kind, streamed: bool) -> None:
    kind.plan(Plan(PIECES, [CALL]), streamed=streamed)
    answer, _ = await asked(kind.model, streamed, tools=[TOOL])
    kept = msgspec.msgpack.encode(msgspec.to_builtins(answer))
    assert msgspec.convert(msgspec.msgpack.decode(kept), Answer) == answer


@pytest.mark.parametrize("fault", ["throttled", "unreachable"])
async def test_what_may_succeed_later_is_retryable(
    kind: Kind, streamed: bool, fault: Fault
) -> None:
    kind.plan(Plan(fault=fault), streamed=streamed)
    with pytest.raises(ModelUnavailable) as caught:
        await asked(kind.model, streamed)
    assert caught.value.retryable
    if fault == "throttled" and kind.model.name != "offline":
        assert caught.value.retry_after_seconds == 7


async def test_what_is_refused_is_not_retryable(kind: Kind, streamed: bool) -> None:
    kind.plan(Plan(fault="refused"), streamed=streamed)
    with pytest.raises(ModelRefused, match="told so") as caught:
        await asked(kind.model, streamed)
    assert not caught.value.retryable


async def test_an_answer_that_breaks_off_is_none(kind: Kind) -> None:
    kind.plan(Plan(PIECES, fault="cut"), streamed=True)
    with pytest.raises(ModelUnavailable):
        await asked(kind.model, True)


async def test_cancelled_it_says_nothing_more(kind: Kind) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def between(number: int) -> None:
        if number == 3 or kind.model.name == "offline":
            begun.set()
            await go_on.wait()

    kind.plan(Plan(PIECES, between=between), streamed=True)
    heard: list[str] = []
    request = Request.of(kind.model.name, "Tell me.")
    task = asyncio.create_task(kind.model.answer(request, heard.append))
    await asyncio.wait_for(begun.wait(), timeout=30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    before = list(heard)
    go_on.set()
    await asyncio.wait_for(kind.quiet(), timeout=30)
    assert heard == before


def test_more_is_reserved_than_can_be_taken(kind: Kind) -> None:
    short = Request.of(kind.model.name, "x" * 100, max_tokens=7)
    long = Request.of(kind.model.name, "é" * 1000, tools=[TOOL], output=OUTPUT)
    assert kind.model.tokens_max(short)[0] >= 100
    assert kind.model.tokens_max(short)[1] == 7
    assert kind.model.tokens_max(long)[0] >= 2000
    assert kind.model.tokens_max(long)[1] == kind.model.max_tokens > 0
