"""Documents as callers see them: projects, documents, their workflows, steps and segments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias, get_args

from holdfast.model.json_form import JsonForm

__all__ = [
    "PREPROCESS_STAGES",
    "STEPS",
    "STEP_LABELS",
    "STEP_STATUSES",
    "WORKFLOW_STATUSES",
    "Document",
    "DocumentConnection",
    "DocumentKind",
    "DocumentPage",
    "DocumentPlace",
    "DocumentSegment",
    "DocumentSegmentPage",
    "DocumentStep",
    "DocumentWorkflow",
    "DocumentWorkflowPage",
    "Project",
    "ProjectPage",
    "StepName",
    "StepStatus",
    "WorkflowStatus",
]

DocumentKind: TypeAlias = Literal["DOC", "WEB"]
"""``WEB``: the document was read from the web."""

WorkflowStatus: TypeAlias = Literal["pending", "in_progress", "completed", "failed"]
"""The status of the processing of a document."""

StepStatus: TypeAlias = Literal["pending", "in_progress", "completed", "failed", "skipped"]
"""The status of a step, of a preprocessing stage, or of a segment."""

StepName: TypeAlias = Literal[
    "segment_prep",
    "bda_processor",
    "format_parser",
    "paddleocr_processor",
    "transcribe",
    "webcrawler",
    "segment_builder",
    "segment_analyzer",
    "graph_builder",
    "document_summarizer",
]
"""A step of the processing of a document."""

WORKFLOW_STATUSES: tuple[WorkflowStatus, ...] = get_args(WorkflowStatus)
STEP_STATUSES: tuple[StepStatus, ...] = get_args(StepStatus)
STEPS: tuple[StepName, ...] = get_args(StepName)
"""The steps of the processing of a document, in their order."""

STEP_LABELS: Mapping[StepName, str] = {
    "segment_prep": "Segment preparation",
    "bda_processor": "Bedrock Document Analysis",
    "format_parser": "Format parsing",
    "paddleocr_processor": "PaddleOCR processing",
    "transcribe": "Audio transcription",
    "webcrawler": "Web crawling",
    "segment_builder": "Segment construction",
    "segment_analyzer": "AI analysis",
    "graph_builder": "Graph construction",
    "document_summarizer": "Document summarization",
}
"""What people are shown as the name of a step."""

PREPROCESS_STAGES = ("ocr", "bda", "transcribe", "webcrawler")
"""The stages before segments are built; which of them a document needs depends on its type."""


class Project(JsonForm, frozen=True, kw_only=True):
    """A project: documents that are processed alike."""

    id: str
    tenant: str
    name: str
    language: str = "en"
    document_prompt: str = ""
    """What models are told about all documents of the project."""
    ocr_model: str = "pp-ocrv5"
    pipeline: str = "documents"
    """The name of the graph that processes its documents."""
    created_at: datetime
    retention_days: int | None = None
    """How long its documents are kept after they were added; None keeps them until they are
    deleted. A change applies to documents that are added later."""


class ProjectPage(JsonForm, frozen=True):
    """A page of projects, the newest first."""

    projects: list[Project]
    cursor: str | None
    """Pass it to read the next page, which may be empty; None at the end."""

    def __iter__(self) -> Iterator[Project]:
        return iter(self.projects)


class Document(JsonForm, frozen=True, kw_only=True):
    """A document of a project. Its content is a file, not a part of the table."""

    id: str
    tenant: str
    project: str
    kind: DocumentKind = "DOC"
    file_uri: str
    file_name: str
    file_type: str
    """Its media type, such as ``application/pdf``."""
    file_bytes: int | None = None
    """The size of the file; None if it is not known."""
    created_at: datetime
    workflow: str | None = None
    """The workflow that was begun last; None before the first."""
    expires_at: datetime | None = None
    """When it is deleted by itself; None if it is kept until it is deleted."""


class DocumentPage(JsonForm, frozen=True):
    """A page of documents, in the order of their ids: those of generated ids by time."""

    documents: list[Document]
    cursor: str | None
    """Pass it to read the next page, which may be empty; None at the end."""

    def __iter__(self) -> Iterator[Document]:
        return iter(self.documents)


class DocumentPlace(JsonForm, frozen=True):
    """Where the content of a document goes that is not added yet: its id, and its blobs."""

    id: str
    generation: str
    """A UUIDv7. A document that is added again with the same id has another one."""
    prefix: str
    """The prefix of the keys of all blobs of the document; it ends with ``/``."""


class DocumentWorkflow(JsonForm, frozen=True, kw_only=True):
    """One processing of a document: its status and its facts."""

    id: str
    tenant: str
    document: str
    project: str
    kind: DocumentKind = "DOC"
    file_uri: str
    file_name: str
    file_type: str
    execution_arn: str | None = None
    """The run that processes the document: the id of a run, or the ARN of an execution on AWS."""
    status: WorkflowStatus = "pending"
    total_segments: int | None = None
    """None until the document was divided into segments."""
    preprocess: Mapping[str, StepStatus] = {}
    """The status of each stage of the preprocessing: ``ocr``, ``bda``, ``transcribe``,
    ``webcrawler``."""
    created_at: datetime
    updated_at: datetime
    """When its status was changed last."""
    error: str | None = None
    attempt: int = 1
    """How often it was begun: `Documents.begin_again` raises it."""


class DocumentWorkflowPage(JsonForm, frozen=True):
    """A page of workflows of documents."""

    workflows: list[DocumentWorkflow]
    cursor: str | None
    """Pass it to read the next page, which may be empty; None at the end."""

    def __iter__(self) -> Iterator[DocumentWorkflow]:
        return iter(self.workflows)


class DocumentStep(JsonForm, frozen=True, kw_only=True):
    """A step of a workflow."""

    name: StepName
    label: str
    status: StepStatus = "pending"
    started_at: datetime | None = None
    ended_at: datetime | None = None
    error: str | None = None
    done: int = 0
    """How many parts of the step are done."""
    total: int | None = None
    """How many parts it has; None if that is not known."""


class DocumentSegment(JsonForm, frozen=True, kw_only=True):
    """A segment of a document, such as a page."""

    workflow: str
    index: int
    """From 1."""
    s3_key: str | None = None
    """The key of the blob with the content of the segment."""
    image_uri: str | None = None
    image_analysis: Sequence[Any] = ()
    """What models found out about it. Lists of segments leave a large one out: see ``preview``."""
    status: StepStatus = "completed"
    error: str | None = None
    preview: str | None = None
    """The beginning of an analysis that is too large for the item; None for a small one."""


class DocumentSegmentPage(JsonForm, frozen=True):
    """A page of segments, in their order."""

    segments: list[DocumentSegment]
    cursor: int | None
    """Pass it as ``after`` to read the next page, which may be empty; None at the end."""

    def __iter__(self) -> Iterator[DocumentSegment]:
        return iter(self.segments)


class DocumentConnection(JsonForm, frozen=True, kw_only=True):
    """A connection that follows a workflow, such as a WebSocket."""

    id: str
    tenant: str
    workflow: str
    connected_at: datetime
    expires_at: datetime
    data: Mapping[str, Any] = {}
    """What the process that holds the connection stored with it."""
