"""Documents: their ids, and the state of the pipeline that handles one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Literal

from holdfast.errors import InvalidRequest
from holdfast.integrations.aws_lambda import S3Object, object_id

LOCAL_BUCKET = "local"
"""The name that stands for the folder of this application where others have a bucket."""

ETAG = "etag-"
"""Before the ETag, where others have the id of a version in S3."""

_DEFAULT_TENANT = "default"
_TENANT_KEY = re.compile(r"tenants/([A-Za-z0-9][A-Za-z0-9._-]{0,63})/.")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._()-]{0,62}[A-Za-z0-9)]")

Risk = Literal["low", "medium", "high"]


@dataclass
class Fields:
    """What a warranty says."""

    product: str
    serial: str
    customer: str
    purchased: str
    price_usd: float
    months: int
    coverage: str
    exclusions: list[str]


NO_FIELDS = Fields(
    product="",
    serial="",
    customer="",
    purchased="",
    price_usd=0.0,
    months=0,
    coverage="",
    exclusions=[],
)
"""The fields of a document that no model could read."""


@dataclass
class Verdict:
    """What a model says about a warranty, its reasons first: then it thinks of them first."""

    reasons: list[str]
    risk: Risk
    confidence: float


@dataclass
class Correction:
    """What a reviewer may change before approving."""

    product: str
    months: int
    risk: Risk


@dataclass
class Outcome:
    """How the review ended."""

    status: str
    by: str
    comment: str
    at: str


@dataclass
class AuditEntry:
    """One thing that happened to a document."""

    what: str
    by: str
    """The service, the model or the person."""
    at: str
    usd: float = 0.0
    note: str = ""


@dataclass
class Warranty:
    """The state of the pipeline. A document arrives with the first three fields."""

    bucket: str
    key: str
    version: str
    text: str = ""
    pages: int = 0
    fields: Fields | None = None
    risk: Risk | None = None
    confidence: float = 0.0
    reasons: list[str] = field(default_factory=list[str])
    model: str = ""
    """The model whose verdict counts."""
    flags: list[str] = field(default_factory=list[str])
    """What guardrails flagged in any call."""
    audit: list[AuditEntry] = field(default_factory=list[AuditEntry])
    decision: Outcome | None = None
    reminder: str = ""
    notice: str = ""
    """The id of the message to the tenant."""

    @property
    def id(self) -> str:
        """The id of its run."""
        return object_id(self.bucket, self.key, self.version)

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


def document_of(uploaded: S3Object) -> Warranty:
    """Return the document that was uploaded to S3.

    In a bucket without versions its ETag stands for the version, so an upload of the same content
    is the same document.

    Raises:
        InvalidRequest: the event has neither a version nor an ETag.
    """
    if not (uploaded.version_id or uploaded.etag):
        raise InvalidRequest(
            f"an event of S3 must have a version or an ETag of {uploaded.key!r:.200}", field="s3"
        )
    version = uploaded.version_id or f"{ETAG}{uploaded.etag}"
    return Warranty(uploaded.bucket, uploaded.key, version)


def tenant_of(key: str) -> str:
    """Return the tenant that a document belongs to: ``tenants/acme/kettle.pdf`` is acme's."""
    found = _TENANT_KEY.match(key)
    return found[1] if found else _DEFAULT_TENANT


def labels_of(key: str) -> dict[str, str]:
    """Return the labels of a run: the name of the file, if a label can have it."""
    name = PurePosixPath(key).name
    return {"file": name} if _LABEL.fullmatch(name) else {}
