"""Bedrock's event streams: what breaks them, and what is told of them to whom."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.errors import ModelRefused, ModelUnavailable
from holdfast.integrations.bedrock import Bedrock, _Emitter
from holdfast.integrations.converse import ANSWER_TOOL
from holdfast.model.invocation import Request, ToolCall, ToolSpec
from tests.integrations import dialects
from tests.integrations.kinds import BedrockKind
from tests.servers import stub_http

MODEL = "us.anthropic.claude-haiku-4-5-20251001-v1:0"
OUTPUT: dict[str, Any] = {
    "type": "object",
    "properties": {"risk": {"type": "string"}},
    "required": ["risk"],
}
LOOK_UP = ToolSpec("look_up", "Looks a thing up.", OUTPUT)
EVENTS = "application/vnd.amazon.eventstream"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("throttlingException", ModelUnavailable),
        ("modelStreamErrorException", ModelUnavailable),
        ("internalServerException", ModelUnavailable),
        ("validationException", ModelRefused),
    ],
)
async def test_errors_in_the_middle_of_a_stream(
    bedrock: BedrockKind, code: str, kind: type[Exception]
) -> None:
    said = [
        *dialects.frames(["Once "], stop=None),
        dialects.frame(code, {"message": "so it is"}, message_type="exception"),
    ]
    bedrock.endpoint.plan(stub_http.stream(said, content_type=EVENTS))
    heard: list[str] = []
    with pytest.raises(kind, match="so it is"):
        await bedrock.model.answer(Request.of("m", "Tell me."), heard.append)
    assert heard == ["Once "]


class Slow:
    """A client, and its stream, that goes on in the middle when it is told to."""

    def __init__(self) -> None:
        self.go_on, self.closed = threading.Event(), threading.Event()
        self.taken = 0

    def converse_stream(self, **_: Any) -> Any:
        return {"stream": self}

    def __iter__(self) -> Iterator[Any]:
        for number in range(4):
            if number == 1:
                self.go_on.wait(30)
            self.taken += 1
            yield {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": f"{number}"}}}

    def close(self) -> None:
        self.closed.set()


async def test_a_thread_whose_caller_is_gone_says_nothing_more_and_ends() -> None:
    slow = Slow()
    model = Bedrock(MODEL, client=slow)
    heard: list[str] = []
    begun = asyncio.Event()

    def emit(text: str) -> None:
        heard.append(text)
        begun.set()

    task = asyncio.create_task(model.answer(Request.of(MODEL, "Tell me."), emit))
    await asyncio.wait_for(begun.wait(), timeout=30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    slow.go_on.set()
    assert await asyncio.to_thread(slow.closed.wait, 30)
    assert heard == ["0"]
    assert slow.taken == 2
    await model.close()


async def test_what_is_under_way_when_the_caller_goes_is_not_told() -> None:
    """A piece that the thread has handed over already, while the loop was busy cancelling."""
    heard: list[str] = []
    listener = _Emitter(asyncio.get_running_loop(), heard.append)
    listener.emit("late")
    listener.stop()
    handed_over = asyncio.Event()
    asyncio.get_running_loop().call_soon(handed_over.set)
    await handed_over.wait()
    assert heard == []


@pytest.mark.parametrize("left_out", [1, 2])
async def test_a_stream_without_its_end_is_cut(bedrock: BedrockKind, left_out: int) -> None:
    said = dialects.frames(["Once "])[:-left_out]
    bedrock.endpoint.plan(stub_http.stream(said, content_type=EVENTS))
    with pytest.raises(ModelUnavailable) as caught:
        await bedrock.model.answer(Request.of("m", "Tell me."), lambda text: None)
    assert caught.value.reason == "cut"


async def test_a_damaged_stream_may_be_better_later(bedrock: BedrockKind) -> None:
    damaged = dialects.frames(["Once "])[1].replace(b"Once", b"Twic")
    bedrock.endpoint.plan(stub_http.stream([damaged], content_type=EVENTS))
    with pytest.raises(ModelUnavailable):
        await bedrock.model.answer(Request.of("m", "Tell me."), lambda text: None)


async def test_what_is_said_beside_the_object_is_not_the_answer(bedrock: BedrockKind) -> None:
    calls = [ToolCall("a", ANSWER_TOOL, {"risk": "low"}), ToolCall("b", "look_up", {"risk": "?"})]
    said = dialects.frames(["Let me think. "], calls=calls, stop="tool_use")
    whole = dialects.converse("Let me think. ", calls=calls, stop="tool_use")
    bedrock.endpoint.plan(stub_http.stream(said, content_type=EVENTS), stub_http.say(whole))
    request = Request.of("m", "Tell me.", output=OUTPUT, tools=[LOOK_UP])
    heard: list[str] = []
    for emit in (heard.append, None):
        answer = await bedrock.model.answer(request, emit)
        assert answer.value == {"risk": "low"}
        assert answer.tool_calls == (calls[1],)
        assert answer.stop_reason == "tool_calls"
        assert "".join(heard).replace(" ", "") == '{"risk":"low"}'


async def test_arguments_that_are_no_object_are_kept_as_they_are(bedrock: BedrockKind) -> None:
    use = {"toolUse": {"toolUseId": "a", "name": "look_up"}}
    delta = {"contentBlockIndex": 0, "delta": {"toolUse": {"input": '{"risk": '}}}
    said = [
        dialects.frame("contentBlockStart", {"contentBlockIndex": 0, "start": use}),
        dialects.frame("contentBlockDelta", delta),
        *dialects.frames(stop="max_tokens")[1:],
    ]
    bedrock.endpoint.plan(stub_http.stream(said, content_type=EVENTS))
    answer = await bedrock.model.answer(
        Request.of("m", "Tell me.", tools=[LOOK_UP]), lambda text: None
    )
    assert answer.tool_calls == (ToolCall("a", "look_up", {}, malformed='{"risk": '),)
    assert answer.stop_reason == "length"
