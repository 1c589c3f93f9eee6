"""An error as it is written down."""

from __future__ import annotations

import traceback

from holdfast.addresses import excerpt
from holdfast.model.event import Failure

__all__ = ["failure_of"]

_KIND_MAX = 200
_MESSAGE_MAX = 2_000
_TRACE_MAX = 8_000


def failure_of(error: BaseException) -> Failure:
    """Return what is kept of an error, whatever it does when it is asked what it is."""
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
        _text(excerpt(name, _KIND_MAX))[:_KIND_MAX],
        _text(excerpt(message, _MESSAGE_MAX))[:_MESSAGE_MAX],
        _text(excerpt(trace, _TRACE_MAX, end=True))[-_TRACE_MAX:],
    )


def _text(text: str) -> str:
    """Return text that UTF-8 can express."""
    return text.encode(errors="backslashreplace").decode()
