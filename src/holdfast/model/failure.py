"""Converts an exception to the form in which the journal stores it."""

from __future__ import annotations

from holdfast.errors import CallFailed
from holdfast.model.event import Failure
from holdfast.model.traces import formatted_trace
from holdfast.redaction import excerpt

__all__ = ["error_names", "failure_of"]

_TYPE_CHARS_MAX = 200
_MESSAGE_CHARS_MAX = 2_000
_TRACE_CHARS_MAX = 8_000


def failure_of(error: BaseException, *, engine_frames: bool = False) -> Failure:
    """Return the stored form of an error, even if its own methods raise.

    The trace has the frames of the user's code. ``engine_frames`` keeps those of Holdfast, too: for
    an error that no code of the user raised.
    """
    name = _type_name(type(error))
    try:
        message = str(error)
    except Exception:
        message = "(the error cannot be shown)"
    trace = formatted_trace(error, engine_frames=engine_frames)
    return Failure(
        _utf8_safe(excerpt(name, _TYPE_CHARS_MAX))[:_TYPE_CHARS_MAX],
        _utf8_safe(excerpt(message, _MESSAGE_CHARS_MAX))[:_MESSAGE_CHARS_MAX],
        _utf8_safe(excerpt(trace, _TRACE_CHARS_MAX, end=True))[-_TRACE_CHARS_MAX:],
    )


def error_names(error: BaseException) -> tuple[str, ...]:
    """Return the names of an error's type and of its bases, the most exact first.

    The names have the form of `Failure.type`. A failed call has those of the error that the called
    function raised, also if it raised in another process.
    """
    if isinstance(error, CallFailed) and error.kinds:
        return tuple(_short_name(kind) for kind in error.kinds)
    kinds = [kind for kind in type(error).__mro__ if issubclass(kind, BaseException)]
    return tuple(_type_name(kind) for kind in kinds)


def _type_name(kind: type) -> str:
    return _short_name(f"{kind.__module__}.{kind.__qualname__}")


def _short_name(name: str) -> str:
    for module in ("builtins.", "holdfast.errors."):
        if name.startswith(module):
            return name.removeprefix(module)
    return name


def _utf8_safe(text: str) -> str:
    """Return text that UTF-8 can express."""
    return text.encode(errors="backslashreplace").decode()
