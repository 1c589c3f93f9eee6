"""Converts an exception to the form in which the journal stores it."""

from __future__ import annotations

import traceback

from holdfast.model.event import Failure
from holdfast.redaction import excerpt

__all__ = ["failure_of"]

_TYPE_CHARS_MAX = 200
_MESSAGE_CHARS_MAX = 2_000
_TRACE_CHARS_MAX = 8_000


def failure_of(error: BaseException) -> Failure:
    """Return the stored form of an error, even if its own methods raise."""
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "holdfast.errors"):
        name = f"{kind.__module__}.{name}"
    try:
        message = str(error)
    except Exception:
        message = "(the error cannot be shown)"
    trace = "".join(traceback.format_exception(error))
    return Failure(
        _utf8_safe(excerpt(name, _TYPE_CHARS_MAX))[:_TYPE_CHARS_MAX],
        _utf8_safe(excerpt(message, _MESSAGE_CHARS_MAX))[:_MESSAGE_CHARS_MAX],
        _utf8_safe(excerpt(trace, _TRACE_CHARS_MAX, end=True))[-_TRACE_CHARS_MAX:],
    )


def _utf8_safe(text: str) -> str:
    """Return text that UTF-8 can express."""
    return text.encode(errors="backslashreplace").decode()
