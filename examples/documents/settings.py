"""The settings of the application, from environment variables. All are optional."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Settings", "settings_from"]

_GIB = 1024**3


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What can be configured. Without any of it everything runs on this machine."""

    data: Path
    """The folder for the SQLite file and for the files that workers keep at hand."""
    store_url: str
    model_small: str | None = None
    """The id of a model on Bedrock; None for the model that follows rules."""
    model_large: str | None = None
    guardrail: str | None = None
    tolerate: float = 0.05
    """The share of a document's segments that may fail."""
    concurrency: int = 8
    """How many segments of one document all workers together analyse at a time."""
    readers: int = 4
    """How many groups of pages of one document all workers together read at a time."""
    share: bool = True
    """Whether equal segments of a tenant's documents share one answer of a model for a day."""
    image_pixels: int = 2_000_000
    """How many pixels the image of a page has at most."""
    cache_bytes_max: int = 2 * _GIB
    transcribe_output: str | None = None
    """Where in S3 Amazon Transcribe may write; None if it is not configured."""
    data_automation: str | None = None
    """The ARN of a profile of Bedrock Data Automation; None to leave that step out."""
    automation_output: str | None = None
    """Where in S3 it may write."""
    region: str | None = None

    @property
    def cache(self) -> Path:
        return self.data / "cache"


def settings_from(environment: Mapping[str, str] | None = None) -> Settings:
    """Return the settings in an environment, by default that of this process.

    Raises:
        ValueError: a value is out of range, or only one of the two models is set.
    """
    given = os.environ if environment is None else environment
    data = Path(given.get("DOCUMENTS_DATA") or "documents-data").absolute()
    small, large = given.get("DOCUMENTS_MODEL_SMALL"), given.get("DOCUMENTS_MODEL_LARGE")
    if bool(small) != bool(large):
        raise ValueError("set both of DOCUMENTS_MODEL_SMALL and DOCUMENTS_MODEL_LARGE, or neither")
    profile, written = given.get("DOCUMENTS_BDA_PROFILE"), given.get("DOCUMENTS_BDA_OUTPUT")
    if bool(profile) != bool(written):
        raise ValueError("set both of DOCUMENTS_BDA_PROFILE and DOCUMENTS_BDA_OUTPUT, or neither")
    return Settings(
        data=data,
        store_url=given.get("HOLDFAST_URL") or f"sqlite:///{data}/documents.db",
        model_small=small or None,
        model_large=large or None,
        guardrail=given.get("DOCUMENTS_GUARDRAIL") or None,
        tolerate=_share(given, "DOCUMENTS_TOLERATE", 0.05),
        concurrency=_whole(given, "DOCUMENTS_CONCURRENCY", 8, range(1, 1_001)),
        readers=_whole(given, "DOCUMENTS_READERS", 4, range(1, 101)),
        share=given.get("DOCUMENTS_SHARE", "") != "0",
        image_pixels=_whole(given, "DOCUMENTS_IMAGE_PIXELS", 2_000_000, range(10_000, 20_000_001)),
        cache_bytes_max=_whole(given, "DOCUMENTS_CACHE_BYTES", 2 * _GIB, range(1024**2, 2**50)),
        transcribe_output=_s3(given, "DOCUMENTS_TRANSCRIBE_OUTPUT"),
        data_automation=profile or None,
        automation_output=_s3(given, "DOCUMENTS_BDA_OUTPUT"),
        region=given.get("AWS_REGION") or given.get("AWS_DEFAULT_REGION") or None,
    )


def _s3(given: Mapping[str, str], name: str) -> str | None:
    uri = given.get(name) or None
    if uri is not None and not uri.startswith("s3://"):
        raise ValueError(f"{name} must be an address such as s3://bucket/folder/, got {uri!r:.120}")
    return uri


def _share(given: Mapping[str, str], name: str, default: float) -> float:
    text = given.get(name) or str(default)
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ValueError(f"{name} must be a share from 0 to 1, got {text!r:.80}")
    return share


def _whole(given: Mapping[str, str], name: str, default: int, among: range) -> int:
    text = given.get(name) or str(default)
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
    if number not in among:
        raise ValueError(
            f"{name} must be a whole number from {among[0]:,} to {among[-1]:,}, got {text!r:.80}"
        )
    return number
