"""The keys of blobs."""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast.records.keys import RunKey, answer_key
from holdfast.storage import Key

__all__ = [
    "PROBE_BLOB",
    "AnswerBlob",
    "DocumentBlobs",
    "RunBlobs",
    "answer_blob_of",
    "blob_prefix",
    "document_blob_prefix",
    "document_blobs_of",
    "run_blobs_of",
]

# class / tenant / run / generation (a UUIDv7) / name
_RUN_BLOB = re.compile(
    r"(keep-[0-9]+d)/([^/#]+)/([^/#]+)/"
    r"([0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})/."
)

# class / tenant / "answers" / digest / a UUIDv7. A digest never looks like a generation.
_ANSWER_BLOB = re.compile(
    r"(keep-[0-9]+d)/([^/#]+)/answers/([0-9a-f]+)/"
    r"([0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})"
)

# "documents" / tenant / document / generation (a UUIDv7) / name
_DOCUMENT_BLOB = re.compile(
    r"documents/([^/#]+)/([^/#]+)/"
    r"([0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})/."
)

PROBE_BLOB = "keep-10d/probe"
"""A worker writes and deletes this blob to check whether blobs are usable again."""


def blob_prefix(retention_class: str, run: RunKey, generation: str) -> str:
    """Return the prefix of all blobs of a run."""
    return f"{retention_class}/{run.tenant}/{run.id}/{generation}/"


class RunBlobs(NamedTuple):
    """The blobs of one generation of a run."""

    retention_class: str
    key: RunKey
    generation: str

    @property
    def prefix(self) -> str:
        return blob_prefix(*self)

    @property
    def made_ms(self) -> int:
        """When the generation was created."""
        return _made_ms(self.generation)


def run_blobs_of(blob_key: str) -> RunBlobs | None:
    """Return the run of a blob; None if it belongs to no run."""
    found = _RUN_BLOB.match(blob_key)
    return None if found is None else RunBlobs(found[1], RunKey(found[2], found[3]), found[4])


class AnswerBlob(NamedTuple):
    """The blob of a shared answer."""

    retention_class: str
    tenant: str
    digest: str
    """Hexadecimal, as in the key of the item."""
    id: str

    @property
    def blob_key(self) -> str:
        return f"{self.retention_class}/{self.tenant}/answers/{self.digest}/{self.id}"

    @property
    def key(self) -> Key:
        """The key of the item of the answer. The item may refer to a newer blob."""
        return answer_key(self.tenant, bytes.fromhex(self.digest))

    @property
    def made_ms(self) -> int:
        """When the blob was created."""
        return _made_ms(self.id)


def answer_blob_of(blob_key: str) -> AnswerBlob | None:
    """Return the shared answer of a blob; None if it is not one."""
    found = _ANSWER_BLOB.fullmatch(blob_key)
    return None if found is None or len(found[3]) % 2 else AnswerBlob(*found.groups())


def document_blob_prefix(tenant: str, document: str, generation: str) -> str:
    """Return the prefix of all blobs of a document. They have no class: they are kept with it."""
    return f"documents/{tenant}/{document}/{generation}/"


class DocumentBlobs(NamedTuple):
    """The blobs of one generation of a document."""

    tenant: str
    document: str
    generation: str

    @property
    def prefix(self) -> str:
        return document_blob_prefix(*self)

    @property
    def made_ms(self) -> int:
        """When the generation was created."""
        return _made_ms(self.generation)


def document_blobs_of(blob_key: str) -> DocumentBlobs | None:
    """Return the document of a blob; None if it belongs to none."""
    found = _DOCUMENT_BLOB.match(blob_key)
    return None if found is None else DocumentBlobs(found[1], found[2], found[3])


def _made_ms(id: str) -> int:
    """Return the time in a UUIDv7."""
    return int(id[:8] + id[9:13], 16)
