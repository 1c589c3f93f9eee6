"""Chat completions: what is sent, and what is made of everything that may come back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from holdfast.errors import InvalidPrompt, InvalidUrl, ModelRefused, ModelUnavailable
from holdfast.integrations.openai import OpenAI
from holdfast.model.invocation import Answer, Request, ToolCall, ToolSpec, Usage
from holdfast.model.pricing import ModelPrice
from tests.integrations import dialects
from tests.servers import stub_http
from tests.servers.stub_http import Endpoint, Step

OUTPUT: dict[str, Any] = {
    "type": "object",
    "properties": {"risk": {"type": "string"}},
    "required": ["risk"],
    "additionalProperties": False,
}
LOOK_UP = ToolSpec("look_up", "Looks a thing up.", OUTPUT)
SSE = "text/event-stream"


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with stub_http.serve() as each:
        yield each


@pytest.fixture
async def model(endpoint: Endpoint) -> AsyncIterator[OpenAI]:
    each = OpenAI("m", base_url=f"{endpoint.url}/v1/", api_key="secret-key")
    yield each
    await each.close()


async def asked(model: OpenAI, messages: Any = "Tell me.", **how: Any) -> Answer:
    answering = model.answer(Request.of(model.name, messages, **how), None)
    return await asyncio.wait_for(answering, timeout=30)


async def heard(model: OpenAI, **how: Any) -> tuple[Answer, str]:
    pieces: list[str] = []
    answering = model.answer(Request.of(model.name, "Tell me.", **how), pieces.append)
    answer = await asyncio.wait_for(answering, timeout=30)
    return answer, "".join(pieces)


def sse(*pieces: bytes, whole: bool = True) -> Step:
    return stub_http.stream(pieces, content_type=SSE, whole=whole)


async def test_what_is_asked(endpoint: Endpoint, model: OpenAI) -> None:
    endpoint.plan(stub_http.say(dialects.completion("yes")))
    await asked(
        model,
        [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    "Look:",
                    {"type": "image", "media_type": "image/png", "data": b"\x89PNG"},
                    {"type": "document", "media_type": "text/plain", "data": b"hi", "name": "a"},
                    {"type": "document", "media_type": "application/pdf", "data": b"%PDF"},
                ],
            },
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "name": "look_up", "arguments": {"risk": "x"}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": ["no", "good"], "error": True},
        ],
        tools=[LOOK_UP],
        tool_choice="look_up",
        output=OUTPUT,
        max_tokens=5,
        temperature=0,
        stop="END",
        seed=3,
        extra={"reasoning_effort": "low"},
        idempotency_key="run-1/key",
    )
    (request,) = endpoint.asked
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer secret-key"
    assert request.headers["idempotency-key"] == "run-1/key"
    function = {"name": "look_up", "description": "Looks a thing up.", "parameters": OUTPUT}
    call = {"name": "look_up", "arguments": '{"risk":"x"}'}
    assert request.fields == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look:"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
                    {"type": "text", "text": "a:\nhi"},
                    {
                        "type": "file",
                        "file": {
                            "filename": "document",
                            "file_data": "data:application/pdf;base64,JVBERg==",
                        },
                    },
                ],
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "Error: no\ngood"},
        ],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "look_up"}},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": OUTPUT, "strict": True},
        },
        "max_tokens": 5,
        "temperature": 0.0,
        "stop": ["END"],
        "seed": 3,
        "reasoning_effort": "low",
    }


@pytest.mark.parametrize(("choice", "sent"), [("any", "required"), ("auto", "auto"), (None, None)])
async def test_how_a_tool_is_chosen(
    endpoint: Endpoint, model: OpenAI, choice: str | None, sent: str | None
) -> None:
    endpoint.plan(stub_http.say(dialects.completion("yes")))
    await asked(model, tools=[LOOK_UP], tool_choice=choice)
    assert endpoint.asked[0].fields.get("tool_choice") == sent


@pytest.mark.parametrize(
    "loose",
    [
        {**OUTPUT, "required": []},
        {key: OUTPUT[key] for key in ("type", "properties", "required")},
        {**OUTPUT, "properties": {"risk": {"type": "string", "pattern": "a+"}}},
        {**OUTPUT, "properties": {"risk": {"type": "array", "items": {"type": "object"}}}},
        {**OUTPUT, "properties": {"risk": {"anyOf": [{"type": "null"}, {"default": 1}]}}},
        {**OUTPUT, "$defs": {"A": {"format": "date"}}},
    ],
    ids=["optional", "open", "pattern", "items", "choices", "definitions"],
)
async def test_a_schema_beyond_what_can_be_held_is_not_strict(
    endpoint: Endpoint, model: OpenAI, loose: dict[str, Any]
) -> None:
    endpoint.plan(stub_http.say(dialects.completion("{}")))
    await asked(model, output=loose)
    assert endpoint.asked[0].fields["response_format"]["json_schema"]["strict"] is False


async def test_a_stream_is_asked_for_its_usage(endpoint: Endpoint, model: OpenAI) -> None:
    endpoint.plan(sse(*dialects.chunks(["yes"])))
    await heard(model)
    fields = endpoint.asked[0].fields
    assert fields["stream"] is True
    assert fields["stream_options"] == {"include_usage": True}


async def test_openai_itself_is_told_the_limit_in_its_own_word() -> None:
    sent: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append((str(request.url), json.loads(request.content)))
        return httpx.Response(200, json=dialects.completion("yes"))

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        await asked(OpenAI("gpt-5", client=client, api_key=""), max_tokens=9)
    ((url, body),) = sent
    assert url == "https://api.openai.com/v1/chat/completions"
    assert body["max_completion_tokens"] == 9
    assert "max_tokens" not in body


@pytest.mark.parametrize(
    "base_url",
    [
        "http://api.openai.com/v1",
        "https://api.openai.com.evil.example/v1",
        "https://evil.example/api.openai.com/v1",
        "https://api.openai.com:444/v1",
    ],
)
async def test_the_key_in_the_environment_is_for_openai_alone(
    monkeypatch: pytest.MonkeyPatch, base_url: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from-outside")
    sent: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers.get("authorization"))
        return httpx.Response(200, json=dialects.completion("yes"))

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        await asked(OpenAI("m", client=client))
        await asked(OpenAI("m", client=client, api_key=""))
        await asked(OpenAI("m", client=client, base_url=base_url))
        await asked(OpenAI("m", client=client, base_url=base_url, api_key="passed"))
    assert sent == ["Bearer from-outside", None, None, "Bearer passed"]


@pytest.mark.parametrize("name", ["n", "stream", "messages", "tools"])
async def test_what_the_request_says_is_not_said_again(model: OpenAI, name: str) -> None:
    with pytest.raises(InvalidPrompt) as caught:
        await asked(model, extra={name: 2})
    assert caught.value.field == name


async def test_a_tool_cannot_answer_with_a_picture(model: OpenAI) -> None:
    picture = {"type": "image", "media_type": "image/png", "data": b"x"}
    with pytest.raises(InvalidPrompt) as caught:
        await asked(
            model,
            [
                {"role": "assistant", "tool_calls": [{"id": "c", "name": "f", "arguments": {}}]},
                {"role": "tool", "tool_call_id": "c", "content": ["see:", picture]},
            ],
        )
    assert caught.value.field == "messages[1].content[1].type"


@pytest.mark.parametrize(
    ("status", "error", "kind", "reason"),
    [
        (408, {}, ModelUnavailable, "408"),
        (409, {}, ModelUnavailable, "409"),
        (429, {"code": "rate_limit_exceeded"}, ModelUnavailable, "rate_limit_exceeded"),
        (429, {"code": "insufficient_quota"}, ModelRefused, "insufficient_quota"),
        (500, {"type": "server_error", "code": None}, ModelUnavailable, "server_error"),
        (529, {}, ModelUnavailable, "529"),
        (400, {"code": "context_length_exceeded"}, ModelRefused, "context_length_exceeded"),
        (401, {}, ModelRefused, "401"),
        (404, {"code": 404}, ModelRefused, "404"),
        (301, {}, ModelRefused, "301"),
    ],
)
async def test_errors_by_their_status(
    endpoint: Endpoint,
    model: OpenAI,
    status: int,
    error: dict[str, Any],
    kind: type[ModelRefused | ModelUnavailable],
    reason: str,
) -> None:
    endpoint.plan(stub_http.say({"error": {"message": "so it is", **error}}, status=status))
    with pytest.raises(kind, match="so it is") as caught:
        await asked(model)
    assert caught.value.reason == reason
    assert "secret-key" not in str(caught.value)


async def test_an_error_that_is_not_json_is_shown(endpoint: Endpoint, model: OpenAI) -> None:
    endpoint.plan(stub_http.say(b"<html>bad \xff gateway" + b"x" * 10_000, status=502))
    with pytest.raises(ModelUnavailable, match=r"bad . gateway") as caught:
        await asked(model)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "12"}, 12),
        ({"Retry-After": "0.5"}, 0.5),
        ({"Retry-After": "9", "retry-after-ms": "250"}, 0.25),
        ({"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, None),
        ({"Retry-After": "-1"}, None),
        ({}, None),
    ],
    ids=str,
)
async def test_how_long_to_wait(
    endpoint: Endpoint, model: OpenAI, headers: dict[str, str], seconds: float | None
) -> None:
    endpoint.plan(stub_http.say({"error": {"message": ""}}, status=429, headers=headers))
    with pytest.raises(ModelUnavailable) as caught:
        await asked(model)
    assert caught.value.retry_after_seconds == seconds


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b'{"choices": [',
        b'{"choices": []}',
        b'{"choices": [{"message": {"content": 5}}]}',
        b"[]",
        b'{"choices": [{"message": {"content": "\xff"}}]}',
    ],
    ids=str,
)
async def test_an_answer_that_cannot_be_understood_may_be_better_later(
    endpoint: Endpoint, model: OpenAI, body: bytes
) -> None:
    endpoint.plan(stub_http.say(body))
    with pytest.raises(ModelUnavailable) as caught:
        await asked(model)
    assert caught.value.reason == "malformed"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "m", "code": "server_error"}, ModelUnavailable),
        ({"message": "m", "code": 503}, ModelUnavailable),
        ({"message": "m", "code": 429}, ModelUnavailable),
        ({"message": "m", "code": 400}, ModelRefused),
        ({"message": "m", "type": "invalid_request_error"}, ModelRefused),
    ],
    ids=str,
)
async def test_an_error_after_the_endpoint_said_yes(
    endpoint: Endpoint, model: OpenAI, error: dict[str, Any], kind: type[Exception]
) -> None:
    begun = dialects.chunks(["Once "], finish=None, done=False)
    endpoint.plan(sse(*begun, dialects.event({"error": error})), stub_http.say({"error": error}))
    with pytest.raises(kind):
        await heard(model)
    with pytest.raises(kind):
        await asked(model)


async def test_a_line_that_is_not_json_breaks_the_answer(endpoint: Endpoint, model: OpenAI) -> None:
    endpoint.plan(sse(*dialects.chunks(["a"], finish=None, done=False), b"data: {oops\n\n"))
    with pytest.raises(ModelUnavailable) as caught:
        await heard(model)
    assert caught.value.reason == "malformed"


async def test_pieces_may_end_anywhere_and_lines_anyhow(endpoint: Endpoint, model: OpenAI) -> None:
    text = "line separator, ümläut \x85 and more"
    raw = b": a comment\r\nevent: x\r\n" + b"".join(dialects.chunks([text])).replace(
        b"\n\n", b"\r\n\r\n"
    )
    said = json.dumps({"choices": [{"delta": {"content": text}}]}, ensure_ascii=False)
    raw = raw.replace(b"data: [DONE]", b"data:" + said.encode() + b"\r\n\r\ndata: [DONE]")
    endpoint.plan(sse(*(raw[index : index + 1] for index in range(len(raw)))))
    answer, told = await heard(model)
    assert answer.text == told == text * 2


async def test_the_end_may_be_left_out(endpoint: Endpoint, model: OpenAI) -> None:
    *said, last = dialects.chunks(["yes"], done=False)
    endpoint.plan(sse(*said, last.rstrip(b"\n")))
    answer, _ = await heard(model)
    assert answer.text == "yes"
    assert answer.usage == dialects.MEASURED


async def test_what_comes_after_the_end_is_not_waited_for(
    endpoint: Endpoint, model: OpenAI
) -> None:
    never = asyncio.Event()
    said = [*dialects.chunks(["yes"]), b": still here\n"]

    async def between(number: int) -> None:
        if number == len(said) - 1:
            await never.wait()

    endpoint.plan(stub_http.stream(said, content_type=SSE, between=between))
    answer, _ = await heard(model)
    assert answer.text == "yes"


async def test_an_end_without_a_reason_is_no_end(endpoint: Endpoint, model: OpenAI) -> None:
    endpoint.plan(sse(*dialects.chunks(["ye"], finish=None, done=False)))
    with pytest.raises(ModelUnavailable) as caught:
        await heard(model)
    assert caught.value.reason == "cut"


async def test_a_connection_that_breaks_after_the_text_is_still_cut(
    endpoint: Endpoint, model: OpenAI
) -> None:
    said = dialects.chunks(["yes"], done=False)[:-1]
    endpoint.plan(sse(*said, whole=False))
    with pytest.raises(ModelUnavailable):
        await heard(model)


async def test_an_endpoint_that_cannot_stream_is_heard_at_once(
    endpoint: Endpoint, model: OpenAI
) -> None:
    endpoint.plan(stub_http.say(dialects.completion("yes")))
    answer, told = await heard(model)
    assert answer.text == told == "yes"


async def test_nobody_waits_for_ever(endpoint: Endpoint) -> None:
    model = OpenAI("m", base_url=endpoint.url, timeout="50ms")
    endpoint.plan(stub_http.stall)
    with pytest.raises(ModelUnavailable, match="ReadTimeout"):
        await asked(model)
    await model.close()


async def test_calls_without_places_and_ids(endpoint: Endpoint, model: OpenAI) -> None:
    pieces = [
        {"id": "a", "function": {"name": "look_up", "arguments": '{"risk":'}},
        {"function": {"arguments": ' "x"}'}},
        {"id": "b", "function": {"name": "look_up", "arguments": ""}},
    ]
    said = [dialects.event({"choices": [{"delta": {"tool_calls": [piece]}}]}) for piece in pieces]
    nameless = {"tool_calls": [{"function": {"name": "look_up", "arguments": "{}"}}]}
    endpoint.plan(
        sse(*said, *dialects.chunks(finish="tool_calls")),
        stub_http.say({"choices": [{"message": nameless, "finish_reason": "stop"}]}),
    )
    answer, _ = await heard(model, tools=[LOOK_UP])
    assert answer.tool_calls == (
        ToolCall("a", "look_up", {"risk": "x"}),
        ToolCall("b", "look_up", {}),
    )
    whole = await asked(model, tools=[LOOK_UP])
    assert whole.stop_reason == "tool_calls"
    assert whole.tool_calls == (ToolCall("call_0", "look_up", {}),)


@pytest.mark.parametrize("written", ["{oops", "[1]", '{"n": 99999999999999999999999}'])
async def test_arguments_that_are_no_object_are_kept_as_they_are(
    endpoint: Endpoint, model: OpenAI, written: str
) -> None:
    call = {"id": "a", "function": {"name": "look_up", "arguments": written}}
    message = {"content": None, "tool_calls": [call]}
    endpoint.plan(stub_http.say({"choices": [{"message": message}]}))
    answer = await asked(model, tools=[LOOK_UP])
    assert answer.tool_calls == (ToolCall("a", "look_up", {}, malformed=written),)


async def test_a_refusal_is_the_text(endpoint: Endpoint, model: OpenAI) -> None:
    said = {"choices": [{"message": {"content": None, "refusal": "I will not."}}]}
    endpoint.plan(stub_http.say(said))
    answer = await asked(model)
    assert (answer.text, answer.stop_reason) == ("I will not.", "filtered")


async def test_who_does_not_count_is_counted_for(endpoint: Endpoint, model: OpenAI) -> None:
    endpoint.plan(stub_http.say(dialects.completion("é" * 10, usage=None)))
    request = Request.of("m", "Tell me.")
    answer = await model.answer(request, None)
    assert answer.usage == Usage(model.tokens_max(request)[0], 20)


async def test_a_price_is_only_that_of_openai_itself(endpoint: Endpoint) -> None:
    own = ModelPrice(input_usd=1, output_usd=2)
    assert OpenAI("gpt-5").price == ModelPrice(
        input_usd=1.25, output_usd=10, cached_input_usd=0.125
    )
    assert OpenAI("gpt-5", base_url=endpoint.url).price is None
    assert OpenAI("gpt-5", base_url=endpoint.url, price=own).price == own


@pytest.mark.parametrize("url", ["", "api.example.com", "ftp://x", "http://", "http://x:99999"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(InvalidUrl) as caught:
        OpenAI("m", base_url=url)
    assert caught.value.field == "base_url"


def test_connections_are_shared_within_a_loop_and_not_beyond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[httpx.AsyncClient] = []

    class Client(httpx.AsyncClient):
        def __init__(self, **how: Any) -> None:
            super().__init__(**how)
            made.append(self)

    async def twice(model: OpenAI) -> None:
        for _ in range(2):
            with pytest.raises(ModelUnavailable):
                await asked(model)

    monkeypatch.setattr(httpx, "AsyncClient", Client)
    model = OpenAI("m", base_url="http://127.0.0.1:1")
    for loops in (1, 2):
        asyncio.run(twice(model))
        assert len(made) == loops
    asyncio.run(model.close())
    assert made[-1].is_closed
