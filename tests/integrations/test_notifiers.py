"""Notifiers that use services: Slack-compatible webhooks, signed webhooks, and Amazon SNS."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from moto import mock_aws
from standardwebhooks import Webhook as Verifier

from holdfast.errors import InvalidRequest, NoAddress, TargetRefused
from holdfast.integrations.notice_webhook import WebhookNotifier
from holdfast.integrations.slack import SlackNotifier
from holdfast.integrations.sns import SnsNotifier, subject_of
from holdfast.network.json_posts import PostFailed
from tests.network.receiver import Receiver, receiving
from tests.review.notices import LINK, PAGE, QUESTION, notice

SECRET = "whsec_" + "QUFB" * 10
REGION = "eu-central-1"


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as running:
        yield running


# --- Slack ----------------------------------------------------------------------------------------


def buttons(message: dict[str, Any]) -> list[str]:
    return [
        element["url"]
        for block in message["blocks"]
        for element in block.get("elements", ())
        if element["type"] == "button"
    ]


async def test_a_channel_gets_the_question_and_a_button(receiver: Receiver) -> None:
    expires_at = datetime(2026, 11, 25, 12, 30, tzinfo=UTC)
    await SlackNotifier(receiver.url, allow=[receiver.host]).send(notice(expires_at=expires_at))
    (request,) = receiver.requests
    message = json.loads(request.body)
    assert message["blocks"][1]["text"] == {"type": "plain_text", "text": QUESTION}
    assert "decide before 2026-11-25 12:30 UTC" in message["blocks"][2]["elements"][0]["text"]
    assert QUESTION in message["text"]
    # Many people read the channel: they must not decide in the name of the reviewer.
    assert buttons(message) == [PAGE]
    assert LINK not in request.body.decode()


async def test_a_channel_of_ones_own_gets_the_link(receiver: Receiver) -> None:
    own = SlackNotifier(channels={"Ana@example.com": receiver.url}, allow=[receiver.host])
    shared = SlackNotifier(receiver.url, links=True, allow=[receiver.host])
    for notifier in (own, shared):
        await notifier.send(notice())
    assert [buttons(json.loads(each.body)) for each in receiver.requests] == [[LINK], [LINK]]
    for reviewer in ("bob", None):
        with pytest.raises(NoAddress):
            await own.send(notice(reviewer=reviewer))


async def test_without_a_server_a_channel_gets_the_command(receiver: Receiver) -> None:
    notifier = SlackNotifier(receiver.url, allow=[receiver.host])
    await notifier.send(notice(link=None, page=None))
    message = json.loads(receiver.requests[0].body)
    assert buttons(message) == []
    assert message["blocks"][-1]["elements"][0]["text"].startswith("holdfast review show")


async def test_a_question_cannot_mention_people_or_make_links(receiver: Receiver) -> None:
    hostile = "<!channel> <https://evil.example|Approve> & <@U1>" + "x" * 10_000
    made = notice(question=hostile, subject=hostile, reviewer="<!here>")
    await SlackNotifier(receiver.url, allow=[receiver.host]).send(made)
    message = json.loads(receiver.requests[0].body)
    assert message["blocks"][1]["text"]["type"] == "plain_text"
    assert len(message["blocks"][1]["text"]["text"]) <= 3_000
    marked = [message["text"].replace(f"<{PAGE}|Open the review>", "")] + [
        element["text"]
        for block in message["blocks"]
        for element in (block.get("text"), *block.get("elements", ()))
        if element and element.get("type") == "mrkdwn"
    ]
    assert not any("<" in text for text in marked)


@pytest.mark.parametrize("status", [302, 400, 404, 500])
async def test_a_channel_that_refuses_is_an_error_without_its_address(
    receiver: Receiver, status: int
) -> None:
    receiver.answer = lambda _: status
    with pytest.raises(PostFailed, match=str(status)) as failed:
        await SlackNotifier(receiver.url, allow=[receiver.host]).send(notice())
    assert "/hook" not in str(failed.value)


def test_addresses_that_are_not_public_are_refused() -> None:
    for url in ("http://127.0.0.1:9/x", "https://10.0.0.1/x", "http://hooks.slack.com/x", "x"):
        with pytest.raises(TargetRefused):
            SlackNotifier(url)
        with pytest.raises(TargetRefused):
            SlackNotifier(channels={"ana": url})
        with pytest.raises(TargetRefused):
            WebhookNotifier(url, secret=SECRET)
    with pytest.raises(InvalidRequest):
        SlackNotifier()


# --- signed webhooks ------------------------------------------------------------------------------


async def test_a_receiver_can_verify_a_notice(receiver: Receiver) -> None:
    notifier = WebhookNotifier(receiver.url, secret=SECRET, allow=[receiver.host])
    now = datetime.now(UTC)  # noqa: TID251 - the library of the receiver checks the real time
    await notifier.send(notice(at=now))
    await notifier.send(notice(at=now))
    first, second = receiver.requests
    message = Verifier(SECRET).verify(first.body, first.headers)
    assert message["type"] == "review.requested"
    data = message["data"]
    assert (data["reviewer"], data["question"], data["link"]) == (
        "ana@example.com", QUESTION, LINK,
    )  # fmt: skip
    assert data["review"]["id"] == "c-1~0123456789abcdef"
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == "ntc_0123"


async def test_a_receiver_that_fails_is_an_error(receiver: Receiver) -> None:
    receiver.answer = lambda _: 503
    notifier = WebhookNotifier(receiver.url, secret=SECRET, allow=[receiver.host])
    with pytest.raises(PostFailed, match="503"):
        await notifier.send(notice())


@pytest.mark.parametrize("secret", ["", "hunter2", "whsec_", "whsec_!!!", None])
def test_a_wrong_secret_is_refused_and_not_shown(secret: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        WebhookNotifier("https://hooks.example/x", secret=secret)
    assert not secret or secret not in str(refused.value).replace("'whsec_'", "")


# --- SNS ------------------------------------------------------------------------------------------


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        yield


def topic_with_queue(name: str) -> tuple[str, Any]:
    """Return a topic, and a function that reads what its subscriber got."""
    sns, sqs = boto3.client("sns", REGION), boto3.client("sqs", REGION)
    fifo = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
    attributes = {"FifoTopic": "true"} if fifo else {}
    topic = sns.create_topic(Name=name, Attributes=attributes)["TopicArn"]
    url = sqs.create_queue(QueueName=name, Attributes=fifo)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn["Attributes"]["QueueArn"])

    def received() -> list[dict[str, Any]]:
        found = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])
        return [json.loads(message["Body"]) for message in found]

    return topic, received


async def test_a_topic_gets_the_notice_without_the_link_of_the_reviewer(aws: None) -> None:
    topic, received = topic_with_queue("reviews")
    await SnsNotifier(topic).send(notice())
    (message,) = received()
    assert message["Subject"] == f"Please decide: {QUESTION}"
    assert PAGE in message["Message"]
    assert LINK not in message["Message"]
    assert message["MessageAttributes"]["notice"]["Value"] == "ntc_0123"


async def test_a_topic_of_ones_own_gets_the_link(aws: None) -> None:
    topic, received = topic_with_queue("ana")
    notifier = SnsNotifier(topics={"Ana@example.com": topic})
    await notifier.send(notice())
    (message,) = received()
    assert LINK in message["Message"]
    with pytest.raises(NoAddress):
        await notifier.send(notice(reviewer="bob"))


async def test_a_fifo_topic_drops_a_repeat(aws: None) -> None:
    topic, received = topic_with_queue("reviews.fifo")
    notifier = SnsNotifier(topic, links=True)
    await notifier.send(notice())
    await notifier.send(notice())
    assert len(received()) == 1


async def test_a_topic_that_is_gone_is_an_error(aws: None) -> None:
    with pytest.raises(Exception, match="NotFound"):
        await SnsNotifier(f"arn:aws:sns:{REGION}:123456789012:gone").send(notice())


@pytest.mark.parametrize("arguments", [{}, {"topic": "reviews"}, {"topics": {"ana": "x:y"}}])
def test_wrong_topics_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="topic"):
        SnsNotifier(**arguments)


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("Please decide", "Please decide"),
        ("Prüfen\r\n\tSie: 保証", "Pr?fen Sie: ??"),
        ("x" * 200, "x" * 97 + "..."),
        ("\n \t", "Review"),
    ],
)
def test_a_subject_is_what_sns_accepts(text: str, subject: str) -> None:
    assert subject_of(text) == subject
