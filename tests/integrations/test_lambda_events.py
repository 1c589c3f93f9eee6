"""Events of AWS as it documents them, and the objects, requests and due runs that they tell of."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import pytest

from holdfast.errors import InvalidRequest
from holdfast.integrations.aws_lambda import STREAM_FILTER, S3Object, object_id, s3_objects
from holdfast.integrations.aws_lambda.http_events import answer_of, http_request_of, scope_of
from holdfast.integrations.aws_lambda.s3_events import messages_of
from holdfast.integrations.aws_lambda.stream_trigger import due_ms_of
from tests.integrations.lambda_calls import documents, due_record, event_named, matches

WASHER = S3Object(
    bucket="warranty-uploads",
    key="incoming/washing machine Ü-200.pdf",
    version_id="096fKKXTRTtl3on89fVO.nfljtsv6qko",
    sequencer="0065573F1F7B1E3F2A",
    etag="b21b84d653bb07b05b1e6b33684dc11b",
    size=84213,
)

# --- S3 -------------------------------------------------------------------------------------------


def test_an_event_of_s3_tells_of_uploads_only() -> None:
    (message,) = messages_of(event_named("s3_put"))
    assert message.id is None
    assert message.errors == ()
    assert message.objects[0] == WASHER
    assert [each.key for each in message.objects[1:]] == ["incoming/oven.pdf"]
    assert message.objects[1].version == "0065573F20025A7B11", "the sequencer tells uploads apart"


def test_an_object_is_the_same_one_from_event_bridge() -> None:
    (message,) = messages_of(event_named("event_bridge_object_created"))
    assert message.objects == (WASHER,)


def test_each_message_of_a_queue_is_told_apart() -> None:
    first, broken, wrapped, test = messages_of(event_named("sqs_s3"))
    assert first.id == "059f36b4-87a3-44ab-83d2-661975830a7d"
    assert first.objects == (WASHER,)
    assert (broken.objects, len(broken.errors)) == ((), 1)
    assert "must be JSON" in str(broken.errors[0])
    assert [each.key for each in wrapped.objects] == ["incoming/oven.pdf"]
    assert (test.objects, test.errors) == ((), ())


def test_a_message_of_sns_is_unwrapped() -> None:
    (message,) = messages_of(event_named("sns_s3"))
    assert [each.key for each in message.objects] == ["incoming/oven.pdf"]


def test_the_test_event_of_s3_tells_of_nothing() -> None:
    (message,) = messages_of(event_named("s3_test"))
    assert (message.objects, message.errors) == ((), ())


@pytest.mark.parametrize("event", [None, [], "text", {}, {"Records": 7}, {"source": "aws.ec2"}])
def test_an_event_that_is_not_of_s3_is_refused(event: Any) -> None:
    with pytest.raises(InvalidRequest, match="event must be an event of S3"):
        messages_of(event)


@pytest.mark.parametrize(
    "record",
    [
        None,
        {"eventSource": "aws:s3", "eventName": "ObjectCreated:Put"},
        {"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "s3": {"bucket": "b"}},
        {
            "eventSource": "aws:s3",
            "eventName": "ObjectCreated:Put",
            "s3": {"bucket": {"name": "b"}, "object": {"key": "\ud800"}},
        },
        *(
            {
                "eventSource": "aws:s3",
                "eventName": "ObjectCreated:Put",
                "s3": {"bucket": {"name": "b"}, "object": told},
            }
            for told in (
                {"key": ""},
                {"key": "%ff.pdf"},
                {"key": "x" * 1_025},
                {"key": "a", "versionId": 7},
            )
        ),
        {"eventSource": "aws:ses"},
    ],
)
def test_a_broken_record_does_not_hide_the_others(record: Any) -> None:
    event = event_named("s3_put")
    event["Records"].insert(0, record)
    (message,) = messages_of(event)
    assert (len(message.objects), len(message.errors)) == (2, 1)


def test_the_objects_of_an_event_are_one_list() -> None:
    assert s3_objects(event_named("event_bridge_object_created")) == [WASHER]
    assert [each.key for each in s3_objects(event_named("sns_s3"))] == ["incoming/oven.pdf"]
    assert s3_objects(event_named("s3_test")) == []
    with pytest.raises(InvalidRequest, match="the body of a message must be JSON"):
        s3_objects(event_named("sqs_s3"))


def test_envelopes_in_envelopes_end_somewhere() -> None:
    event: Any = event_named("s3_put")
    for _ in range(10):
        event = {"Type": "Notification", "Message": json.dumps(event)}
    with pytest.raises(InvalidRequest):
        messages_of(event)


def test_an_object_id_is_a_run_id_and_tells_objects_apart() -> None:
    ids = {object_id(*names) for names in [("a", "b", "c"), ("a", "bc", ""), ("ab", "", "c")]}
    assert len(ids) == 3
    assert WASHER.id == object_id(WASHER.bucket, WASHER.key, WASHER.version_id)
    assert all(len(each) == 40 and each.isalnum() for each in ids)


def test_a_bucket_with_suspended_versions_tells_uploads_apart() -> None:
    event = event_named("s3_put")
    event["Records"][0]["s3"]["object"]["versionId"] = "null"
    (message,) = messages_of(event)
    assert message.objects[0].version == WASHER.sequencer


# --- HTTP -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("http_api_v2", "2.0"),
        ("function_url", "2.0"),
        ("rest_api_v1", "1.0"),
        ("load_balancer", "alb"),
    ],
)
def test_a_request_is_the_same_in_every_form(name: str, form: str) -> None:
    event = event_named(name)
    request = http_request_of(event)
    scope = scope_of(request)
    assert (request.form, request.client, request.is_safe) == (form, "203.0.113.7", True)
    stage = "/prod" if name == "rest_api_v1" else ""
    assert (scope["path"], scope["root_path"]) == (f"{stage}/v1/runs", stage)
    assert (scope["method"], scope["scheme"]) == ("GET", "https")
    assert scope["query_string"].startswith(b"graph=orders&label=a%3D1")
    assert dict(scope["headers"])[b"user-agent"] == b"curl/8.5.0"
    assert scope["server"][1] == 443


def test_repeated_queries_and_cookies_are_kept() -> None:
    for name in ("http_api_v2", "rest_api_v1"):
        scope = scope_of(http_request_of(event_named(name)))
        assert scope["query_string"] == b"graph=orders&label=a%3D1&label=b%3D2"
    scope = scope_of(http_request_of(event_named("http_api_v2")))
    assert dict(scope["headers"])[b"cookie"] == b"theme=dark; lang=de"


def test_headers_with_several_values_are_kept() -> None:
    event = event_named("rest_api_v1")
    event["multiValueHeaders"]["X-Two"] = ["1", "2"]
    headers = scope_of(http_request_of(event))["headers"]
    assert [value for name, value in headers if name == b"x-two"] == [b"1", b"2"]


def test_the_stage_and_the_base_path_precede_the_paths_of_the_server() -> None:
    event = event_named("http_api_v2")
    event["rawPath"], event["requestContext"]["stage"] = "/v1/v1/runs", "v1"
    scope = scope_of(http_request_of(event))
    assert (scope["root_path"], scope["path"]) == ("/v1", "/v1/v1/runs")
    event["rawPath"] = "/holdfast/v1/runs"
    scope = scope_of(http_request_of(event, base_path="/holdfast"))
    assert scope["root_path"] == "/holdfast"
    assert scope_of(http_request_of(event))["root_path"] == ""


def test_a_body_in_base64_is_decoded() -> None:
    event = event_named("http_api_v2")
    event.update(body=base64.b64encode(b"\x00\xff").decode(), isBase64Encoded=True)
    assert http_request_of(event).body == b"\x00\xff"
    event["body"] = "%%%"
    with pytest.raises(InvalidRequest, match="body must be in base64"):
        http_request_of(event)


@pytest.mark.parametrize("event", [None, 7, {}, {"version": "2.0"}, {"httpMethod": "GET"}])
def test_an_event_that_is_no_request_is_refused(event: Any) -> None:
    with pytest.raises(InvalidRequest, match="event must be a request of API Gateway"):
        http_request_of(event)


def test_an_error_shows_no_values_of_an_event() -> None:
    event = {"headers": {"authorization": "Bearer secret"}, "key": "patient file"}
    for read in (http_request_of, messages_of):
        with pytest.raises(InvalidRequest, match="a mapping with the keys: headers, key") as caught:
            read(event)
        assert "secret" not in str(caught.value)
        assert "patient" not in str(caught.value)


def test_a_response_has_the_form_of_its_request() -> None:
    headers = [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"set-cookie", b"a=1"),
        (b"set-cookie", b"b=2"),
    ]
    second = answer_of("2.0", status=200, headers=headers, body="Ü".encode())
    assert second == {
        "statusCode": 200,
        "headers": {"content-type": "text/html; charset=utf-8"},
        "cookies": ["a=1", "b=2"],
        "body": "Ü",
        "isBase64Encoded": False,
    }
    first = answer_of("1.0", status=200, headers=headers, body=b"")
    assert first["multiValueHeaders"]["set-cookie"] == ["a=1", "b=2"]
    balanced = answer_of("alb", status=200, headers=headers, body=b"")
    assert balanced["headers"]["set-cookie"] == "b=2"


@pytest.mark.parametrize(
    ("kind", "body"), [(b"application/octet-stream", b"text"), (b"application/json", b"\xff")]
)
def test_a_body_that_is_no_text_is_sent_in_base64(kind: bytes, body: bytes) -> None:
    answer = answer_of("2.0", status=200, headers=[(b"content-type", kind)], body=body)
    assert answer["isBase64Encoded"] is True
    assert base64.b64decode(answer["body"]) == body


# --- the stream -----------------------------------------------------------------------------------

KINDS = {("orders", None)}


def test_only_a_run_that_became_due_counts() -> None:
    records = event_named("dynamodb_stream")["Records"]
    assert [due_ms_of(record, KINDS) for record in records] == [1763370751000, *[None] * 4]
    assert due_ms_of(records[0], {("orders", "gpu")}) is None


def test_a_change_that_leaves_a_run_due_as_it_was_does_not_count() -> None:
    record = event_named("dynamodb_stream")["Records"][0]
    record["dynamodb"]["OldImage"] = copy.deepcopy(record["dynamodb"]["NewImage"])
    assert due_ms_of(record, KINDS) is None


def test_without_images_each_change_of_a_row_counts() -> None:
    records = event_named("dynamodb_stream_keys_only")["Records"]
    assert [due_ms_of(record, KINDS) for record in records] == [0, None, None]


def test_a_run_of_a_named_pool_counts_for_its_worker() -> None:
    record = due_record(documents, 5, pool="gpu")
    assert due_ms_of(record, {("documents", "gpu")}) == 5
    assert due_ms_of(record, {("documents", None)}) is None


@pytest.mark.parametrize("sk", ["", "x#y#z#1", "1#2", "#" * 50, "9" * 5000 + "#a#b#1"])
@pytest.mark.parametrize("pk", ["DUE#", "DUE#orders#x", "DUE#orders#001#2", "DUE#orders#001"])
def test_a_poison_record_counts_as_nothing(pk: str, sk: str) -> None:
    record = event_named("dynamodb_stream")["Records"][0]
    record["dynamodb"]["NewImage"].update(GSI1PK={"S": pk}, GSI1SK={"S": sk})
    assert due_ms_of(record, KINDS) is None


@pytest.mark.parametrize("record", [None, 7, {}, {"eventName": "INSERT", "dynamodb": None}])
def test_a_record_without_an_item_counts_as_nothing(record: Any) -> None:
    assert due_ms_of(record, KINDS) is None


def test_the_filter_passes_on_what_the_handler_looks_at() -> None:
    (criteria,) = STREAM_FILTER["Filters"]
    pattern = json.loads(criteria["Pattern"])
    records = event_named("dynamodb_stream")["Records"]
    assert [matches(pattern, record) for record in records] == [True, *[False] * 4]
    assert matches(pattern, due_record(documents, 5, pool="gpu"))
