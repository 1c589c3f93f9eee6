"""Keys of blobs: everything that is kept beside the table."""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast.records.keys import RunKey, answer_key
from holdfast.storage import Key

__all__ = ["PROBE_BLOB", "AnswerBlob", "RunBlobs", "answer_blob_of", "blob_prefix", "run_blobs_of"]

# class / tenant / run / generation, a UUIDv7, and then a name.
_RUN_BLOB = re.compile(
    r"(keep-[0-9]+d)/([^/#]+)/([^/#]+)/"
    r"([0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})/."
)

# class / tenant / "answers" / digest / a UUIDv7. No generation is in the place of the digest.
_ANSWER_BLOB = re.compile(
    r"(keep-[0-9]+d)/([^/#]+)/answers/([0-9a-f]+)/"
    r"([0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})"
)

PROBE_BLOB = "keep-10d/probe"
"""What a worker writes and deletes to learn whether blobs can be used again."""


def blob_prefix(retention_class: str, run: RunKey, generation: str) -> str:
    """Return the prefix of everything that a run keeps beside the table."""
    return f"{retention_class}/{run.tenant}/{run.id}/{generation}/"


class RunBlobs(NamedTuple):
    """Everything that one life of a run keeps beside the table."""

    retention_class: str
    key: RunKey
    generation: str

    @property
    def prefix(self) -> str:
        return blob_prefix(*self)

    @property
    def made_ms(self) -> int:
        """When the generation was made."""
        return _made_ms(self.generation)


def run_blobs_of(blob_key: str) -> RunBlobs | None:
    """Return whose a blob is; None where it is not that of a run."""
    found = _RUN_BLOB.match(blob_key)
    return None if found is None else RunBlobs(found[1], RunKey(found[2], found[3]), found[4])


class AnswerBlob(NamedTuple):
    """A shared answer that lies beside the table."""

    retention_class: str
    tenant: str
    digest: str
    """In hexadecimal digits, as in the key of its item."""
    id: str

    @property
    def blob_key(self) -> str:
        return f"{self.retention_class}/{self.tenant}/answers/{self.digest}/{self.id}"

    @property
    def key(self) -> Key:
        """The key of the item that names it, unless that names another one by now."""
        return answer_key(self.tenant, bytes.fromhex(self.digest))

    @property
    def made_ms(self) -> int:
        """When it was made."""
        return _made_ms(self.id)


def answer_blob_of(blob_key: str) -> AnswerBlob | None:
    """Return which shared answer a blob is; None where it is none."""
    found = _ANSWER_BLOB.fullmatch(blob_key)
    return None if found is None or len(found[3]) % 2 else AnswerBlob(*found.groups())


def _made_ms(id: str) -> int:
    """Return when an id was made: a UUIDv7 begins with its time."""
    return int(id[:8] + id[9:13], 16)
