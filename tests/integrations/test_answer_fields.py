"""Every field of a hostile answer is bounded, also those that are not its text."""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec
import pytest

from holdfast.errors import AnswerTooLarge, InvalidAnswer, ModelRefused, ModelUnavailable
from holdfast.integrations import completions
from holdfast.integrations.bedrock import Bedrock
from holdfast.integrations.completions import Completion
from holdfast.integrations.openai import OpenAI
from holdfast.model.answer_limits import JSON_CONTAINERS_MAX, MODEL_NAME_CHARS_MAX, TOOL_CALLS_MAX
from holdfast.model.invocation import Answer, Request, parsed_json
from holdfast.model.pricing import Usage
from tests.integrations import dialects

REQUEST = Request.of("m", "Tell me.")
SECRET = "planted-in-an-answer"


async def answered(body: bytes, *, status: int = 200, stream: bool = False) -> Answer:
    kind = "text/event-stream" if stream else "application/json"
    transport = httpx.MockTransport(
        lambda request: httpx.Response(status, headers={"content-type": kind}, content=body)
    )
    async with httpx.AsyncClient(transport=transport) as client:
        model = OpenAI("m", client=client, api_key="sk-" + "k" * 150)
        return await model.answer(REQUEST, (lambda text: None) if stream else None)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_the_name_of_the_model_is_cut(stream: bool) -> None:
    said = dialects.completion("yes", model="://:" * 100_000)
    body = json.dumps(said).encode()
    if stream:
        delta = {"delta": {"content": "yes"}, "finish_reason": "stop"}
        body = dialects.event({"model": "://:" * 100_000, "choices": [delta]})
    answer = await answered(body, stream=stream)
    assert (answer.text, len(answer.model)) == ("yes", MODEL_NAME_CHARS_MAX)


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": 3}, {"completion_tokens": None}])
async def test_an_endpoint_that_does_not_count_is_counted_for(usage: Any) -> None:
    answer = await answered(json.dumps(dialects.completion("x" * 700, usage=usage)).encode())
    assert answer.usage == Usage(OpenAI("m").tokens_max(REQUEST)[0], 700)


def _body(choices: str) -> bytes:
    return f'{{"choices": {choices}}}'.encode()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_empty_calls_are_counted_too(stream: bool) -> None:
    calls = ", ".join(["{}"] * (TOOL_CALLS_MAX + 1))
    place = "delta" if stream else "message"
    body = _body(f'[{{"{place}": {{"tool_calls": [{calls}]}}, "finish_reason": "stop"}}]')
    with pytest.raises(AnswerTooLarge, match="calls of tools"):
        await answered(b"data: " + body + b"\n\n" if stream else body, stream=stream)


def test_no_more_calls_and_choices_are_made_than_may_be_there() -> None:
    calls = ", ".join(["{}"] * 10_000)
    choice = f'{{"message": {{"tool_calls": [{calls}]}}}}'
    said = msgspec.json.decode(_body(f"[{choice}, {choice}]"), type=Completion)
    assert msgspec.structs.astuple(said.choices) == (said.choices.first,)
    assert said.choices.first is not None
    with pytest.raises(AnswerTooLarge):
        said.choices.first.message.calls()
    kept = vars(completions)["_CALLS_DECODER"].decode(said.choices.first.message.tool_calls)
    assert len(msgspec.structs.astuple(kept)) == TOOL_CALLS_MAX + 1


@pytest.mark.parametrize("calls", ['"a"', "3", "{}", '[{"id": 3}]', "[[]]", '[{"id": "\\ud800"}]'])
async def test_what_is_no_list_of_calls_is_a_typed_error(calls: str) -> None:
    body = _body(f'[{{"message": {{"tool_calls": {calls}}}}}]')
    with pytest.raises(ModelUnavailable) as failed:
        await answered(body)
    assert failed.value.reason == "malformed"


async def test_no_call_and_no_choice_are_understood() -> None:
    answer = await answered(_body('[{"message": {"content": "a", "tool_calls": null}}]'))
    assert (answer.text, answer.tool_calls) == ("a", ())
    for choices in ("[]", "[null]"):
        with pytest.raises(ModelUnavailable, match="contains no answer"):
            await answered(_body(choices))


async def test_json_of_many_lists_is_no_answer() -> None:
    most = '{"a": [' + ", ".join(["[]"] * (JSON_CONTAINERS_MAX - 2)) + "]}"
    assert len(parsed_json(most)["a"]) == JSON_CONTAINERS_MAX - 2
    with pytest.raises(InvalidAnswer, match="lists and objects"):
        parsed_json(f"[{most}]")


@pytest.mark.parametrize(
    "text", [SECRET, f'{{"a": "{SECRET}", }}', f"```json\n[{SECRET}]\n```", f'["{SECRET}"'], ids=str
)
async def test_an_error_quotes_nothing_of_an_answer(text: str) -> None:
    with pytest.raises(InvalidAnswer) as refused:
        Answer(text=text).json()
    assert SECRET not in f"{refused.value!r}"
    for stream in (False, True):
        body = f'data: {{"choices": {text}\n\n' if stream else f'{{"choices": {text}'
        with pytest.raises(ModelUnavailable) as failed:
            await answered(body.encode(), stream=stream)
        assert SECRET not in f"{failed.value!r}"


@pytest.mark.parametrize("place", ["code", "type", "message"])
@pytest.mark.parametrize("status", [200, 400, 500])
async def test_no_part_of_an_error_repeats_the_key(place: str, status: int) -> None:
    body = json.dumps({"error": {place: "x" * 20 + "sk-" + "k" * 150}}).encode()
    with pytest.raises((ModelRefused, ModelUnavailable)) as failed:
        await answered(body, status=status)
    assert "kkk" not in f"{failed.value!r} {failed.value.reason}"
    assert len(failed.value.reason) <= 100


@pytest.mark.parametrize("before", [440, 460, 470, 480])
async def test_what_an_endpoint_says_is_cut_after_credentials_are_hidden(before: int) -> None:
    said = "x" * before + " http://ann:hunter2@proxy:3128/ " + "y" * 9_000
    with pytest.raises(ModelUnavailable) as failed:
        await answered(json.dumps({"error": {"message": said}}).encode(), status=500)
    assert not any(part in str(failed.value) for part in ("ann", "hunt", "unter"))
    assert len(str(failed.value)) <= 500


async def test_blocks_of_bedrock_are_counted() -> None:
    class Client:
        def converse(self, **asked: Any) -> Any:
            blocks = [{"text": ""}] * 10_001
            usage = {"inputTokens": 1, "outputTokens": 1}
            return {
                "output": {"message": {"content": blocks}},
                "stopReason": "end_turn",
                "usage": usage,
            }

    model = Bedrock("m", client=Client())
    try:
        with pytest.raises(AnswerTooLarge, match="blocks"):
            await model.answer(REQUEST, None)
    finally:
        await model.close()
