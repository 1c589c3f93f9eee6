"""Errors about files, and about the services that turn images and speech into text."""

from __future__ import annotations

from holdfast.errors.refusals import Refused
from holdfast.errors.requests import InvalidRequest

__all__ = ["ExtractionFailed", "ExtractionUnavailable", "FileRejected", "NotConfigured"]


class FileRejected(InvalidRequest):
    """The file is not read: it is damaged, hostile, or of a type that is not supported."""

    code = "file_rejected"

    def __init__(self, message: str | None = None, *, reason: str = "unsupported") -> None:
        super().__init__(message, field="file")
        self.reason = reason
        """Why, as a name for programs, such as ``encrypted`` or ``bomb``."""


class NotConfigured(InvalidRequest):
    """A step needs a program or a service that is not installed or not configured here."""

    code = "not_configured"

    def __init__(self, message: str | None = None, *, what: str = "") -> None:
        super().__init__(message)
        self.what = what
        """What is missing, such as ``transcription``."""


class ExtractionFailed(Refused):
    """The engine or the service could not turn this image or recording into text."""

    code = "extraction_failed"


class ExtractionUnavailable(ExtractionFailed):
    """The engine or the service does not answer, or is too busy; try again later."""

    code = "extraction_unavailable"
    retryable = True
