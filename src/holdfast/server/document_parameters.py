"""Parameters and bodies of the routes of documents."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar.params import PathParameter, QueryParameter
from msgspec import Meta, UnsetType

from holdfast.model.document import DocumentStep, WorkflowStatus
from holdfast.model.json_form import JsonForm
from holdfast.server.parameters import NameText

__all__ = [
    "AfterSegment",
    "DocumentId",
    "DocumentRetryBody",
    "FileName",
    "NewProject",
    "ProcessBody",
    "ProjectChange",
    "ProjectId",
    "SegmentIndex",
    "SourceBody",
    "StatusQuery",
    "StepList",
    "WorkflowCounts",
    "WorkflowId",
]

ProjectId = Annotated[
    str, PathParameter(description="The project's id.", min_length=1, max_length=128)
]
DocumentId = Annotated[
    str, PathParameter(description="The document's id.", min_length=1, max_length=128)
]
WorkflowId = Annotated[
    str, PathParameter(description="The workflow's id.", min_length=1, max_length=128)
]
SegmentIndex = Annotated[
    int, PathParameter(description="The segment's index, from 1.", ge=1, le=9_999_999)
]
AfterSegment = Annotated[
    int, QueryParameter(ge=0, le=9_999_999, description="The index of the last segment known.")
]
FileName = Annotated[
    str | None,
    QueryParameter(min_length=1, max_length=512, description="The name of the file."),
]
StatusQuery = Annotated[WorkflowStatus, QueryParameter(description="The status of the workflows.")]

_Name = Annotated[str, Meta(min_length=1, max_length=1024)]
_Word = Annotated[str, Meta(min_length=1, max_length=128)]
_Prompt = Annotated[str, Meta(max_length=8192)]
_Days = Annotated[int, Meta(ge=1, le=36_500)]


class NewProject(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A project to create."""

    name: _Name
    id: NameText | None = None
    language: _Word = "en"
    document_prompt: _Prompt = ""
    ocr_model: _Word = "pp-ocrv5"
    pipeline: _Word = "documents"
    """The graph that processes its documents."""
    retention_days: _Days | None = None


class ProjectChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to change of a project; the rest stays."""

    name: _Name | UnsetType = msgspec.UNSET
    language: _Word | UnsetType = msgspec.UNSET
    document_prompt: _Prompt | UnsetType = msgspec.UNSET
    ocr_model: _Word | UnsetType = msgspec.UNSET
    pipeline: _Word | UnsetType = msgspec.UNSET
    retention_days: _Days | UnsetType | None = msgspec.UNSET


class SourceBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a document is that is not sent: an ``address`` of the web, or a ``uri`` of S3."""

    address: Annotated[str, Meta(min_length=1, max_length=2048)] | None = None
    uri: Annotated[str, Meta(min_length=1, max_length=2048)] | None = None
    name: Annotated[str, Meta(min_length=1, max_length=512)] | None = None


class ProcessBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How to process a document again: as its project says now."""


class DocumentRetryBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to retry: the failed workflow, or one segment of it."""

    segment: Annotated[int, Meta(ge=1, le=9_999_999)] | None = None


class StepList(JsonForm, frozen=True):
    """The steps of a workflow, in their order."""

    steps: list[DocumentStep]


class WorkflowCounts(JsonForm, frozen=True, kw_only=True):
    """How many workflows of a tenant have each status."""

    pending: int
    in_progress: int
    completed: int
    failed: int
