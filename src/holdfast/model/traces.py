"""Tracebacks as text: with the frames of the user's code, without those of Holdfast."""

from __future__ import annotations

import os
import re
import traceback
from types import FrameType

from holdfast.display import printable
from holdfast.errors import HoldfastError
from holdfast.redaction import excerpt

__all__ = ["formatted_trace", "innermost_place", "is_engine_file", "stack_text", "trace_note"]

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
# Chained and grouped errors of one error that are looked at.
_ERRORS_MAX = 100
_NOTE_CHARS_MAX = 8_000
# A frame of the error itself, or of an error in its group; frames in notes are indented further.
_FRAME = re.compile(r'^(?:  | +\|  +)File "(?P<file>[^"\n]+)", line (?P<line>\d+)', re.MULTILINE)
# Files of Python itself, of installed packages, and of code without a file. The text may come from
# another machine.
_LIBRARY = re.compile(r"[/\\](?:site-packages|dist-packages|python3\.\d+t?|Lib)[/\\]|^<frozen ")
# The files of Python that call functions in threads and tasks.
_CALLERS = re.compile(
    r"[/\\](?:python3\.\d+t?|Lib)[/\\](?:threading\.py$|asyncio[/\\]|concurrent[/\\]futures[/\\])"
)


def is_engine_file(file: str) -> bool:
    """Return whether a file belongs to Holdfast."""
    return file.startswith(_PACKAGE)


def formatted_trace(error: BaseException, *, engine_frames: bool) -> str:
    """Return the traceback of an error and of the errors before it.

    Without ``engine_frames`` it has no frames of Holdfast. But if there are no others, an error of
    another library keeps them: they are all that shows where it was raised.
    """
    formatted = traceback.TracebackException.from_exception(error)
    if not engine_frames:
        left, seen = [(formatted, isinstance(error, HoldfastError))], 0
        while left and seen < _ERRORS_MAX:
            each, is_ours = left.pop()
            seen += 1
            _remove_engine_frames(each, keep_if_alone=not is_ours)
            others = (each.__cause__, each.__context__, *(each.exceptions or ()))
            left += [(other, False) for other in others if other is not None]
    return "".join(formatted.format())


def _remove_engine_frames(formatted: traceback.TracebackException, *, keep_if_alone: bool) -> None:
    kept = [frame for frame in formatted.stack if not is_engine_file(frame.filename)]
    if not keep_if_alone and all(_CALLERS.search(frame.filename) for frame in kept):
        kept = []  # Holdfast raised the error in a thread: the frames show no code of the user
    if kept or not keep_if_alone:
        formatted.stack = traceback.StackSummary.from_list(kept)


def innermost_place(trace: str) -> str:
    """Return ``file:line`` of the innermost frame of a trace; empty if it has none.

    A frame of the user's code is preferred to the frames of libraries that the code called.
    """
    found = [(match["file"], match["line"]) for match in _FRAME.finditer(trace)]
    own = [place for place in found if _LIBRARY.search(place[0]) is None]
    return ":".join((own or found)[-1]) if found else ""


def trace_note(title: str, trace: str) -> str:
    """Return a stored traceback as a note for an error; empty if it has no frames."""
    if _FRAME.search(trace) is None:
        return ""
    lines = excerpt(trace, _NOTE_CHARS_MAX, end=True).splitlines()
    return "\n".join([title, *(f"  {printable(line)}" for line in lines)])


def stack_text(frame: FrameType) -> str:
    """Return the stack of a running thread, from the code that asyncio called, as in a traceback.

    It has no frames of Holdfast, unless it has no others.
    """
    frames = traceback.StackSummary.extract(traceback.walk_stack(frame), lookup_lines=False)
    frames.reverse()
    started = [at for at, each in enumerate(frames) if _is_loop_frame(each)]
    inner = frames[started[-1] + 1 :] if started else list(frames)
    kept = [each for each in inner if not is_engine_file(each.filename)]
    return "".join(traceback.format_list(kept or inner))


def _is_loop_frame(frame: traceback.FrameSummary) -> bool:
    """Return whether asyncio calls a task or a callback in this frame."""
    return frame.name == "_run" and frame.filename.endswith(os.path.join("asyncio", "events.py"))
