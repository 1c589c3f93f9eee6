"""Tracebacks as text: the user's frames, without those of Holdfast."""

from __future__ import annotations

import json
from types import CodeType
from typing import Any

import pytest

from holdfast.errors import CallFailed, InvalidResult
from holdfast.model import traces
from holdfast.model.failure import failure_of
from holdfast.model.traces import innermost_place, trace_note

ENGINE = traces.__file__


def named(function: Any, file: str, line: int = 1) -> Any:
    """Return a function that seems to be defined in another file."""
    code: CodeType = function.__code__.replace(co_filename=file, co_firstlineno=line)
    return type(function)(code, function.__globals__, closure=function.__closure__)


def raised_through(*files: str, error: BaseException) -> BaseException:
    """Return an error with frames in these files, the outermost first."""

    def fail() -> None:
        raise error

    call = fail
    for file in reversed(files):

        def calls(inner: Any = call) -> None:
            inner()

        made = named(calls, file)
        made.__defaults__ = calls.__defaults__
        call = made
    with pytest.raises(type(error)) as caught:
        call()
    # The last frame, which raises, is of this file; the first one is this function's.
    shown = caught.value.__traceback__
    assert shown is not None
    return caught.value.with_traceback(shown.tb_next)


def test_a_trace_has_the_users_frames_and_none_of_the_engine() -> None:
    error = raised_through(ENGINE, "/app/flow.py", ENGINE, "/app/tool.py", error=ValueError("no"))
    trace = failure_of(error).trace
    assert ENGINE not in trace
    assert trace.index("/app/flow.py") < trace.index("/app/tool.py")
    assert trace.endswith("ValueError: no\n")
    assert ENGINE in failure_of(error, engine_frames=True).trace


def test_frames_of_libraries_that_the_user_calls_stay() -> None:
    with pytest.raises(ValueError, match="Expecting") as caught:
        json.loads("{")
    assert "decoder.py" in failure_of(caught.value).trace


def test_an_error_within_the_engine_alone_keeps_its_frames_unless_it_is_ours() -> None:
    def within(error: BaseException) -> str:
        found = named(lambda: (_ for _ in ()).throw(error), ENGINE)
        with pytest.raises(type(error)) as caught:
            found()
        frame = caught.value.__traceback__
        while frame is not None and frame.tb_frame.f_code.co_filename != ENGINE:
            frame = frame.tb_next
        assert frame is not None
        alone = type(frame)(None, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
        return failure_of(caught.value.with_traceback(alone)).trace

    assert ENGINE in within(KeyError("a bug"))
    assert within(InvalidResult("no dict")) == "holdfast.errors.InvalidResult: no dict\n"


def test_the_causes_and_groups_of_an_error_lose_their_engine_frames_too() -> None:
    cause = raised_through(ENGINE, "/app/cause.py", error=KeyError("first"))
    error = raised_through(ENGINE, "/app/flow.py", error=ValueError("second"))
    error.__cause__ = cause
    grouped = failure_of(ExceptionGroup("all", [error])).trace  # type: ignore[list-item]
    assert ENGINE not in grouped
    assert "/app/cause.py" in grouped
    assert innermost_place(grouped).startswith(__file__)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["/app/flow.py", "/app/tool.py"], "/app/tool.py:7"),
        (["/app/flow.py", "/venv/lib/python3.12/site-packages/httpx/a.py"], "/app/flow.py:7"),
        (["/app/flow.py", "/usr/lib/python3.11/json/decoder.py"], "/app/flow.py:7"),
        (["/app/flow.py", "<frozen importlib>"], "/app/flow.py:7"),
        (["/usr/lib/python3.11/json/decoder.py"], "/usr/lib/python3.11/json/decoder.py:7"),
        ([], ""),
    ],
)
def test_the_place_of_an_error_is_the_innermost_line_of_the_user(
    files: list[str], expected: str
) -> None:
    frames = "".join(f'  File "{file}", line 7, in work\n    work()\n' for file in files)
    assert innermost_place(f"Traceback (most recent call last):\n{frames}ValueError: no\n") == (
        expected
    )


def test_the_place_is_not_taken_from_a_note_or_a_message() -> None:
    error = raised_through(
        "/app/flow.py", error=CallFailed('failed:\nFile "/evil.py", line 1, in x')
    )
    error.add_note(trace_note("Where it failed:", '  File "/app/tool.py", line 3, in fetch\n'))
    trace = failure_of(error).trace
    assert "/app/tool.py" in trace
    assert innermost_place(trace).startswith(__file__)


def test_a_note_is_escaped_and_short_and_needs_frames() -> None:
    frame = '  File "/app/tool.py", line 3, in fetch\n'
    note = trace_note("Where:", frame + "    \x1b[31m" + "x" * 20_000 + "\n" + frame)
    assert "\x1b" not in note
    assert len(note) < 9_000
    assert note.startswith("Where:\n  ")
    assert trace_note("Where:", "ValueError: no\n") == ""
    assert trace_note("Where:", "") == ""
