"""The Lambda functions of the application against moto: from an upload to the tenant's reminder."""

from __future__ import annotations

import copy
import importlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import boto3
import pytest

from holdfast import Holdfast, Run
from holdfast.integrations.aws_lambda import STREAM_FILTER, object_id
from holdfast.integrations.aws_lambda.invocation import run_in_loop
from tests.integrations.lambda_calls import Invocation, event_named, matches
from warranty import application as application_module
from warranty.application import SAMPLES
from warranty.reading import pdf_pages

BUCKET = "warranty-scans"
PUBLIC = "https://r3pmxmplak.execute-api.eu-west-1.amazonaws.com"
REVIEWER = "ana@example.com"
PATTERN = json.loads(STREAM_FILTER["Filters"][0]["Pattern"])


class Textract:
    """Reads the version of an object in moto's S3: moto's Textract makes up what it reads."""

    def __init__(self, s3: Any) -> None:
        self._s3 = s3
        self.jobs: list[dict[str, Any]] = []

    def start_document_text_detection(self, **asked: Any) -> Any:
        self.jobs.append(asked["DocumentLocation"]["S3Object"])
        return {"JobId": str(len(self.jobs) - 1)}

    def get_document_text_detection(self, JobId: str) -> Any:  # noqa: N803
        place = self.jobs[int(JobId)]
        named = {"Bucket": place["Bucket"], "Key": place["Name"], "VersionId": place["Version"]}
        data = self._s3.get_object(**named)["Body"].read()
        lines = "\n".join(pdf_pages(data, key=place["Name"], passwords=[])).splitlines()
        blocks = [{"BlockType": "LINE", "Text": line} for line in lines]
        return {"JobStatus": "SUCCEEDED", "Blocks": [{"BlockType": "PAGE"}, *blocks]}


@dataclass
class Cloud:
    """The account of the test: its buckets, its table, and what its topics sent."""

    endpoint: str
    textract: Textract
    s3: Any
    table: str
    queues: dict[str, str] = field(default_factory=dict[str, str])
    topics: dict[str, str] = field(default_factory=dict[str, str])

    def client(self, name: str) -> Any:
        return boto3.client(name, endpoint_url=self.endpoint, region_name="us-east-1")

    def add_topic(self, name: str) -> None:
        sns, sqs = self.client("sns"), self.client("sqs")
        topic = self.topics[name] = sns.create_topic(Name=name)["TopicArn"]
        url = self.queues[name] = sqs.create_queue(QueueName=name)["QueueUrl"]
        told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=told["Attributes"]["QueueArn"])

    def sent(self, name: str) -> list[dict[str, Any]]:
        """Return the messages that a topic has sent since the last look."""
        sqs, found = self.client("sqs"), []
        while messages := sqs.receive_message(
            QueueUrl=self.queues[name], MaxNumberOfMessages=10, WaitTimeSeconds=0
        ).get("Messages"):
            found += [json.loads(each["Body"]) for each in messages]
            for each in messages:
                sqs.delete_message(QueueUrl=self.queues[name], ReceiptHandle=each["ReceiptHandle"])
        return found

    def upload(self, key: str, data: bytes) -> Any:
        """Put an object, and return the event that S3 sends."""
        put = self.s3.put_object(Bucket=BUCKET, Key=key, Body=data)
        event = event_named("s3_put")
        event["Records"] = event["Records"][:1]
        event["Records"][0]["s3"]["bucket"]["name"] = BUCKET
        event["Records"][0]["s3"]["object"] |= {
            "key": key.replace(" ", "+"),
            "size": len(data),
            "eTag": put["ETag"].strip('"'),
            "versionId": put["VersionId"],
        }
        return event

    def stream(self) -> list[Any]:
        """Return the records of the table's stream that Lambda passes on."""
        tables = self.client("dynamodb")
        arn = tables.describe_table(TableName=self.table)["Table"]["LatestStreamArn"]
        streams = self.client("dynamodbstreams")
        described = streams.describe_stream(StreamArn=arn)["StreamDescription"]
        (shard,) = described["Shards"]
        iterator = streams.get_shard_iterator(
            StreamArn=arn, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        records = streams.get_records(ShardIterator=iterator)["Records"]
        return [each for each in records if matches(PATTERN, each)]


@pytest.fixture
def cloud(moto_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    s3: Any = boto3.client("s3", endpoint_url=moto_server)
    s3.create_bucket(Bucket=BUCKET)
    s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    table = tmp_path.name.replace("_", "-")
    made = Cloud(moto_server, Textract(s3), s3, table)
    for name in ("tenants", "reviewers"):
        made.add_topic(name)
    clients = application_module._aws_client
    monkeypatch.setattr(
        application_module,
        "_aws_client",
        lambda name, settings: made.textract if name == "textract" else clients(name, settings),
    )
    address = f"dynamodb://{table}?region=us-east-1&endpoint={moto_server}"
    for name, value in {
        "HOLDFAST_URL": f"{address}&bucket={table}&bucket_endpoint={moto_server}",
        "HOLDFAST_PUBLIC_URL": PUBLIC,
        "WARRANTY_AWS_ENDPOINT": moto_server,
        "WARRANTY_DATA": "/dev/null/no-folder-can-be-made-here",
        "WARRANTY_TOPIC": made.topics["tenants"],
        "WARRANTY_REVIEW_TOPIC": made.topics["reviewers"],
        "WARRANTY_REVIEWERS": REVIEWER,
    }.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def functions(cloud: Cloud) -> Iterator[Any]:
    """The module as Lambda imports it, in a new process."""
    sys.modules.pop("warranty.functions", None)
    module = importlib.import_module("warranty.functions")
    run_in_loop(module.hf.create)
    yield module
    run_in_loop(module.hf.close)
    del sys.modules["warranty.functions"]


def request(functions: Any, method: str, path: str, form: dict[str, str] | None = None) -> Any:
    """Return the answer to a request of a browser behind API Gateway."""
    event = event_named("http_api_v2")
    event["requestContext"]["http"].update(method=method, path=path)
    event.update(rawPath=path, rawQueryString="", cookies=[])
    event["headers"]["accept"] = "text/html"
    if form is not None:
        event["headers"] |= {
            "content-type": "application/x-www-form-urlencoded",
            "origin": PUBLIC,
            "sec-fetch-site": "same-origin",
        }
        event["body"] = urlencode(form)
        event["headers"]["content-length"] = str(len(event["body"]))
    return functions.on_request(event, Invocation())


def only_run(hf: Holdfast) -> Run:
    async def read() -> Run:
        (entry,) = (await hf.list()).runs
        return await hf.run(entry.id).get()

    return run_in_loop(read)


def fields_of(page: str) -> dict[str, str]:
    """Return what a browser sends if a person approves without a change."""
    form = page.partition('<form method="post"')[2].partition("</form>")[0]
    found: dict[str, str] = {}
    for tag in re.findall(r"<input[^>]*>", form):
        told = dict(re.findall(r'([\w-]+)="([^"]*)"', tag))
        if "name" in told and (told.get("type") != "radio" or " checked" in tag):
            found[told["name"]] = unescape(told.get("value", ""))
    for name, options in re.findall(r'<select[^>]*name="([^"]+)"[^>]*>(.*?)</select>', form, re.S):
        (found[name],) = re.findall(r'value="([^"]*)"[^>]*selected', options)
    for name, text in re.findall(
        r'<textarea[^>]*name="([^"]+)"[^>]*>\n?(.*?)</textarea>', form, re.S
    ):
        found[name] = unescape(text)
    return found | {"action": "approve"}


def test_a_document_is_reviewed_and_answered_by_lambda_alone(cloud: Cloud, functions: Any) -> None:
    event = cloud.upload("compressor 7.pdf", (SAMPLES / "compressor.pdf").read_bytes())
    told = functions.on_upload(event, Invocation())
    assert (told["started"], told["repeated"]) == (1, 0), told
    waiting = only_run(functions.hf)
    assert (waiting.status, waiting.owner) == ("waiting", None), "no worker holds it"
    assert waiting.labels == {"file": "compressor 7.pdf"}
    (job,) = cloud.textract.jobs
    assert job["Version"] == event["Records"][0]["s3"]["object"]["versionId"]
    (notice,) = cloud.sent("reviewers")
    assert "Approve this warranty?" in notice["Message"]
    assert functions.on_upload(event, Invocation())["repeated"] == 1

    (entry,) = run_in_loop(functions.hf.reviews.list).reviews
    link = run_in_loop(lambda: functions.hf.reviews.link(entry.id, reviewer=REVIEWER))
    before = run_in_loop(lambda: functions.hf.reviews.get(entry.id))
    pages = [request(functions, "GET", urlsplit(link).path) for _ in range(2)]
    assert [page["statusCode"] for page in pages] == [200, 200]
    assert "Approve this warranty?" in pages[0]["body"]
    assert run_in_loop(lambda: functions.hf.reviews.get(entry.id)) == before
    assert only_run(functions.hf).status == "waiting", "to look changes nothing"

    form = fields_of(pages[0]["body"])
    decided = request(functions, "POST", urlsplit(link).path, form)
    assert decided["statusCode"] == 303, decided["body"]
    assert only_run(functions.hf).status == "ready", "the stream runs it"
    assert cloud.sent("tenants") == []

    newest = {"Records": cloud.stream()[-1:]}
    for _ in range(2):  # Lambda may pass a record on more than once
        assert functions.on_change(newest, Invocation()) == {"batchItemFailures": []}
    assert only_run(functions.hf).status == "finished"
    functions.on_schedule(event_named("schedule"), Invocation())
    (reminder,) = cloud.sent("tenants")
    assert reminder["MessageAttributes"]["document"]["Value"] == waiting.id
    assert reminder["Subject"].startswith("Warranty of ")
    assert len(cloud.textract.jobs) == 1, "the resume reads nothing again"


def test_an_event_starts_the_same_run_by_lambda_and_by_the_command_line(
    cloud: Cloud, functions: Any
) -> None:
    event = cloud.upload("tenants/acme/kettle & co.pdf", (SAMPLES / "compressor.pdf").read_bytes())
    unversioned = copy.deepcopy(event)
    unversioned["Records"][0]["s3"]["object"] |= {"key": "b.txt", "versionId": "null"}
    arrivals = functions.app.arrivals(functions.hf)
    for each in (event, unversioned):
        (added,) = run_in_loop(lambda each=each: arrivals.add_s3_event(each))
        assert not added.repeated
        told = functions.on_upload(each, Invocation(seconds=1.5))
        assert (told["started"], told["repeated"]) == (0, 1)
    etag = event["Records"][0]["s3"]["object"]["eTag"]
    assert added.id == object_id(BUCKET, "b.txt", f"etag-{etag}")


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("HOLDFAST_URL", "", "set HOLDFAST_URL to a table"),
        ("WARRANTY_TOPIC", "", "set WARRANTY_TOPIC to the ARN"),
    ],
)
def test_a_function_that_would_lose_what_it_writes_does_not_start(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, name: str, value: str, why: str
) -> None:
    monkeypatch.setenv(name, value)
    sys.modules.pop("warranty.functions", None)
    with pytest.raises(ValueError, match=why):
        importlib.import_module("warranty.functions")
