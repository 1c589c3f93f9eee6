"""Answers of hostile models and services: typed errors only, within bounds."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any

import httpx
import msgspec
import pytest
from botocore.exceptions import ClientError
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import (
    AnswerTooLarge,
    HoldfastError,
    InvalidAnswer,
    InvalidRequest,
    InvalidUrl,
    ModelRefused,
    ModelUnavailable,
)
from holdfast.graph.values import durable
from holdfast.integrations import responses
from holdfast.integrations.bedrock import Bedrock
from holdfast.integrations.openai import OpenAI
from holdfast.model.answer_limits import (
    ANSWER_BYTES_MAX,
    BODY_BYTES_MAX,
    JSON_DEPTH_MAX,
    LINE_BYTES_MAX,
    RETRY_AFTER_SECONDS_MAX,
    TOOL_CALLS_MAX,
)
from holdfast.model.answer_validation import validated_answer
from holdfast.model.invocation import Answer, Request, ToolCall, parsed_json
from tests import hostile
from tests.confinement import confine, run_confined
from tests.integrations import dialects

MB = 2**20
BOMB_BYTES = 200 * MB
SSE = {"content-type": "text/event-stream"}
GZIP = {"content-encoding": "gzip"}
REQUEST = Request.of("m", "Tell me.", output={"type": "object"})


async def pieces(*given: bytes) -> AsyncIterator[bytes]:
    """Make a body that arrives piece by piece, and is not unpacked by the client."""
    for piece in given:
        yield piece


def streaming(
    *given: bytes, status: int = 200, headers: Mapping[str, str] | None = None
) -> httpx.Response:
    return httpx.Response(status, headers=headers, content=pieces(*given))


async def answered(
    response: Callable[[], httpx.Response], *, stream: bool = False, **how: Any
) -> Answer:
    transport = httpx.MockTransport(lambda request: response())
    told: list[str] = []
    async with httpx.AsyncClient(transport=transport) as client:
        model = OpenAI("m", client=client, **how)
        answer = await model.answer(REQUEST, told.append if stream else None)
    assert not stream or "".join(told) == answer.text
    return validated_answer(answer, model.tokens_max(REQUEST))


def delta(**fields: Any) -> bytes:
    return dialects.event({"choices": [{"delta": fields}]})


# --- what is too large ----------------------------------------------------------------------------


async def unpacks_a_bomb() -> None:
    packed = await confined(hostile.bomb(BOMB_BYTES))
    with pytest.raises(AnswerTooLarge) as refused:
        await answered(lambda: streaming(packed, headers=GZIP))
    assert (refused.value.limit, refused.value.retryable) == (BODY_BYTES_MAX, False)


async def unpacks_a_bomb_as_a_stream() -> None:
    packed = await confined(hostile.bomb(BOMB_BYTES, fill=b"\n"))
    with pytest.raises(AnswerTooLarge, match="events in its stream"):
        await answered(lambda: streaming(packed, headers=GZIP | SSE), stream=True)


async def unpacks_a_bomb_as_an_error() -> None:
    packed = await confined(hostile.bomb(BOMB_BYTES, head=b"out of order", fill=b"!"))
    with pytest.raises(ModelUnavailable, match="out of order") as failed:
        await answered(lambda: streaming(packed, status=500, headers=GZIP))
    assert len(str(failed.value)) < 1_000


async def confined(packed: bytes) -> bytes:
    """Return a bomb when there is room for little more than a body of the largest size."""
    assert len(packed) < MB // 4
    await answered(lambda: httpx.Response(200, json=dialects.completion("warm")))
    confine(more_bytes=4 * BODY_BYTES_MAX, cpu_seconds=60)
    return packed


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process cannot be confined")
@pytest.mark.parametrize(
    "done", [unpacks_a_bomb, unpacks_a_bomb_as_a_stream, unpacks_a_bomb_as_an_error]
)
def test_a_body_that_unpacks_to_a_bomb_is_refused(done: Callable[[], Any]) -> None:
    run_confined(f"{__name__}:{done.__name__}")


async def test_gzip_within_the_bounds_is_read() -> None:
    body = json.dumps(dialects.completion("yes")).encode()
    packed = hostile.bomb(0, head=body)
    answer = await answered(lambda: streaming(packed[:20], packed[20:], headers=GZIP))
    assert answer.text == "yes"


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "deflate", "²"])
async def test_what_nobody_asked_for_is_not_unpacked(encoding: str) -> None:
    headers = [(b"content-encoding", encoding.encode())]
    with pytest.raises(ModelUnavailable, match="must be identity or gzip"):
        await answered(lambda: httpx.Response(200, headers=headers, content=pieces(b"{}")))


async def test_gzip_that_is_broken_may_be_better_later() -> None:
    with pytest.raises(ModelUnavailable, match="cannot be unpacked"):
        await answered(lambda: streaming(b"\x1f\x8b no gzip", headers=GZIP))


async def endless(piece: bytes) -> AsyncIterator[bytes]:
    while True:
        yield piece


@pytest.mark.parametrize(
    ("piece", "field"),
    [
        (b"d" * 65_536, "bytes in a line"),
        (b": still here\n" * 5_000, "events in its stream"),
        (b"data: " + b'{"choices":[],"x":"' + b"x" * MB + b'"}\n', "bytes in its stream"),
        (delta(content="x" * 50_000), "bytes of text and arguments"),
        (delta(tool_calls=[{"index": 0, "function": {"arguments": "x" * 50_000}}]), "bytes of"),
        (delta(tool_calls=[{"index": 0, "function": {"name": "x" * 50_000}}]), "bytes of"),
        (delta(tool_calls=[{"id": "a", "function": {"name": "f"}}]), "calls of tools"),
    ],
    ids=["line", "comments", "events", "text", "arguments", "name", "calls"],
)
async def test_a_stream_without_an_end_is_refused(piece: bytes, field: str) -> None:
    with pytest.raises(AnswerTooLarge) as refused:
        await answered(
            lambda: httpx.Response(200, headers=SSE, content=endless(piece)), stream=True
        )
    assert refused.value.field.startswith(field)


async def test_a_stream_that_drips_for_ever_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "ANSWER_SECONDS_MAX", 0.01)

    async def drip() -> AsyncIterator[bytes]:
        yield b": still here\n"
        await asyncio.Event().wait()

    with pytest.raises(AnswerTooLarge, match="seconds"):
        await answered(lambda: httpx.Response(200, headers=SSE, content=drip()), stream=True)


async def test_a_long_line_in_many_pieces_takes_no_longer_than_in_one() -> None:
    """Each piece was copied together with all before it: 30,000 pieces took half a minute."""
    copied = 0

    class Counted(bytearray):
        def __iadd__(self, piece: Any) -> Counted:
            nonlocal copied
            copied += len(piece)
            super().__iadd__(piece)
            return self

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(responses, "bytearray", Counted, raising=False)
        with pytest.raises(ModelUnavailable, match="ended its answer too early"):
            await answered(
                lambda: httpx.Response(200, headers=SSE, content=pieces(*[b"d" * 16] * 30_000)),
                stream=True,
            )
    assert copied == 30_000 * 16


async def test_a_whole_answer_with_too_much_in_it_is_refused() -> None:
    text = "x" * (ANSWER_BYTES_MAX + 1)
    with pytest.raises(AnswerTooLarge):
        await answered(lambda: httpx.Response(200, json=dialects.completion(text)))
    calls = [ToolCall(str(number), "f") for number in range(TOOL_CALLS_MAX + 1)]
    with pytest.raises(AnswerTooLarge) as refused:
        await answered(lambda: httpx.Response(200, json=dialects.completion(calls=calls)))
    assert refused.value.limit == TOOL_CALLS_MAX
    answer = await answered(lambda: httpx.Response(200, json=dialects.completion(calls=calls[1:])))
    assert len(answer.tool_calls) == TOOL_CALLS_MAX


def test_one_line_may_hold_a_whole_answer() -> None:
    assert LINE_BYTES_MAX > ANSWER_BYTES_MAX


# --- what is malformed ----------------------------------------------------------------------------


@pytest.mark.parametrize("code", ['"²"', '"' + "9" * 5_000 + '"', "9" * 5_000, '"٤٠٤"', "1e400"])
@pytest.mark.parametrize("status", [200, 500])
async def test_an_error_code_that_is_no_number(code: str, status: int) -> None:
    body = f'{{"error":{{"message":"x","code":{code}}}}}'.encode()
    with pytest.raises(ModelUnavailable) as failed:
        await answered(lambda: streaming(body, status=status))
    assert len(failed.value.reason) <= 100


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("7", 7.0),
        ("1.5", 1.5),
        ("99999999", RETRY_AFTER_SECONDS_MAX),
        ("9" * 300, RETRY_AFTER_SECONDS_MAX),
        ("9" * 5_000, RETRY_AFTER_SECONDS_MAX),
        ("-5", None),
        ("²", None),
        ("٣", None),
        ("nan", None),
        ("1e9", None),
        ("", None),
    ],
)
async def test_how_long_a_service_may_put_a_call_off(said: str, seconds: float | None) -> None:
    headers = [(b"retry-after", said.encode())]
    with pytest.raises(ModelUnavailable) as failed:
        await answered(lambda: httpx.Response(429, headers=headers, content=pieces(b"slow")))
    assert failed.value.retry_after_seconds == seconds

    metadata = {"HTTPStatusCode": 429, "HTTPHeaders": {"retry-after": said}}
    error: Any = {"Error": {"Code": "ThrottlingException"}, "ResponseMetadata": metadata}

    with pytest.raises(ModelUnavailable) as failed:
        await Bedrock("m", client=Client(ClientError(error, "Converse"))).answer(REQUEST, None)
    assert failed.value.retry_after_seconds == seconds


@settings(deadline=None)
@given(body=hostile.documents(), stream=st.booleans(), status=st.sampled_from((200, 429, 500)))
async def test_any_body_is_an_answer_or_a_typed_error(
    body: bytes, stream: bool, status: int
) -> None:
    headers = SSE if stream else {}
    sent = hostile.as_event(body) if stream else body
    with suppress(HoldfastError):
        durable(
            await answered(lambda: streaming(sent, status=status, headers=headers), stream=stream)
        )


@settings(deadline=None)
@given(field=st.sampled_from(hostile.FIELDS), value=hostile.fragments(), stream=st.booleans())
async def test_any_field_may_hold_anything(field: str, value: str, stream: bool) -> None:
    sent = hostile.completion(field, value, stream=stream)
    headers = SSE if stream else {}
    with suppress(HoldfastError):
        answer = await answered(lambda: streaming(sent, headers=headers), stream=stream)
        kept = msgspec.convert(durable(answer), Answer)
        assert 0 <= kept.usage.output_tokens <= 4_096
        # It can be told to the model again.
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": "no"} for call in kept.tool_calls
        ]
        Request.of("m", [{"role": "user", "content": "a"}, kept.message(), *results])


class Client:
    """What boto3 answers, without boto3."""

    def __init__(self, said: Any) -> None:
        self._said = said

    def converse(self, **asked: Any) -> Any:
        if isinstance(self._said, Exception):
            raise self._said
        return self._said

    converse_stream = converse


class Frames(list[Any]):
    """A stream of events."""

    def close(self) -> None: ...


@settings(deadline=None)
@given(value=hostile.values(surrogates=True), at=st.integers(0, 11), stream=st.booleans())
async def test_anything_may_come_from_bedrock(value: Any, at: int, stream: bool) -> None:
    frames = {"stream": Frames(hostile.converse_events(value, at))}
    model = Bedrock("m", client=Client(frames if stream else hostile.converse(value, at)))
    with suppress(HoldfastError):
        answer = await model.answer(REQUEST, (lambda text: None) if stream else None)
        durable(validated_answer(answer, model.tokens_max(REQUEST)))
    await model.close()


async def test_thousands_of_calls_and_events_from_bedrock() -> None:
    use: dict[str, Any] = {"toolUse": {"toolUseId": "1", "name": "f", "input": {}}}
    whole: dict[str, Any] = {
        "output": {"message": {"content": [use] * 5_000}},
        "stopReason": "tool_use",
        "usage": dialects.converse_usage(),
    }
    model = Bedrock("m", client=Client(whole))
    with pytest.raises(AnswerTooLarge, match="calls of tools"):
        await model.answer(REQUEST, None)
    text = {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "x" * 10_000}}}
    model = Bedrock("m", client=Client({"stream": Frames([text] * 1_000)}))
    with pytest.raises(AnswerTooLarge, match="bytes of text"):
        await model.answer(REQUEST, lambda text: None)


@settings(deadline=None)
@given(text=hostile.fragments() | hostile.texts())
def test_any_text_is_json_or_an_invalid_answer(text: str) -> None:
    for said in (text, f"Here:\n```json\n{text}\n```", f"```{text}"):
        with suppress(InvalidAnswer):
            durable(parsed_json(said))
        ToolCall.read("1", "f", said)


@pytest.mark.parametrize(
    "line",
    ["x```a\n", "x```a\n" + " " * 50, "```", "`", "\n", "\n ```x", "``` ", "```json\n", "a", "[],"],
)
@pytest.mark.parametrize("begin", ["", "```\n", "```json\n[", " "])
def test_a_text_of_the_largest_size_is_looked_through_once(begin: str, line: str) -> None:
    """As one regular expression this took the square of the text: hours for 2 MB."""
    text = begin + line * (ANSWER_BYTES_MAX // len(line))
    with pytest.raises(InvalidAnswer):
        parsed_json(text)
    assert not ToolCall.read("1", "f", text).arguments


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_json_is_nested_as_deep_as_it_may(opening: str) -> None:
    parsed_json(hostile.nested(JSON_DEPTH_MAX, opening=opening))
    for depth in (JSON_DEPTH_MAX + 1, 500, 100_000):
        with pytest.raises(InvalidAnswer, match="nested"):
            parsed_json(hostile.nested(depth, opening=opening))


# --- secrets --------------------------------------------------------------------------------------


def shown(error: BaseException) -> str:
    """Return all that an error and those behind it show."""
    told = ""
    each: BaseException | None = error
    while each is not None:
        told += f"{each!r} {each} "
        each = each.__cause__ or each.__context__
    return told


@pytest.mark.parametrize(
    "base_url",
    [
        "htp://user:pw123@host/v1",
        "https://user:pw123@host/v1",
        "https://:pw123@host/v1",
        "https://user:pw123@host:port/v1",
        "https://user:pw/pw123@host/v1",
        "https://pw123@host/v1" + "/x" * 200,
    ],
)
def test_an_address_with_credentials_is_refused_without_showing_them(base_url: str) -> None:
    with pytest.raises(InvalidUrl) as refused:
        OpenAI("m", base_url=base_url)
    assert "pw123" not in shown(refused.value)


@pytest.mark.parametrize("key", ["sk-bad\nkey", "sk-bäd€", " sk", "sk\x00", 5])
def test_a_key_that_no_header_can_hold_is_refused_without_showing_it(
    key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        OpenAI("m", api_key=key)
    assert refused.value.field == "api_key"
    assert str(key).strip() not in shown(refused.value)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-line-end\n")
    with pytest.raises(InvalidRequest, match="OPENAI_API_KEY"):
        OpenAI("m")


@pytest.mark.parametrize("status", [200, 401, 500])
@pytest.mark.parametrize("form", ["error", "text", "long"])
async def test_an_endpoint_that_repeats_the_key_is_not_quoted(status: int, form: str) -> None:
    key = "sk-planted-" + "s" * 40
    said = f"Incorrect API key provided: {key}"
    if form == "error":
        body = json.dumps({"error": {"message": said}})
    else:
        body = said if form == "text" else "x" * 470 + key
    with pytest.raises((ModelRefused, ModelUnavailable)) as failed:
        await answered(lambda: streaming(body.encode(), status=status), api_key=key)
    assert "sk-planted" not in shown(failed.value)
