"""Guardrails of Bedrock: which one is asked for, and what an answer says that it flagged."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import boto3
import msgspec
import pytest
from botocore.stub import Stubber

from holdfast import Context, Holdfast, workflow
from holdfast.errors import InvalidAnswer, InvalidRequest, ModelUnavailable
from holdfast.integrations.bedrock import Bedrock
from holdfast.integrations.guardrails import guardrail_flags
from holdfast.model.answer_limits import FLAG_CHARS_MAX, FLAGS_MAX
from holdfast.model.answer_validation import validated_answer
from holdfast.model.invocation import Answer, Request, Usage
from tests.integrations import dialects
from tests.integrations.kinds import BedrockKind
from tests.servers import stub_http

GUARDRAIL = "a1b2c3d4e5f6"
ARN = f"arn:aws:bedrock:eu-west-1:123456789012:guardrail/{GUARDRAIL}"
BLOCKED = "Sorry, I cannot answer that."
EVENTS = "application/vnd.amazon.eventstream"
SECRET = "ann@example.com"

# As Converse writes it for a guardrail with all of its policies.
INPUT: dict[str, Any] = {
    "topicPolicy": {"topics": [{"name": "Legal advice", "type": "DENY", "action": "BLOCKED"}]},
    "contentPolicy": {
        "filters": [
            {
                "type": "PROMPT_ATTACK",
                "confidence": "HIGH",
                "filterStrength": "HIGH",
                "action": "BLOCKED",
                "detected": True,
            },
            {"type": "HATE", "confidence": "LOW", "action": "NONE", "detected": True},
            {"type": "SEXUAL", "confidence": "NONE", "action": "NONE", "detected": False},
        ]
    },
    "wordPolicy": {
        "customWords": [{"match": SECRET, "action": "BLOCKED"}],
        "managedWordLists": [{"match": SECRET, "type": "PROFANITY", "action": "BLOCKED"}],
    },
    "invocationMetrics": {"guardrailProcessingLatency": 240},
}
OUTPUT: dict[str, Any] = {
    "sensitiveInformationPolicy": {
        "piiEntities": [
            {"match": SECRET, "type": "EMAIL", "action": "ANONYMIZED"},
            {"match": "bob@example.com", "type": "EMAIL", "action": "ANONYMIZED"},
        ],
        "regexes": [{"name": "Serial", "match": SECRET, "regex": "[A-Z]+", "action": "BLOCKED"}],
    },
    "contextualGroundingPolicy": {
        "filters": [
            {"type": "GROUNDING", "threshold": 0.7, "score": 0.2, "action": "BLOCKED"},
            {"type": "RELEVANCE", "threshold": 0.5, "score": 0.9, "action": "NONE"},
        ]
    },
    "automatedReasoningPolicy": {"findings": [{"valid": {}}, {"invalid": {}}]},
}
TRACE = {
    "guardrail": {
        "modelOutput": [f"Write to {SECRET}."],
        "inputAssessment": {GUARDRAIL: INPUT},
        "outputAssessments": {GUARDRAIL: [OUTPUT, OUTPUT]},
        "actionReason": "Guardrail blocked.",
    }
}
FLAGS = (
    "input:topic:Legal advice:blocked",
    "input:content:PROMPT_ATTACK:blocked",
    "input:content:HATE:detected",
    "input:word:custom:blocked",
    "input:word:PROFANITY:blocked",
    "output:pii:EMAIL:anonymized",
    "output:regex:Serial:blocked",
    "output:grounding:GROUNDING:blocked",
    "output:reasoning:invalid:detected",
)


def blocked(trace: Any = TRACE) -> dict[str, Any]:
    return {**dialects.converse(BLOCKED, stop="guardrail_intervened"), "trace": trace}


@pytest.mark.parametrize(
    ("given", "identifier", "version"),
    [(f"{GUARDRAIL}:3", GUARDRAIL, "3"), (f"{ARN}:DRAFT", ARN, "DRAFT")],
)
async def test_the_guardrail_is_asked_for_with_a_trace(
    given: str, identifier: str, version: str
) -> None:
    client: Any = boto3.client("bedrock-runtime", region_name="us-east-1")
    model = Bedrock("m", client=client, guardrail=given)
    asked = {
        "modelId": "m",
        "inferenceConfig": {"maxTokens": 4096},
        "messages": [{"role": "user", "content": [{"text": "Tell me."}]}],
        "guardrailConfig": {
            "guardrailIdentifier": identifier,
            "guardrailVersion": version,
            "trace": "enabled",
        },
    }
    with Stubber(client) as stubber:
        stubber.add_response("converse", blocked(), asked)
        answer = await asyncio.wait_for(model.answer(Request.of("m", "Tell me."), None), 30)
    await model.close()
    assert (answer.text, answer.stop_reason, answer.flags) == (BLOCKED, "filtered", FLAGS)


@pytest.mark.parametrize("given", ["", GUARDRAIL, ARN, "Upper:1", f"{GUARDRAIL}:0", 7, ":1"])
def test_what_is_no_guardrail_is_refused(given: Any) -> None:
    with pytest.raises(InvalidRequest, match="guardrail must be the id or ARN") as refused:
        Bedrock("m", client=object(), guardrail=given)
    assert refused.value.field == "guardrail"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_answer_says_what_was_flagged(bedrock: BedrockKind, stream: bool) -> None:
    if stream:
        metadata = {"usage": dialects.converse_usage(), "metrics": {"latencyMs": 1}, "trace": TRACE}
        said = dialects.frames([BLOCKED], stop="guardrail_intervened")[:-1]
        said.append(dialects.frame("metadata", metadata))
        bedrock.endpoint.plan(stub_http.stream(said, content_type=EVENTS))
    else:
        bedrock.endpoint.plan(stub_http.say(blocked()))
    heard: list[str] = []
    answer = await bedrock.model.answer(
        Request.of("m", "Tell me."), heard.append if stream else None
    )
    assert (answer.text, answer.stop_reason, answer.flags) == (BLOCKED, "filtered", FLAGS)
    assert SECRET not in f"{answer}"


@pytest.mark.parametrize(
    "trace", [None, {}, {"guardrail": None}, {"guardrail": {"inputAssessment": {GUARDRAIL: {}}}}]
)
def test_nothing_was_flagged(trace: Any) -> None:
    assert guardrail_flags(trace) == ()


@pytest.mark.parametrize("trace", [3, {"guardrail": {"inputAssessment": {"g": 3}}}])
async def test_a_trace_that_cannot_be_read_is_a_malformed_answer(trace: Any) -> None:
    class Client:
        def converse(self, **asked: Any) -> Any:
            return blocked(trace)

    model = Bedrock("m", client=Client())
    with pytest.raises(ModelUnavailable) as failed:
        await model.answer(Request.of("m", "Tell me."), None)
    await model.close()
    assert failed.value.reason == "malformed"


def test_an_answer_without_flags_is_stored_as_before() -> None:
    assert msgspec.to_builtins(Answer(text="yes")) == {"text": "yes"}
    stored = msgspec.msgpack.encode(Answer(text=BLOCKED, flags=FLAGS))
    assert msgspec.msgpack.decode(stored, type=Answer).flags == FLAGS


def test_flags_are_bounded() -> None:
    many = tuple(f"{number}" + "x" * 1_000 for number in range(FLAGS_MAX + 1))
    answer = Answer(text="a", usage=Usage(1, 1), flags=(3, *many))  # type: ignore[arg-type]
    kept = validated_answer(answer, (10, 10)).flags
    assert len(kept) == FLAGS_MAX
    assert kept[0] == ""
    assert {len(flag) for flag in kept[1:]} == {FLAG_CHARS_MAX}


def test_a_blocked_prompt_costs_no_tokens() -> None:
    free = Answer(text=BLOCKED, stop_reason="filtered", flags=FLAGS)
    assert validated_answer(free, (10, 10)).usage == Usage()
    for claimed in (
        msgspec.structs.replace(free, flags=()),
        msgspec.structs.replace(free, stop_reason="end"),
    ):
        assert validated_answer(claimed, (10, 10)).usage == Usage(10, 10)


class Verdict(msgspec.Struct):
    risk: str


async def test_a_node_learns_why_there_is_no_object() -> None:
    class Client:
        def converse(self, **asked: Any) -> Any:
            return blocked()

    @workflow
    async def judge(ctx: Context) -> list[str]:
        with pytest.raises(InvalidAnswer, match="flagged input:topic:Legal advice:blocked") as no:
            await ctx.model("small", "Tell me.", output=Verdict)
        return list(no.value.flags)

    models = {"small": Bedrock("m", client=Client(), guardrail=f"{GUARDRAIL}:1")}
    async with Holdfast("sqlite://:memory:", models=models) as hf, hf.worker([judge]):
        run = await hf.start(judge)
        assert await run.result(timeout=30) == list(FLAGS)
        assert SECRET not in json.dumps(
            [entry.as_dict() for entry in (await run.history()).entries]
        )
