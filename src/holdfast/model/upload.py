"""Files and uploads of documents as callers see them."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

from holdfast.model.json_form import JsonForm

__all__ = ["StoredFile", "Upload", "UploadStatus", "UploadSweep"]

UploadStatus: TypeAlias = Literal["open", "complete", "processed", "rejected"]
"""The status of an upload. ``complete``: all bytes are stored, and the document is about to be
added. ``processed``: the document is added, and its pipeline runs."""


class StoredFile(JsonForm, frozen=True, kw_only=True):
    """A file whose content is stored in parts."""

    uri: str
    """Its address, with which `DocumentFiles.read` finds it."""
    name: str
    bytes: int
    sha256: str
    """The hash of the whole content, 64 hexadecimal digits."""
    document: str
    """The id of the document below whose prefix it is stored."""


class Upload(JsonForm, frozen=True, kw_only=True):
    """A document on its way in: a file that arrives in parts, or the address of one."""

    id: str
    tenant: str
    project: str
    status: UploadStatus
    name: str
    file_type: str
    """The type that the sender names; the type that was found once the file is stored."""
    length: int
    """The size of the file in bytes; 0 if it is not sent but named by an address."""
    offset: int
    """How many bytes are stored."""
    document: str
    """The id of the document that it becomes."""
    workflow: str
    """The id of the workflow that processes the document."""
    source: str = ""
    """The address of the file or of the page, if it is not sent."""
    error: str | None = None
    """Why the file was rejected."""
    created_at: datetime
    expires_at: datetime
    """When an upload that is not complete is removed."""


class UploadSweep(JsonForm, frozen=True, kw_only=True):
    """What a sweep of uploads did."""

    removed: int = 0
    """Uploads that had expired."""
    finished: int = 0
    """Uploads whose process died before it started the pipeline."""
    failed: int = 0
    """Uploads that could not be finished now; the next sweep tries again."""
