"""`SnsNotifier`: publishes notices to topics of Amazon SNS, which send mails or messages."""

# boto3 has no types: what comes from it is Any here.
from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.errors import InvalidRequest, NoAddress
from holdfast.review.notice import Notice

__all__ = ["SnsNotifier"]

_SUBJECT_CHARS_MAX = 100
# SNS takes 256 KB.
_MESSAGE_CHARS_MAX = 50_000
_THREADS_MAX = 8
_SECONDS = 10


class SnsNotifier:
    """Publishes each notice to a topic.

    In a topic of their own, reviewers get their links. In the topic for all, notices have the
    address of the page for people who can sign in.
    """

    def __init__(
        self,
        topic: str | None = None,
        *,
        topics: Mapping[str, str] | None = None,
        links: bool = False,
        region: str | None = None,
        client: Any = None,
        name: str = "sns",
    ) -> None:
        """Publish to the topic of this ARN, or to that of a reviewer in ``topics``.

        Without ``topic``, reviewers who are not in ``topics`` have no address. With
        ``links=True`` the topic for all gets the links of reviewers, too: each subscriber can
        decide in their names. ``client`` is a client of boto3; by default one for ``region``, or
        for the region in the ARN.

        Raises:
            InvalidRequest: there is no topic, or one is not an ARN of SNS.
            ImportError: the extra ``aws`` is not installed.
        """
        self.name = name
        self._topics = {name.casefold(): each for name, each in (topics or {}).items()}
        self._topic = topic
        self._links = links
        arns = [each for each in (topic, *self._topics.values()) if each is not None]
        if not arns:
            raise InvalidRequest("pass topic or topics", field="topic")
        for arn in arns:
            if not isinstance(arn, str) or not arn.startswith("arn:") or arn.count(":") != 5:
                raise InvalidRequest(
                    f"topic must be an ARN such as arn:aws:sns:eu-central-1:123456789012:reviews, "
                    f"got {arn!r:.120}",
                    field="topic",
                )
        self._client = client or _client(region or arns[0].split(":")[3])
        self._threads = ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="holdfast-sns")

    async def send(self, notice: Notice) -> None:
        """Publish a notice.

        Raises:
            NoAddress: there is no topic for the reviewer.
            Exception: boto3 could not publish it.
        """
        name = (notice.reviewer or "").casefold()  # upper and lower case are the same
        topic = self._topics.get(name, self._topic)
        if topic is None:
            raise NoAddress
        text = notice.text
        if notice.link and not (self._links or name in self._topics):
            text = text.replace(notice.link, notice.page or notice.command)
        request: dict[str, Any] = {
            "TopicArn": topic,
            "Subject": subject_of(notice.subject),
            "Message": text[:_MESSAGE_CHARS_MAX],
            "MessageAttributes": {
                "notice": {"DataType": "String", "StringValue": notice.id},
                "kind": {"DataType": "String", "StringValue": notice.kind},
            },
        }
        if topic.endswith(".fifo"):
            request |= {
                "MessageGroupId": notice.review.id,
                "MessageDeduplicationId": notice.id,
            }
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, lambda: self._client.publish(**request))


def subject_of(text: str) -> str:
    """Return a subject that SNS accepts: at most 100 ASCII characters, no control characters, and
    a letter, a digit or a punctuation mark at its beginning.
    """
    ascii_text = text.encode("ascii", "replace").decode()
    visible = "".join(letter if letter.isprintable() else " " for letter in ascii_text)
    subject = " ".join(visible.split())
    if len(subject) > _SUBJECT_CHARS_MAX:
        subject = f"{subject[: _SUBJECT_CHARS_MAX - 3].rstrip()}..."
    return subject or "Review"


def _client(region: str) -> Any:
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=_SECONDS, read_timeout=_SECONDS, retries={"total_max_attempts": 1}
    )
    session: Any = boto3
    return session.client("sns", region_name=region, config=config)
