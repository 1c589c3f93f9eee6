"""Bedrock: what Converse is asked, as botocore's stubber checks it, and what its errors mean."""

from __future__ import annotations

import asyncio
from typing import Any

import boto3
import pytest
from botocore import exceptions as aws
from botocore.stub import Stubber

from holdfast.errors import InvalidPrompt, ModelRefused, ModelUnavailable
from holdfast.integrations.bedrock import Bedrock
from holdfast.integrations.converse import ANSWER_TOOL
from holdfast.model.invocation import Answer, Request, ToolSpec
from holdfast.model.pricing import ModelPrice, foundation_model
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
SPEC = {
    "toolSpec": {
        "name": "look_up",
        "description": "Looks a thing up.",
        "inputSchema": {"json": OUTPUT},
    }
}
ANSWER_SPEC = {
    "toolSpec": {
        "name": ANSWER_TOOL,
        "description": "Give the answer.",
        "inputSchema": {"json": OUTPUT},
    }
}
EVENTS = "application/vnd.amazon.eventstream"


@pytest.fixture
def client() -> Any:
    return boto3.client(
        "bedrock-runtime",
        region_name="us-east-1",
        aws_access_key_id="id",
        aws_secret_access_key="secret",
    )


async def asked(
    client: Any, expected: dict[str, Any], messages: Any = "Tell me.", **how: Any
) -> Answer:
    """Ask with botocore checking what is sent."""
    model = Bedrock(MODEL, client=client)
    basis = {
        "modelId": MODEL,
        "inferenceConfig": {"maxTokens": 4096},
        "messages": [{"role": "user", "content": [{"text": "Tell me."}]}],
    }
    with Stubber(client) as stubber:
        stubber.add_response("converse", dialects.converse("yes"), {**basis, **expected})
        request = Request.of(model.name, messages, **how)
        answer = await asyncio.wait_for(model.answer(request, None), timeout=30)
        stubber.assert_no_pending_responses()
    await model.close()
    return answer


async def test_what_is_asked(client: Any) -> None:
    await asked(
        client,
        {
            "system": [{"text": "Be brief."}, {"text": "Be kind."}],
            "inferenceConfig": {
                "maxTokens": 5,
                "temperature": 0.0,
                "topP": 0.5,
                "stopSequences": ["END"],
            },
            "additionalModelRequestFields": {"top_k": 3},
        },
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Tell me."},
            {"role": "system", "content": ["Be kind."]},
        ],
        max_tokens=5,
        temperature=0,
        top_p=0.5,
        stop=["END"],
        seed=1,
        extra={"top_k": 3},
    )


async def test_what_one_side_says_in_a_row_is_one_turn(client: Any) -> None:
    calls = [
        {"id": "c1", "name": "look_up", "arguments": {"risk": "x"}},
        {"id": "an id | of another service", "name": "look_up", "arguments": {}},
    ]
    foreign = "22b9eaa855ba4117cda689c63468bf0c"
    uses = [
        {"toolUse": {"toolUseId": "c1", "name": "look_up", "input": {"risk": "x"}}},
        {"toolUse": {"toolUseId": foreign, "name": "look_up", "input": {}}},
    ]
    results = [
        {"toolResult": {"toolUseId": "c1", "content": [{"text": "high"}]}},
        {
            "toolResult": {
                "toolUseId": foreign,
                "content": [{"text": "(nothing)"}],
                "status": "error",
            }
        },
    ]
    await asked(
        client,
        {
            "messages": [
                {"role": "user", "content": [{"text": "Hello."}, {"text": "Tell me."}]},
                {"role": "assistant", "content": uses},
                {"role": "user", "content": [*results, {"text": "And?"}]},
            ],
            "toolConfig": {"tools": [SPEC]},
        },
        [
            {"role": "user", "content": "Hello."},
            {"role": "user", "content": ["Tell me.", "  "]},
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "c1", "content": "high"},
            {"role": "tool", "tool_call_id": calls[1]["id"], "content": "", "error": True},
            {"role": "user", "content": "And?"},
        ],
        tools=[LOOK_UP],
    )


async def test_pictures_and_documents(client: Any) -> None:
    await asked(
        client,
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"image": {"format": "jpeg", "source": {"bytes": b"JPG"}}},
                        {
                            "document": {
                                "format": "pdf",
                                "name": "a b (1) pdf",
                                "source": {"bytes": b"%PDF"},
                            }
                        },
                    ],
                }
            ]
        },
        [
            {
                "role": "user",
                "content": [
                    {"type": "image", "media_type": "image/jpeg", "data": b"JPG"},
                    {
                        "type": "document",
                        "media_type": "application/pdf",
                        "data": b"%PDF",
                        "name": "a/b (1).pdf",
                    },
                ],
            }
        ],
    )


async def test_a_kind_of_picture_that_bedrock_does_not_know(client: Any) -> None:
    picture = {"type": "image", "media_type": "image/tiff", "data": b"x"}
    with pytest.raises(InvalidPrompt, match="image/tiff") as caught:
        await asked(client, {}, [{"role": "user", "content": ["see:", picture]}])
    assert caught.value.field == "messages[0].content[1].media_type"


@pytest.mark.parametrize(
    ("how", "config"),
    [
        ({"tools": [LOOK_UP]}, {"tools": [SPEC]}),
        ({"tools": [LOOK_UP], "tool_choice": "auto"}, {"tools": [SPEC]}),
        (
            {"tools": [LOOK_UP], "tool_choice": "any"},
            {"tools": [SPEC], "toolChoice": {"any": {}}},
        ),
        (
            {"tools": [LOOK_UP], "tool_choice": "look_up"},
            {"tools": [SPEC], "toolChoice": {"tool": {"name": "look_up"}}},
        ),
        (
            {"output": OUTPUT},
            {"tools": [ANSWER_SPEC], "toolChoice": {"tool": {"name": ANSWER_TOOL}}},
        ),
        (
            {"tools": [LOOK_UP], "output": OUTPUT},
            {"tools": [SPEC, ANSWER_SPEC], "toolChoice": {"any": {}}},
        ),
        (
            {"tools": [LOOK_UP], "tool_choice": "look_up", "output": OUTPUT},
            {"tools": [SPEC, ANSWER_SPEC], "toolChoice": {"tool": {"name": "look_up"}}},
        ),
        (
            {"tools": [ToolSpec("bare")]},
            {
                "tools": [
                    {
                        "toolSpec": {
                            "name": "bare",
                            "inputSchema": {"json": {"type": "object", "properties": {}}},
                        }
                    }
                ]
            },
        ),
    ],
    ids=["tools", "auto", "any", "named", "output", "both", "named first", "bare"],
)
async def test_tools_and_which_is_to_be_called(
    client: Any, how: dict[str, Any], config: dict[str, Any]
) -> None:
    await asked(client, {"toolConfig": config}, **how)


async def test_a_tool_that_was_called_stays_declared(client: Any) -> None:
    use = {"toolUseId": "c", "name": "gone", "input": {}}
    await asked(
        client,
        {
            "messages": [
                {"role": "assistant", "content": [{"toolUse": use}]},
                {
                    "role": "user",
                    "content": [{"toolResult": {"toolUseId": "c", "content": [{"text": "ok"}]}}],
                },
            ],
            "toolConfig": {
                "tools": [
                    {"toolSpec": {"name": "gone", "inputSchema": {"json": {"type": "object"}}}}
                ]
            },
        },
        [
            {"role": "assistant", "tool_calls": [{"id": "c", "name": "gone", "arguments": {}}]},
            {"role": "tool", "tool_call_id": "c", "content": "ok"},
        ],
    )


async def test_no_tool_is_called_as_the_answer_is(client: Any) -> None:
    with pytest.raises(InvalidPrompt) as caught:
        await asked(client, {}, tools=[ToolSpec(ANSWER_TOOL)], output=OUTPUT)
    assert caught.value.field == "tools"


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("ThrottlingException", 429, ModelUnavailable),
        ("ModelTimeoutException", 408, ModelUnavailable),
        ("ModelNotReadyException", 429, ModelUnavailable),
        ("ModelErrorException", 424, ModelUnavailable),
        ("ServiceUnavailableException", 503, ModelUnavailable),
        ("InternalServerException", 500, ModelUnavailable),
        ("NobodyKnowsThisException", 500, ModelUnavailable),
        ("ValidationException", 400, ModelRefused),
        ("AccessDeniedException", 403, ModelRefused),
        ("ResourceNotFoundException", 404, ModelRefused),
        ("ExpiredTokenException", 403, ModelRefused),
        ("NobodyKnowsThisException", 400, ModelRefused),
    ],
)
async def test_errors_of_the_service(
    client: Any, code: str, status: int, kind: type[ModelRefused | ModelUnavailable]
) -> None:
    for operation, emit in (("converse", None), ("converse_stream", lambda text: None)):
        model = Bedrock(MODEL, client=client)
        with Stubber(client) as stubber:
            stubber.add_client_error(operation, code, "so it is", status)
            with pytest.raises(kind, match="so it is") as caught:
                await model.answer(Request.of(model.name, "Tell me."), emit)
        assert caught.value.reason == code
        await model.close()


class Broken:
    """A client whose calls go wrong before the service can say anything."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def converse(self, **_: Any) -> Any:
        raise self._error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (aws.ReadTimeoutError(endpoint_url="u"), ModelUnavailable),
        (aws.ConnectTimeoutError(endpoint_url="u"), ModelUnavailable),
        (aws.EndpointConnectionError(endpoint_url="u"), ModelUnavailable),
        (aws.ConnectionClosedError(endpoint_url="u"), ModelUnavailable),
        (ConnectionResetError("gone"), ModelUnavailable),
        (aws.NoCredentialsError(), ModelRefused),
        (aws.NoRegionError(), ModelRefused),
        (aws.ParamValidationError(report="r"), ModelRefused),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else "",
)
async def test_errors_on_the_way(error: Exception, kind: type[Exception]) -> None:
    model = Bedrock(MODEL, client=Broken(error))
    with pytest.raises(kind):
        await model.answer(Request.of(model.name, "Tell me."), None)
    await model.close()


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("end_turn", "end"),
        ("stop_sequence", "end"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("content_filtered", "filtered"),
        ("guardrail_intervened", "filtered"),
    ],
)
async def test_why_it_stopped(bedrock: BedrockKind, said: str, meant: str) -> None:
    bedrock.endpoint.plan(stub_http.say(dialects.converse("yes", stop=said)))
    answer = await bedrock.model.answer(Request.of("m", "Tell me."), None)
    assert answer.stop_reason == meant


async def test_what_went_into_the_cache_was_read(bedrock: BedrockKind) -> None:
    said = dialects.converse("yes")
    said["usage"]["cacheWriteInputTokens"] = 5
    bedrock.endpoint.plan(stub_http.say(said))
    answer = await bedrock.model.answer(Request.of("m", "Tell me."), None)
    assert answer.usage.input_tokens == dialects.MEASURED.input_tokens + 5


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that says nothing of AWS."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "nowhere")
    return monkeypatch


async def test_a_client_of_its_own_asks_once(bare: pytest.MonkeyPatch) -> None:
    async with stub_http.serve() as endpoint:
        bare.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", endpoint.url)
        bare.setenv("AWS_ACCESS_KEY_ID", "id")
        bare.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        bare.setenv("AWS_REGION", "eu-west-1")
        throttled = {"x-amzn-ErrorType": "ThrottlingException"}
        endpoint.plan(
            stub_http.say({"message": "later"}, status=429, headers=throttled),
            stub_http.say(dialects.converse("yes")),
        )
        model = Bedrock(MODEL)
        with pytest.raises(ModelUnavailable, match="later"):
            await model.answer(Request.of(MODEL, "Tell me."), None)
        (asked,) = endpoint.asked
        assert asked.path == f"/model/{MODEL.replace(':', '%3A')}/converse"
        assert "/eu-west-1/bedrock/" in asked.headers["authorization"]
        assert (await model.answer(Request.of(MODEL, "Tell me."), None)).text == "yes"
        await model.close()


async def test_without_a_region_nothing_is_asked(bare: pytest.MonkeyPatch) -> None:
    model = Bedrock(MODEL)
    with pytest.raises(ModelRefused, match="region") as caught:
        await model.answer(Request.of(MODEL, "Tell me."), None)
    assert caught.value.reason == "NoRegionError"
    await model.close()


def test_its_price_is_the_listed_one_or_the_given() -> None:
    assert Bedrock(MODEL).price == ModelPrice(input_usd=1.1, output_usd=5.5, cached_input_usd=0.11)
    own = ModelPrice(input_usd=1, output_usd=2)
    assert Bedrock(MODEL, price=own).price == own
    assert Bedrock("somebodys.model").price is None


def test_a_document_may_take_all_that_can_be_read() -> None:
    part = {"type": "document", "media_type": "application/pdf", "data": b"%PDF"}
    request = Request.of(MODEL, [{"role": "user", "content": [part]}])
    assert Bedrock(MODEL, context_tokens=200_000).tokens_max(request) == (200_000, 4096)


# --- token counts ---------------------------------------------------------------------------------


async def test_tokens_are_counted_under_the_id_of_the_model_itself(client: Any) -> None:
    model = Bedrock(MODEL, client=client)
    request = Request.of(
        model.name,
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me."}],
        tools=[LOOK_UP],
        max_tokens=7,
        temperature=0.5,
    )
    counted = {
        "messages": [{"role": "user", "content": [{"text": "Tell me."}]}],
        "system": [{"text": "Be brief."}],
        "toolConfig": {"tools": [SPEC]},
    }
    with Stubber(client) as stubber:
        expected = {"modelId": MODEL.removeprefix("us."), "input": {"converse": counted}}
        stubber.add_response("count_tokens", {"inputTokens": 42}, expected)
        assert await model.count_tokens(request) == 42
        stubber.add_client_error(
            "count_tokens", "ValidationException", "The provided model doesn't support counting"
        )
        with pytest.raises(ModelRefused, match="counting"):
            await model.count_tokens(request)
        stubber.add_client_error("count_tokens", "ThrottlingException", http_status_code=429)
        with pytest.raises(ModelUnavailable):
            await model.count_tokens(request)
    await model.close()


def test_the_model_behind_an_id() -> None:
    plain = "anthropic.claude-haiku-4-5-20251001-v1:0"
    profile = f"arn:aws:bedrock:eu-west-1:123456789012:inference-profile/eu.{plain}"
    for model_id in (plain, f"us.{plain}", f"global.{plain}", profile):
        assert foundation_model(model_id) == plain
