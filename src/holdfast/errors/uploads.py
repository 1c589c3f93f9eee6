"""Errors of files and uploads of documents."""

from __future__ import annotations

from holdfast.errors.refusals import Refused
from holdfast.errors.requests import InvalidRequest

__all__ = [
    "ChecksumMismatch",
    "FileTooLarge",
    "LengthRequired",
    "ProtocolMismatch",
    "StoredFileNotFound",
    "UploadConflict",
    "UploadGone",
    "UploadInterrupted",
    "UploadNotFound",
    "UploadsBusy",
]


class FileTooLarge(InvalidRequest):
    """The file is larger than this process accepts."""

    code = "file_too_large"


class ChecksumMismatch(InvalidRequest):
    """The bytes that arrived do not have the checksum that their sender names: send them again."""

    code = "checksum_mismatch"


class LengthRequired(InvalidRequest):
    """The request must say how many bytes the file has, in the header Content-Length."""

    code = "length_required"


class ProtocolMismatch(InvalidRequest):
    """The request must have the header ``Tus-Resumable: 1.0.0``."""

    code = "protocol_mismatch"


class StoredFileNotFound(Refused):
    """The tenant has no file at this address."""

    code = "stored_file_not_found"


class UploadNotFound(Refused):
    """The tenant has no upload with this id."""

    code = "upload_not_found"


class UploadGone(Refused):
    """The upload has expired or was terminated: start a new one."""

    code = "upload_gone"


class UploadConflict(Refused):
    """The upload does not continue at this offset: ask where it stands, and send the rest."""

    code = "upload_conflict"


class UploadInterrupted(Refused):
    """The bytes stopped arriving: ask where the upload stands, and send the rest."""

    code = "upload_interrupted"
    retryable = True


class UploadsBusy(Refused):
    """This process receives as many files as it can: try again."""

    code = "uploads_busy"
    retryable = True
