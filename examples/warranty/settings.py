"""The settings of the application, from environment variables. All are optional."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Settings", "settings_from"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What can be configured. Without any of it everything runs on this machine."""

    data: Path
    """The folder for documents that arrived, notices that were sent, and the SQLite file."""
    store_url: str
    model_small: str | None = None
    """The id of a model on Bedrock; None for the model that follows rules."""
    model_large: str | None = None
    guardrail: str | None = None
    topic: str | None = None
    """The ARN of an SNS topic for notices to tenants; None for a folder."""
    review_topic: str | None = None
    """The ARN of an SNS topic for reviewers, who are told of reviews; None for the log."""
    region: str | None = None
    endpoint: str | None = None
    """The address of Textract and SNS, for tests."""
    reviewers: tuple[str, ...] = ()
    """Who may decide; empty for all who may review."""
    escalate_to: tuple[str, ...] = ()

    @property
    def documents(self) -> Path:
        return self.data / "documents"

    @property
    def outbox(self) -> Path:
        return self.data / "outbox"

    @property
    def passwords(self) -> Path:
        return self.data / "passwords.txt"


def settings_from(environment: Mapping[str, str] | None = None) -> Settings:
    """Return the settings in an environment, by default that of this process.

    Raises:
        ValueError: only one of the two models is set, or a topic is no ARN of SNS.
    """
    given = os.environ if environment is None else environment
    data = Path(given.get("WARRANTY_DATA") or "warranty-data").absolute()
    small, large = given.get("WARRANTY_MODEL_SMALL"), given.get("WARRANTY_MODEL_LARGE")
    if bool(small) != bool(large):
        raise ValueError("set both of WARRANTY_MODEL_SMALL and WARRANTY_MODEL_LARGE, or neither")
    topic, review_topic = (_topic(given, name) for name in ("TOPIC", "REVIEW_TOPIC"))
    told_region = (topic or review_topic or ":::").split(":")[3]
    return Settings(
        data=data,
        store_url=given.get("HOLDFAST_URL") or f"sqlite:///{data}/warranty.db",
        model_small=small or None,
        model_large=large or None,
        guardrail=given.get("WARRANTY_GUARDRAIL") or None,
        topic=topic,
        review_topic=review_topic,
        region=given.get("AWS_REGION") or given.get("AWS_DEFAULT_REGION") or told_region or None,
        endpoint=given.get("WARRANTY_AWS_ENDPOINT") or None,
        reviewers=_names(given.get("WARRANTY_REVIEWERS", "")),
        escalate_to=_names(given.get("WARRANTY_ESCALATE_TO", "")),
    )


def _topic(given: Mapping[str, str], name: str) -> str | None:
    arn = given.get(f"WARRANTY_{name}") or None
    if arn is not None and not re.fullmatch(r"arn:[\w-]+:sns:[\w-]+:\d+:[\w-]+(\.fifo)?", arn):
        raise ValueError(
            f"WARRANTY_{name} must be the ARN of a topic, such as "
            f"arn:aws:sns:eu-west-1:123456789012:notices, got {arn!r:.120}"
        )
    return arn


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
