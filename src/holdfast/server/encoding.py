"""Responses in JSON: what callers read has its form from `JsonForm`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from litestar import Response
from litestar.serialization import default_serializer

from holdfast.model.json_form import JsonForm

__all__ = ["JsonResponse"]

T = TypeVar("T")


class JsonResponse(Response[T]):
    """Encodes rows, lists and histories as `JsonForm.as_dict` shows them."""

    def render(
        self, content: Any, media_type: str, enc_hook: Callable[[Any], Any] = default_serializer
    ) -> bytes:
        if isinstance(content, bytes):
            return content
        if isinstance(content, JsonForm):
            content = content.as_dict()
        return msgspec.json.encode(content)
