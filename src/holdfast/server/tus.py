"""The headers of tus 1.0.0, a protocol for uploads that go on after a cut connection.

See https://tus.io/protocols/resumable-upload. The server has the extensions creation,
creation-with-upload, termination, checksum and expiration.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import datetime
from email.utils import format_datetime
from typing import Any

from litestar.exceptions import ClientException
from litestar.types import Scope

from holdfast.documents.checksums import CHECKSUM_ALGORITHMS, Checksum, parsed_checksum
from holdfast.errors import InvalidRequest, ProtocolMismatch
from holdfast.model.upload import Upload
from holdfast.server.options import ServerOptions
from holdfast.server.problems import TUS_VERSION

__all__ = [
    "TUS_TYPE",
    "checksum_of",
    "length_of",
    "metadata_of",
    "offset_of",
    "require_tus",
    "tus_capabilities",
    "upload_headers",
]

TUS_TYPE = "application/offset+octet-stream"
"""The type of a body with a piece of a file."""

_EXTENSIONS = "creation,creation-with-upload,termination,checksum,expiration"
_DIGITS_MAX = 16
_METADATA_BYTES_MAX = 4096
_METADATA_KEYS_MAX = 20


def require_tus(scope: Scope, *, optional: bool = False) -> None:
    """Check that a request is one of the version that the server has.

    Raises:
        ProtocolMismatch: it is of another version, or names none and is not ``optional``.
    """
    version = _header(scope, "tus-resumable")
    if version != TUS_VERSION and not (optional and version is None):
        raise ProtocolMismatch(
            f"the request must have the header Tus-Resumable: {TUS_VERSION}, got "
            f"{'none' if version is None else repr(version)[:40]}"
        )


def tus_capabilities(options: ServerOptions) -> dict[str, str]:
    """Return the headers with which a server tells what it can do."""
    return {
        "Tus-Resumable": TUS_VERSION,
        "Tus-Version": TUS_VERSION,
        "Tus-Extension": _EXTENSIONS,
        "Tus-Max-Size": str(options.file_bytes_max),
        "Tus-Checksum-Algorithm": ",".join(CHECKSUM_ALGORITHMS),
    }


def upload_headers(upload: Upload) -> dict[str, str]:
    """Return the headers that tell where an upload stands."""
    headers = {
        "Tus-Resumable": TUS_VERSION,
        "Upload-Offset": str(upload.offset),
        "Upload-Length": str(upload.length),
        "Upload-Metadata": _metadata_text(
            {"filename": upload.name, "filetype": upload.file_type, "project": upload.project}
        ),
        "Cache-Control": "no-store",
    }
    if upload.status == "open":
        headers["Upload-Expires"] = _http_date(upload.expires_at)
    return headers


def length_of(scope: Scope) -> int:
    """Return the size of the file that a request announces.

    A request without it, or with one that is no number, is answered with 400.
    """
    if _header(scope, "upload-defer-length") is not None:
        raise ClientException("this server needs Upload-Length at the creation of an upload")
    return _number(scope, "Upload-Length")


def offset_of(scope: Scope) -> int:
    """Return where a piece belongs; without it, or with one that is no number: 400."""
    return _number(scope, "Upload-Offset")


def checksum_of(scope: Scope) -> Checksum | None:
    """Return the checksum of a piece, if it has one; one that is none is answered with 400."""
    text = _header(scope, "upload-checksum")
    try:
        return None if text is None else parsed_checksum(text)
    except InvalidRequest as error:
        raise ClientException(f"Upload-Checksum is not valid: {error}") from None


def metadata_of(scope: Scope) -> dict[str, str]:
    """Return what a client tells of a file; anything malformed is answered with 400."""
    text = _header(scope, "upload-metadata")
    found: dict[str, str] = {}
    if text is None or not text.strip():
        return found
    if len(text) > _METADATA_BYTES_MAX:
        raise ClientException(f"Upload-Metadata must have at most {_METADATA_BYTES_MAX:,} bytes")
    pairs = text.split(",")
    if len(pairs) > _METADATA_KEYS_MAX:
        raise ClientException(f"Upload-Metadata must have at most {_METADATA_KEYS_MAX} keys")
    for pair in pairs:
        key, _, value = pair.strip().partition(" ")
        if not key or not key.isascii() or key in found:
            raise ClientException("Upload-Metadata must have keys in ASCII, each of them once")
        try:
            found[key] = base64.b64decode(value.strip(), validate=True).decode()
        except (binascii.Error, ValueError):
            raise ClientException(
                f"Upload-Metadata: the value of {key!r:.80} must be UTF-8 text in base64"
            ) from None
    return found


def _number(scope: Scope, name: str) -> int:
    text = _header(scope, name.lower())
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > _DIGITS_MAX:
        raise ClientException(
            f"{name} must be a number of bytes, got {'none' if text is None else repr(text)[:40]}"
        )
    return int(text)


def _header(scope: Scope, name: str) -> str | None:
    """Return a header that may be sent once: two values could mean two things."""
    headers: Any = scope["headers"]
    values = [value for key, value in headers if key.lower() == name.encode()]
    if len(values) > 1:
        raise ClientException(f"the header {name} must be sent once")
    return values[0].decode("latin-1").strip() if values else None


def _metadata_text(given: Mapping[str, str]) -> str:
    encoded = ((key, base64.b64encode(value.encode()).decode()) for key, value in given.items())
    return ",".join(f"{key} {value}" for key, value in encoded if value)


def _http_date(moment: datetime) -> str:
    return format_datetime(moment, usegmt=True)
