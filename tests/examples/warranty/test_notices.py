"""Notices: one for each key, in a folder or by SNS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import boto3
import pytest

from warranty.folder import write_once
from warranty.notices import Notice, Outbox, Topic, _subject

NOTICE = Notice("acme", "Warranty of a kettle", "It lasts 24 months.", "doc-1")


def test_a_key_sends_one_notice(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox")
    with ThreadPoolExecutor(8) as pool:
        sends = [pool.submit(outbox.send, NOTICE, idempotency_key="k1") for _ in range(50)]
        ids = {send.result() for send in sends}
    other = outbox.send(NOTICE, idempotency_key="k2")
    assert len(ids) == 1
    assert other not in ids
    assert sorted(sent["key"] for sent in outbox.sent()) == ["k1", "k2"]
    assert outbox.sent()[0]["text"] == NOTICE.text
    assert not [file for file in (tmp_path / "outbox").iterdir() if file.suffix != ".json"]


def test_of_two_writers_the_first_wins(tmp_path: Path) -> None:
    path, start = tmp_path / "file", Barrier(16)

    def write(number: int) -> bool:
        start.wait(30)
        return write_once(path, b"%d" % number)

    with ThreadPoolExecutor(16) as pool:
        wrote = list(pool.map(write, range(16)))
    assert wrote.count(True) == 1
    assert path.read_bytes() == b"%d" % wrote.index(True)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("said", "subject"),
    [
        ("Warranty of a kettle", "Warranty of a kettle"),
        ("Käthe\r\nBcc: x@example.com\x00", "K the Bcc: x@example.com"),
        ("x" * 500, "x" * 100),
        ("日本", "Your warranty"),
    ],
)
def test_a_subject_is_one_that_sns_accepts(said: str, subject: str) -> None:
    assert _subject(said) == subject


@pytest.fixture
def sns(moto_server: str) -> Any:
    return boto3.client("sns", endpoint_url=moto_server)


@pytest.fixture
def queue(moto_server: str) -> Iterator[tuple[Any, str, str]]:
    sqs: Any = boto3.client("sqs", endpoint_url=moto_server)
    url = sqs.create_queue(QueueName="notices")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]
    yield sqs, url, arn["QueueArn"]
    sqs.delete_queue(QueueUrl=url)


def test_a_notice_is_published_with_its_key(sns: Any, queue: tuple[Any, str, str]) -> None:
    sqs, url, arn = queue
    topic = sns.create_topic(Name="notices")["TopicArn"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)
    id = Topic(topic, sns).send(NOTICE, idempotency_key="k1")
    (message,) = sqs.receive_message(QueueUrl=url)["Messages"]
    told = json.loads(message["Body"])
    assert (told["MessageId"], told["Subject"], told["Message"]) == (
        id,
        NOTICE.subject,
        NOTICE.text,
    )
    attributes = {name: each["Value"] for name, each in told["MessageAttributes"].items()}
    assert attributes == {"tenant": "acme", "document": "doc-1", "idempotency_key": "k1"}


def test_a_fifo_topic_gets_the_key_to_deduplicate(sns: Any) -> None:
    asked: list[dict[str, Any]] = []

    class Client:
        def publish(self, **given: Any) -> Any:
            asked.append(given)
            return {"MessageId": "m"}

    Topic("arn:aws:sns:us-east-1:1:notices.fifo", Client()).send(NOTICE, idempotency_key="k1")
    Topic("arn:aws:sns:us-east-1:1:notices.fifo", Client()).send(NOTICE, idempotency_key="k1")
    assert {each["MessageGroupId"] for each in asked} == {"acme"}
    assert len({each["MessageDeduplicationId"] for each in asked}) == 1
