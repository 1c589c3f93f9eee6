"""Text from outside made safe to display: it cannot move a cursor or forge a line.

Ids, names, payloads and errors of tools come from callers, models and services. They may contain
line breaks, control characters of a terminal, and characters that reverse the direction of text.
"""

from __future__ import annotations

import logging
import re
import traceback
import unicodedata
from collections.abc import Callable, Mapping
from types import TracebackType

from holdfast.redaction import excerpt

__all__ = ["IndentedLines", "escaped_json", "get_logger", "printable", "short_repr"]

_VALUE_LETTERS_MAX = 2_000
_TRACE_LINES_MAX = 200
# Everything except the characters of JSON itself; most of it is printable.
_UNUSUAL = re.compile(r"[^\n -~]")
# Unicode's Default_Ignorable_Code_Point, and the blank of Braille: invisible or nearly so, even if
# Python calls them printable.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
# They select the text or picture form of a symbol; many emojis have one.
_EMOJI_SELECTORS = "\ufe0e\ufe0f"


def printable(text: str) -> str:
    """Return text in one line, with control, bidirectional and invisible characters escaped."""
    if text.isprintable() and _INVISIBLE.search(text) is None:
        return text
    return "".join(
        each if _is_visible(text, at) else each.encode("unicode_escape").decode()
        for at, each in enumerate(text)
    )


def escaped_json(json: str) -> str:
    """Return equivalent JSON, with the unprintable characters in its texts escaped."""
    # Outside of texts, our JSON contains only ASCII and line breaks.
    return _UNUSUAL.sub(_escaped, json)


def _escaped(found: re.Match[str]) -> str:
    letter = found[0]
    if _is_visible(found.string, found.start()):
        return letter
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _is_visible(text: str, at: int) -> bool:
    """Return whether a character is visible; a selector after a symbol is part of it."""
    letter = text[at]
    if not letter.isprintable():
        return False
    if _INVISIBLE.match(letter) is None:
        return True
    if letter not in _EMOJI_SELECTORS or at == 0:
        return False
    return unicodedata.category(text[at - 1]) == "So" and _INVISIBLE.match(text[at - 1]) is None


def short_repr(value: object) -> str:
    """Return the first 80 characters of a value's repr, for the message of an error."""
    try:
        return f"{value!r:.80}"
    except Exception:  # a caller's object may not even have a repr
        return f"a {type(value).__name__}"


class IndentedLines:
    """A text of several lines that a log line shows below itself, indented and escaped."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        lines = _shortened(self._text.splitlines())
        return "".join(f"\n  {_safe_text(line, str)}" for line in lines)


def get_logger(name: str) -> logging.Logger:
    """Return a logger that escapes the values, errors and tracebacks in its lines."""
    log = logging.getLogger(name)
    log.addFilter(_ESCAPING_FILTER)
    return log


class _SafeValue:
    """A value that a log line shows."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return _safe_text(self._value, str)

    def __repr__(self) -> str:
        return _safe_text(self._value, repr)


def _safe_text(value: object, shown: Callable[[object], str]) -> str:
    try:
        text = shown(value)
    except Exception as error:  # an error of another library may fail to produce its text
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"
    told = printable(excerpt(text, _VALUE_LETTERS_MAX))
    return told if len(text) <= _VALUE_LETTERS_MAX else f"{told}… ({len(text):,} characters)"


class _EscapingFilter(logging.Filter):
    """Escapes the values of a record; leaves its template and its error to handlers."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, Mapping):
            record.args = {name: _safe_value(value) for name, value in record.args.items()}
        elif record.args:
            record.args = tuple(map(_safe_value, record.args))
        if isinstance(record.exc_info, tuple) and record.exc_info[1] is not None:
            # Formatters use this text if it is set.
            record.exc_text = _safe_traceback(record.exc_info[1], record.exc_info[2])
        return True


def _safe_value(value: object) -> object:
    return value if isinstance(value, int | float | IndentedLines) else _SafeValue(value)


def _safe_traceback(error: BaseException, trace: TracebackType | None) -> str:
    """Return a traceback with indented lines, so that none looks like a log line."""
    try:
        told = "".join(traceback.format_exception(type(error), error, trace))
    except Exception:
        told = "".join(traceback.format_tb(trace)) + type(error).__name__
    return "\n".join(f"  {_safe_text(line, str)}" for line in _shortened(told.splitlines()))


def _shortened(lines: list[str]) -> list[str]:
    """Return lines without those in the middle, if there are too many."""
    if len(lines) <= _TRACE_LINES_MAX:
        return lines
    half = _TRACE_LINES_MAX // 2
    return [*lines[:half], f"… {len(lines) - 2 * half} lines …", *lines[-half:]]


_ESCAPING_FILTER = _EscapingFilter()
