"""Notices to tenants: by Amazon SNS, or into a folder on this machine."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from warranty.folder import write_once

__all__ = ["Notice", "Notices", "Outbox", "Topic"]

_SUBJECT_CHARS_MAX = 100
_NOT_IN_SUBJECTS = re.compile(r"[^\x20-\x7e]+")


@dataclass
class Notice:
    """A message to a tenant about one document."""

    tenant: str
    subject: str
    text: str
    document: str


class Notices(Protocol):
    """Sends notices. The same key sends one notice, however often it is called."""

    def send(self, notice: Notice, *, idempotency_key: str = "") -> str:
        """Send a notice, and return the id of the message."""
        ...


class Outbox:
    """Writes each notice into a file, which is named after its key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def send(self, notice: Notice, *, idempotency_key: str = "") -> str:
        message = _digest(idempotency_key)
        written = json.dumps({"key": idempotency_key, **asdict(notice)}, indent=2).encode()
        write_once(self._folder / f"{message}.json", written)
        return message

    def sent(self) -> list[dict[str, str]]:
        """Return the notices that were sent, each with its key."""
        return [json.loads(file.read_bytes()) for file in sorted(self._folder.glob("*.json"))]


class Topic:
    """Publishes notices to an SNS topic.

    A FIFO topic drops a second message of the same key for five minutes. A standard topic does not:
    then a notice that was published just before a crash is published again, under the same key,
    which subscribers find in the attribute ``idempotency_key``.
    """

    def __init__(self, arn: str, client: Any) -> None:
        """``client`` is a boto3 client for ``sns``."""
        self._arn, self._client = arn, client

    def send(self, notice: Notice, *, idempotency_key: str = "") -> str:
        attributes = {
            "tenant": notice.tenant,
            "document": notice.document,
            "idempotency_key": idempotency_key,
        }
        fifo: dict[str, str] = {}
        if self._arn.endswith(".fifo"):
            fifo = {
                "MessageGroupId": notice.tenant,
                "MessageDeduplicationId": _digest(idempotency_key),
            }
        answer = self._client.publish(
            TopicArn=self._arn,
            Subject=_subject(notice.subject),
            Message=notice.text,
            MessageAttributes={
                name: {"DataType": "String", "StringValue": value}
                for name, value in attributes.items()
            },
            **fifo,
        )
        return answer["MessageId"]


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def _subject(text: str) -> str:
    """Return a subject that SNS accepts: short and ASCII, whatever a document says."""
    cleaned = _NOT_IN_SUBJECTS.sub(" ", text).strip()
    return cleaned[:_SUBJECT_CHARS_MAX].strip() or "Your warranty"
