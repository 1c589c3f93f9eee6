"""Errors about documents: their projects, workflows and segments."""

from __future__ import annotations

from holdfast.errors.refusals import Refused

__all__ = [
    "DocumentNotFound",
    "DocumentWorkflowNotFound",
    "IdTaken",
    "ProjectNotFound",
    "SegmentNotFound",
    "StatusRefused",
]


class ProjectNotFound(Refused):
    """There is no project of this id, or it is being deleted."""

    code = "project_not_found"


class DocumentNotFound(Refused):
    """There is no document of this id, or it is being deleted."""

    code = "document_not_found"


class DocumentWorkflowNotFound(Refused):
    """There is no workflow of a document with this id, or it is being deleted."""

    code = "document_workflow_not_found"


class SegmentNotFound(Refused):
    """The workflow has no segment of this index yet."""

    code = "segment_not_found"


class IdTaken(Refused):
    """The id is in use for a project, document or workflow with other values."""

    code = "id_taken"


class StatusRefused(Refused):
    """The workflow has a status from which this change is not permitted."""

    code = "status_refused"

    def __init__(self, message: str | None = None, *, current: str = "", wanted: str = "") -> None:
        super().__init__(message)
        self.current = current
        """The status of the workflow."""
        self.wanted = wanted
        """The status that the caller asked for."""
