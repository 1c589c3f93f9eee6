"""Text from outside, as people see it: nothing in it steers a terminal, or forges a line."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.text import compact, pretty
from holdfast.display import get_logger, printable

HOSTILE = [
    "\x1b[2J", "\x9b31m", "\x7f", "\u202e", "\u2066x\u2069", "\u200f", "\u061c", "\u200b", "\ufeff",
    "\u3164", "\u115f", "\uffa0", "x\ufe0f", "\U000e0100", "\u2800", "\u034f", "\u180b", "\u17b4",
    "\u2800\ufe0f", "\u2764\ufe0f\ufe0f", "\xad",
    "a\nERROR holdfast.worker: forged", "\r", "\u2028", "\x85", "\0", "\U000e0001", "\ud800",
]  # fmt: skip
# What Unicode calls Default_Ignorable_Code_Point and Python calls printable, and a blank.
INVISIBLE = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"
).union(*(map(chr, codes) for codes in (range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))))
ANY = st.text(st.characters(exclude_categories=()))
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | ANY,
    lambda inner: st.lists(inner) | st.dictionaries(ANY, inner),
    max_leaves=10,
)


@pytest.fixture
def log() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    """A log of ours, as a worker prints it."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    found = get_logger("holdfast.test_display")
    found.propagate = False
    found.addHandler(handler)
    yield found, stream
    found.removeHandler(handler)


def is_visible(text: str) -> bool:
    """Say whether people see each character; one selector after a symbol is part of it."""
    return text.isprintable() and not INVISIBLE.intersection(text.replace("\u2764\ufe0f", "<3"))


@given(ANY)
def test_what_is_printable_stays_and_everything_else_is_written_out(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert shown == printable(shown)
    if text.isprintable() and not INVISIBLE.intersection(text):
        assert shown == text


def test_emoji_stay_as_they_are() -> None:
    text = "I \u2764\ufe0f you \u2600\ufe0e 😀 \xe9 漢"
    assert printable(text) == text
    assert json.loads(compact(text)) == text
    assert text in compact(text)


@pytest.mark.parametrize("text", HOSTILE)
def test_json_steers_no_terminal_and_means_the_same(text: str) -> None:
    value = {text: [text, {"nested": f"ä€😀{text}"}]}
    try:
        expected = json.loads(msgspec.json.encode(value))
    except UnicodeEncodeError:  # half a character cannot be kept, and so cannot be shown
        return
    for shown in (compact(value), pretty(value)):
        assert is_visible(shown.replace("\n", ""))
        assert "ä€😀" in shown
        assert json.loads(shown) == expected
    assert "\n" not in compact(value)


@given(JSON)
def test_any_json_means_the_same(value: Any) -> None:
    try:
        plain = msgspec.json.encode(value)
    except (UnicodeEncodeError, OverflowError):
        return
    for shown in (compact(value), pretty(value)):
        assert shown.replace("\n", "").isprintable()
        assert json.loads(shown) == json.loads(plain)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_log_line_is_one_line_whatever_it_tells(
    log: tuple[logging.Logger, io.StringIO], text: str
) -> None:
    found, stream = log
    found.warning("%s: %r and %s in %d", text, ValueError(text), ValueError(text), 7)
    line, *more = stream.getvalue().split("\n")
    assert more == [""]
    assert line.startswith("WARNING holdfast.test_display: ")
    assert line.endswith(" in 7")
    assert is_visible(line)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_traceback_in_a_log_cannot_look_like_another_line(
    log: tuple[logging.Logger, io.StringIO], text: str
) -> None:
    found, stream = log
    try:
        try:
            raise KeyError(text)
        except KeyError:
            raise ValueError(f"a tool says {text}") from None
    except ValueError as error:
        found.error("it broke", exc_info=error)
        found.exception("it broke again")
    lines = stream.getvalue().rstrip("\n").split("\n")
    assert [line for line in lines if not line.startswith("  ")] == [
        "ERROR holdfast.test_display: it broke",
        "ERROR holdfast.test_display: it broke again",
    ]
    assert all(map(is_visible, lines))
    assert sum("ValueError: a tool says" in line for line in lines) == 2


def test_what_is_logged_is_bounded_and_needs_no_text(
    log: tuple[logging.Logger, io.StringIO],
) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

        __repr__ = __str__

    found, stream = log
    found.warning("%s %r", Mute(), "x" * 1_000_000)
    found.error("long", exc_info=ValueError("\n".join("y" * 5_000 for _ in range(5_000))))
    found.error("mute", exc_info=Mute())
    assert "<Mute that cannot be shown: RuntimeError>" in stream.getvalue()
    assert len(stream.getvalue()) < 500_000


def test_handlers_that_keep_errors_apart_find_them_as_they_were(
    caplog: pytest.LogCaptureFixture,
) -> None:
    raised = ValueError("a\nb")
    get_logger("holdfast.worker").error("%s broke", "run x\n", exc_info=raised)
    (record,) = caplog.records
    assert record.msg == "%s broke"
    assert record.exc_info is not None
    assert record.exc_info[1] is raised
    assert record.getMessage() == "run x\\n broke"


def test_an_address_in_a_log_has_no_credentials(log: tuple[logging.Logger, io.StringIO]) -> None:
    found, stream = log
    found.warning("cannot reach %s", "http://ann:hunter2@proxy:3128/x")
    assert "hunter2" not in stream.getvalue()
    assert "proxy:3128" in stream.getvalue()
