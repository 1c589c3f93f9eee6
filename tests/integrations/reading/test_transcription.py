"""Amazon Transcribe and Bedrock Data Automation: one job for a call, however often it is tried."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.response import StreamingBody
from botocore.stub import ANY, Stubber

from holdfast.clock import ManualClock
from holdfast.errors import (
    ExtractionFailed,
    ExtractionUnavailable,
    InvalidRequest,
    NotConfigured,
)
from holdfast.integrations.reading import (
    AmazonTranscribe,
    AutomationPage,
    AutomationResult,
    BedrockDataAutomation,
    SpokenSegment,
    UnconfiguredDataAutomation,
    UnconfiguredTranscriber,
)
from holdfast.integrations.reading.aws_calls import job_name
from tests.integrations.reading.made_files import written

KEY = "run-1/transcribe/1"
NAME = job_name(KEY)
MEDIA = "s3://media/talk.mp3"
RESULT = f"results/{NAME}.json"
PROFILE = "arn:aws:bedrock:us-east-1:123456789012:data-automation-profile/us.data-automation-v1"
ARN = "arn:aws:bedrock:us-east-1:123456789012:data-automation-invocation/abc-123"


class PassingClock(ManualClock):
    """A clock on which a wait is over at once, and has taken its time."""

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)


class Services:
    """Stubbed clients, which accept only the requests that were added, and a clock."""

    def __init__(self, service: str) -> None:
        self.client, self.stub = _stubbed(service)
        self.s3, self.s3_stub = _stubbed("s3")
        self.clock = PassingClock()

    def object(self, bucket: str, key: str, content: bytes) -> None:
        body = StreamingBody(io.BytesIO(content), len(content))
        self.s3_stub.add_response("get_object", {"Body": body}, {"Bucket": bucket, "Key": key})

    def done(self) -> None:
        self.stub.assert_no_pending_responses()
        self.s3_stub.assert_no_pending_responses()


def _stubbed(service: str) -> tuple[Any, Stubber]:
    client: Any = boto3.client(
        service, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x"
    )
    stubber = Stubber(client)
    stubber.activate()
    return client, stubber


@pytest.fixture
def services() -> Iterator[Services]:
    services = Services("transcribe")
    yield services
    services.done()


def transcriber(services: Services) -> AmazonTranscribe:
    return AmazonTranscribe(
        output="s3://results-bucket/results/",
        client=services.client,
        s3=services.s3,
        clock=services.clock,
    )


def job(status: str, **fields: Any) -> dict[str, Any]:
    return {
        "TranscriptionJob": {
            "TranscriptionJobName": NAME,
            "TranscriptionJobStatus": status,
            **fields,
        }
    }


ASKED = {"TranscriptionJobName": NAME}
STARTED = {
    "TranscriptionJobName": NAME,
    "Media": {"MediaFileUri": MEDIA},
    "OutputBucketName": "results-bucket",
    "OutputKey": RESULT,
    "LanguageCode": "en-US",
}


def word(text: str, start: float, end: float) -> dict[str, Any]:
    return {
        "type": "pronunciation",
        "start_time": str(start),
        "end_time": str(end),
        "alternatives": [{"confidence": "0.99", "content": text}],
    }


STOP = {"type": "punctuation", "alternatives": [{"confidence": "0.0", "content": "."}]}
HELLO = [word("Hello", 0.5, 0.9), word("there", 1.0, 1.4), STOP]
TRANSCRIPT = {
    "jobName": NAME,
    "accountId": "123456789012",
    "status": "COMPLETED",
    "results": {
        "transcripts": [{"transcript": "Hello there. Bye."}],
        "items": [
            word("Hello", 0.5, 0.9),
            word("there", 1.0, 1.4),
            STOP,
            word("Bye", 2, 2.5),
            STOP,
        ],
    },
}
SEGMENTS = (SpokenSegment(0.5, 1.4, "Hello there."), SpokenSegment(2.0, 2.5, "Bye."))


async def test_a_recording_is_transcribed(services: Services) -> None:
    services.stub.add_client_error("get_transcription_job", "NotFoundException")
    services.stub.add_response("start_transcription_job", job("IN_PROGRESS"), STARTED)
    services.stub.add_response("get_transcription_job", job("QUEUED"), ASKED)
    services.stub.add_response("get_transcription_job", job("IN_PROGRESS"), ASKED)
    services.stub.add_response("get_transcription_job", job("COMPLETED"), ASKED)
    services.object("results-bucket", RESULT, json.dumps(TRANSCRIPT).encode())
    found = await transcriber(services).transcribe(MEDIA, key=KEY)
    assert found.segments == SEGMENTS
    assert found.text == "Hello there.\nBye."


async def test_a_repeated_call_finds_its_job_and_starts_none(services: Services) -> None:
    services.stub.add_response("get_transcription_job", job("COMPLETED"), ASKED)
    services.stub.add_response("get_transcription_job", job("COMPLETED"), ASKED)
    services.object("results-bucket", RESULT, json.dumps(TRANSCRIPT).encode())
    found = await transcriber(services).transcribe(MEDIA, key=KEY)
    assert found.segments == SEGMENTS


async def test_a_job_that_another_attempt_started_meanwhile_is_awaited(services: Services) -> None:
    services.stub.add_client_error("get_transcription_job", "BadRequestException")
    services.stub.add_client_error("start_transcription_job", "ConflictException")
    services.stub.add_response("get_transcription_job", job("COMPLETED"), ASKED)
    segments = [{"transcript": "All of it.", "start_time": "0.0", "end_time": "9.5"}]
    content = {"results": {"items": [], "audio_segments": segments}}
    services.object("results-bucket", RESULT, json.dumps(content).encode())
    found = await transcriber(services).transcribe(MEDIA, key=KEY)
    assert found.segments == (SpokenSegment(0.0, 9.5, "All of it."),)


async def test_a_language_that_is_not_known_is_identified(services: Services) -> None:
    request = {key: value for key, value in STARTED.items() if key != "LanguageCode"}
    services.stub.add_client_error("get_transcription_job", "NotFoundException")
    services.stub.add_response(
        "start_transcription_job", job("QUEUED"), {**request, "IdentifyLanguage": True}
    )
    services.stub.add_response("get_transcription_job", job("FAILED", FailureReason="no speech"))
    with pytest.raises(ExtractionFailed, match="no speech"):
        await transcriber(services).transcribe(MEDIA, key=KEY, language="auto")


async def test_a_local_recording_is_uploaded_first(services: Services, tmp_path: Path) -> None:
    path = written(tmp_path, "Talk.MP3", b"ID3" + bytes(100))
    place = f"results/{NAME}/media.mp3"
    services.stub.add_client_error("get_transcription_job", "NotFoundException")
    services.s3_stub.add_response(
        "put_object",
        {},
        {"Bucket": "results-bucket", "Key": place, "Body": ANY, "ChecksumAlgorithm": ANY},
    )
    started = {**STARTED, "Media": {"MediaFileUri": f"s3://results-bucket/{place}"}}
    services.stub.add_response("start_transcription_job", job("QUEUED"), started)
    services.stub.add_response("get_transcription_job", job("COMPLETED"), ASKED)
    services.object("results-bucket", RESULT, b'{"results": {"items": []}}')
    found = await transcriber(services).transcribe(path, key=KEY)
    assert found.segments == ()


@pytest.mark.parametrize("content", [b"no JSON", b"{}", b'{"results": {"items": [{}]}}'])
async def test_a_result_that_cannot_be_read_fails(content: bytes, services: Services) -> None:
    for _ in range(2):
        services.stub.add_response("get_transcription_job", job("COMPLETED"), ASKED)
    services.object("results-bucket", RESULT, content)
    with pytest.raises(ExtractionFailed, match="cannot be read"):
        await transcriber(services).transcribe(MEDIA, key=KEY)


async def test_a_job_that_takes_too_long_may_be_asked_for_again(services: Services) -> None:
    for _ in range(3):
        services.stub.add_response("get_transcription_job", job("IN_PROGRESS"), ASKED)
    patient = AmazonTranscribe(
        output="s3://results-bucket/results",
        client=services.client,
        s3=services.s3,
        clock=services.clock,
        timeout=1,
    )
    with pytest.raises(ExtractionUnavailable, match="not finished in 1 s"):
        await patient.transcribe(MEDIA, key=KEY)


async def test_throttling_is_retryable(services: Services) -> None:
    services.stub.add_client_error("get_transcription_job", "LimitExceededException")
    with pytest.raises(ExtractionUnavailable) as caught:
        await transcriber(services).transcribe(MEDIA, key=KEY)
    assert caught.value.retryable


async def test_what_cannot_be_a_request_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="output must be an address such as s3://"):
        AmazonTranscribe(output="https://example.com")
    services = Services("transcribe")
    with pytest.raises(InvalidRequest, match="key must be the idempotency key"):
        await transcriber(services).transcribe(MEDIA, key="")


async def test_where_nothing_is_configured_each_call_says_so() -> None:
    with pytest.raises(NotConfigured, match="transcription is not configured") as missing:
        await UnconfiguredTranscriber().transcribe(MEDIA, key=KEY)
    assert missing.value.what == "transcription"
    with pytest.raises(NotConfigured, match="data automation is not configured"):
        await UnconfiguredDataAutomation().analyze("s3://bucket/a.pdf", key=KEY)


# --- data automation ------------------------------------------------------------------------------

OUTPUT = f"s3://results-bucket/bda/{NAME}"
INVOKED = {
    "clientToken": NAME,
    "inputConfiguration": {"s3Uri": "s3://media/a.pdf"},
    "outputConfiguration": {"s3Uri": OUTPUT},
    "dataAutomationProfileArn": PROFILE,
}
METADATA = {
    "job_id": "abc-123",
    "job_status": "PROCESSED",
    "semantic_modality": "DOCUMENT",
    "output_metadata": [
        {
            "asset_id": 0,
            "segment_metadata": [
                {"standard_output_path": f"{OUTPUT}/0/standard_output/0/result.json"},
                {"custom_output_status": "NO_MATCH"},
            ],
        }
    ],
}
STANDARD = {
    "metadata": {"asset_id": "0", "semantic_modality": "DOCUMENT"},
    "document": {"summary": "A contract.", "statistics": {"word_count": 4}},
    "pages": [
        {"id": "p1", "page_index": 1, "representation": {"text": "plain second page"}},
        {"id": "p0", "page_index": 0, "representation": {"markdown": "# First", "text": "First"}},
    ],
}


def automation(services: Services, **options: Any) -> BedrockDataAutomation:
    return BedrockDataAutomation(
        output="s3://results-bucket/bda/",
        profile=PROFILE,
        client=services.client,
        s3=services.s3,
        clock=services.clock,
        **options,
    )


@pytest.fixture
def bda() -> Iterator[Services]:
    services = Services("bedrock-data-automation-runtime")
    yield services
    services.done()


async def test_data_automation_returns_a_summary_and_pages(bda: Services) -> None:
    project = "arn:aws:bedrock:us-east-1:123456789012:data-automation-project/abc"
    request = {**INVOKED, "dataAutomationConfiguration": {"dataAutomationProjectArn": project}}
    bda.stub.add_response("invoke_data_automation_async", {"invocationArn": ARN}, request)
    asked = {"invocationArn": ARN}
    bda.stub.add_response("get_data_automation_status", {"status": "InProgress"}, asked)
    metadata_uri = f"{OUTPUT}/abc-123/job_metadata.json"
    done = {"status": "Success", "outputConfiguration": {"s3Uri": metadata_uri}}
    bda.stub.add_response("get_data_automation_status", done, asked)
    bda.object(
        "results-bucket", f"bda/{NAME}/abc-123/job_metadata.json", json.dumps(METADATA).encode()
    )
    bda.object(
        "results-bucket",
        f"bda/{NAME}/0/standard_output/0/result.json",
        json.dumps(STANDARD).encode(),
    )
    adapter = automation(bda, project=project)
    found = await adapter.analyze("s3://media/a.pdf", key=KEY)
    assert found == AutomationResult(
        "A contract.",
        (AutomationPage(0, "# First"), AutomationPage(1, "plain second page")),
        metadata_uri,
    )


async def test_a_failed_job_of_data_automation_tells_why(bda: Services) -> None:
    bda.stub.add_response("invoke_data_automation_async", {"invocationArn": ARN}, INVOKED)
    bda.stub.add_response(
        "get_data_automation_status",
        {"status": "ClientError", "errorType": "Validation", "errorMessage": "too many pages"},
    )
    with pytest.raises(ExtractionFailed, match="too many pages"):
        await automation(bda).analyze("s3://media/a.pdf", key=KEY)
