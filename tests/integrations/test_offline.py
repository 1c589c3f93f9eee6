"""The model without a network."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.clock import ManualClock
from holdfast.errors import InvalidRequest, ModelRefused, ModelUnavailable
from holdfast.integrations.offline import Offline
from holdfast.model.invocation import Answer, Request, ToolCall, ToolSpec, Usage

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "minLength": 2}, "days": {"type": "integer"}},
    "required": ["city"],
}
WEATHER = ToolSpec("weather", "", SCHEMA)


async def asked(model: Offline, messages: Any = "Tell me.", **how: Any) -> Answer:
    return await model.answer(Request.of(model.name, messages, **how), None)


async def test_it_always_says_the_same() -> None:
    one, other = Offline(), Offline()
    first = await asked(one)
    assert first.text
    assert first == await asked(one) == await asked(other)
    assert first.text != (await asked(one, "Tell me!")).text
    assert first.text != (await asked(one, seed=2)).text


async def test_it_says_the_same_in_another_process() -> None:
    code = (
        "import asyncio\n"
        "from holdfast.integrations.offline import Offline\n"
        "from holdfast.model.invocation import Request\n"
        "print(asyncio.run(Offline().answer(Request.of('offline', 'Tell me.'), None)).text)"
    )
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == (await asked(Offline())).text


async def test_without_a_script_it_calls_a_tool_once_and_then_answers() -> None:
    model = Offline()
    messages: list[dict[str, Any]] = [{"role": "user", "content": "How is it?"}]
    called = await asked(model, messages, tools=[WEATHER, ToolSpec("other")])
    (call,) = called.tool_calls
    assert (call.name, call.arguments) == ("weather", {"city": "xx"})
    assert called.stop_reason == "tool_calls"
    messages += [
        called.message(),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    answer = await asked(model, messages, tools=[WEATHER])
    assert answer.text
    assert not answer.tool_calls
    for choice, name in (("any", "weather"), ("other", "other")):
        forced = await asked(
            model, messages, tools=[WEATHER, ToolSpec("other")], tool_choice=choice
        )
        assert forced.tool_calls[0].name == name


async def test_without_a_script_it_answers_the_smallest_object() -> None:
    answer = await asked(Offline(), output=SCHEMA)
    assert answer.value == {"city": "xx"}


async def test_a_script_is_said_in_its_order() -> None:
    call = ToolCall("c", "weather", {"city": "Rome"})
    whole = Answer(text="whole", usage=Usage(1, 2))
    model = Offline(["one", {"a": 1}, call, [call, call], whole, ModelUnavailable("later"), "last"])
    assert (await asked(model)).text == "one"
    assert (await asked(model, output={"type": "object"})).value == {"a": 1}
    assert (await asked(model)).tool_calls == (call,)
    assert (await asked(model)).tool_calls == (call, call)
    assert await asked(model) is whole
    with pytest.raises(ModelUnavailable, match="later"):
        await asked(model)
    assert (await asked(model)).text == "last"
    with pytest.raises(ModelRefused, match="no further answer"):
        await asked(model)


@dataclass
class Trip:
    city: str
    days: int = 1


async def test_an_object_becomes_json() -> None:
    model = Offline([Trip("Rome"), [Trip("Rome", 2)], True])
    assert (await asked(model, output=SCHEMA)).value == {"city": "Rome", "days": 1}
    assert (await asked(model)).text == '[{"city":"Rome","days":2}]'
    assert (await asked(model)).text == "true"


async def test_a_function_makes_the_answers() -> None:
    async def later(request: Request) -> str:
        return request.messages[0]["content"].upper()

    assert (await asked(Offline(lambda request: "at once"))).text == "at once"
    assert (await asked(Offline(later))).text == "TELL ME."


async def test_what_is_too_long_is_cut() -> None:
    model = Offline(["x" * 100, "x" + "é" * 100, [ToolCall("c", "weather", {"city": "x" * 100})]])
    cut = await asked(model, max_tokens=5)
    assert (cut.text, cut.stop_reason, cut.usage.output_tokens) == ("x" * 20, "length", 5)
    assert (await asked(model, max_tokens=3)).text == "x" + "é" * 5
    dropped = await asked(model, max_tokens=5)
    assert (dropped.tool_calls, dropped.stop_reason) == ((), "length")


async def test_with_a_clock_each_word_takes_its_time() -> None:
    clock = ManualClock()
    model = Offline(["one two three"], clock=clock, seconds_per_word=2)
    heard: list[str] = []
    task = asyncio.create_task(model.answer(Request.of("offline", "Tell me."), heard.append))
    for expected in ([], ["one"], ["one", " two"]):
        for _ in range(5):
            await clock.sleep(0)
        assert heard == expected
        clock.advance(2)
    assert (await task).text == "one two three"


@given(
    st.text(max_size=200),
    st.lists(st.sampled_from(["text", "image", "application/pdf", "text/plain"]), max_size=4),
    st.booleans(),
    st.integers(1, 30),
)
def test_it_takes_no_more_than_is_reserved(
    text: str, kinds: list[str], tools: bool, most: int
) -> None:
    parts: list[Any] = [text]
    for kind in kinds:
        if kind == "text":
            parts.append(text)
        elif kind == "image":
            parts.append({"type": "image", "media_type": "image/png", "data": b"x" * 999})
        else:
            parts.append({"type": "document", "media_type": kind, "data": b"x" * 999})
    model = Offline()
    how: dict[str, Any] = {"tools": [WEATHER], "output": SCHEMA} if tools else {}
    request = Request.of("offline", [{"role": "user", "content": parts}], max_tokens=most, **how)
    usage = asyncio.run(model.answer(request, None)).usage
    read, made = model.tokens_max(request)
    assert usage.input_tokens <= read
    assert usage.output_tokens <= made == most


@pytest.mark.parametrize("answers", ["Hello.", {"risk": "high"}, 5], ids=str)
def test_a_single_answer_is_no_script(answers: Any) -> None:
    with pytest.raises(InvalidRequest, match="answers must be a list or a function"):
        Offline(answers)
