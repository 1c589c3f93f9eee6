"""Responses in JSON: what callers read has its form from `JsonForm`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any, TypeVar

import msgspec
from litestar import Request, Response
from litestar.response.base import ASGIResponse
from litestar.serialization import default_serializer

from holdfast.model.json_form import JsonForm
from holdfast.server.routing import description_of

__all__ = ["JsonResponse", "encoded"]

T = TypeVar("T")

_PRIVATE = "no-store"


class JsonResponse(Response[T]):
    """Encodes rows, lists and histories as `JsonForm.as_dict` shows them.

    No cache on the way may keep an answer. A route with an ETag answers 304 to a client that has
    the same answer already.
    """

    def render(
        self, content: Any, media_type: str, enc_hook: Callable[[Any], Any] = default_serializer
    ) -> bytes:
        return encoded(content)

    def to_asgi_response(
        self, app: Any, request: Request[Any, Any, Any], **given: Any
    ) -> ASGIResponse:
        described = description_of(request.route_handler)
        if described is not None and not described.open:
            self.headers.setdefault("Cache-Control", _PRIVATE)
        status = self.status_code or given.get("status_code")
        if described is not None and described.etag and status == 200:
            content: Any = encoded(self.content)
            self.content = content
            tag = f'"{blake2b(content, digest_size=16).hexdigest()}"'
            self.headers["ETag"] = tag
            if _matches(request.headers.getall("if-none-match", []), tag):
                return ASGIResponse(status_code=304, headers=self.headers)
        return super().to_asgi_response(app, request, **given)  # pyright: ignore[reportUnknownMemberType]


def encoded(content: Any) -> bytes:
    """Return a value in JSON; bytes are JSON already, and None is no content."""
    if isinstance(content, bytes):
        return content
    if content is None:
        return b""
    if isinstance(content, JsonForm):
        content = content.as_dict()
    return msgspec.json.encode(content)


def _matches(given: Iterable[str], tag: str) -> bool:
    """Return whether one of the tags in If-None-Match is this one; weak tags count, too."""
    tags = [each.strip().removeprefix("W/") for header in given for each in header.split(",")]
    return tag in tags or "*" in tags
