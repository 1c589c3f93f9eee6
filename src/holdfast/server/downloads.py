"""Responses with the content of documents, which no browser runs or shows as a page.

A document comes from anybody. Its content is sent with headers that forbid scripts, plugins,
frames and guesses of its type. Files are always downloads; only images are shown.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import quote

from litestar import Response
from litestar.response import Stream
from litestar.types import Scope

__all__ = [
    "content_response",
    "disposition",
    "download",
    "image_response",
    "is_known",
    "not_modified",
    "uri_tag",
]

_SANDBOX = {
    "Content-Security-Policy": "sandbox; default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_OCTETS = "application/octet-stream"
_UNSAFE = re.compile(r"[^A-Za-z0-9._ -]")
_NAME_CHARS_MAX = 200
_HASH = re.compile(r"sha256=([0-9a-f]{64})")
# SVG is no image here: it can have scripts.
_IMAGES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
)


def download(
    chunks: AsyncGenerator[bytes, None], *, name: str, size: int, headers_only: bool
) -> Stream:
    """Return a response that saves a file; it is never shown."""
    headers = {
        **_SANDBOX,
        "Content-Disposition": disposition("attachment", name),
        "Content-Length": str(size),
        "Cache-Control": "private, no-store",
    }
    return Stream(_nothing() if headers_only else chunks, headers=headers, media_type=_OCTETS)


def image_response(data: bytes, *, tag: str | None) -> Response[bytes]:
    """Return a response with an image; what is none is a download."""
    kind = next((kind for magic, kind in _IMAGES if data.startswith(magic)), None)
    if kind is None and data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        kind = "image/webp"
    return content_response(data, kind or _OCTETS, tag=tag, inline=kind is not None)


def content_response(
    data: bytes, media_type: str, *, tag: str | None, inline: bool
) -> Response[bytes]:
    """Return a response with a small content, which never changes under its address."""
    headers = {**_SANDBOX, "Cache-Control": "private, no-cache"}
    if tag is not None:
        headers["ETag"] = tag
    headers["Content-Disposition"] = "inline" if inline else disposition("attachment", "content")
    return Response(data, media_type=media_type, headers=headers)


def uri_tag(uri: str) -> str | None:
    """Return the ETag of a content: the hash in its address, if it has one."""
    found = _HASH.search(uri)
    return None if found is None else f'"{found[1][:32]}"'


def is_known(scope: Scope, tag: str | None) -> bool:
    """Return whether the client has this very content already."""
    if tag is None:
        return False
    headers: Any = scope["headers"]
    given = (value.decode("latin-1") for key, value in headers if key == b"if-none-match")
    tags = [each.strip().removeprefix("W/") for value in given for each in value.split(",")]
    return tag in tags or "*" in tags


def not_modified(tag: str | None) -> Response[bytes]:
    """Return the response to a client that has the content already."""
    return Response(b"", status_code=304, headers={"ETag": tag or ""}, media_type=_OCTETS)


def disposition(kind: str, name: str) -> str:
    """Return the header Content-Disposition for a name from outside.

    Characters that turn the direction of text round, and other invisible ones, are left out: they
    let one type look like another.
    """
    shown = "".join(each for each in name if unicodedata.category(each)[0] != "C")
    shown = shown.replace("/", "_").replace("\\", "_")[:_NAME_CHARS_MAX].strip(". ") or "document"
    plain = _UNSAFE.sub("_", shown)
    return f"{kind}; filename=\"{plain}\"; filename*=UTF-8''{quote(shown, safe='')}"


async def _nothing() -> AsyncGenerator[bytes, None]:
    return
    yield b""
