"""What is kept of an error: a bounded part, for bounded work, without credentials."""

from __future__ import annotations

import logging

import pytest

from holdfast import redaction
from holdfast.display import get_logger
from holdfast.errors import CallFailed, CallTimedOut
from holdfast.model.failure import error_names, failure_of
from holdfast.redaction import excerpt

MB = 2**20


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How long the texts were in which credentials were looked for."""
    lengths: list[int] = []
    hidden = vars(redaction)["_redacted"]

    def counted(text: str, *, cut: bool) -> str:
        lengths.append(len(text))
        return hidden(text, cut=cut)

    monkeypatch.setattr(redaction, "_redacted", counted)
    return lengths


@pytest.mark.parametrize("text", ["://:", "x", "a b\n", "%2F", "\ud800"])
def test_a_long_error_takes_no_more_work_than_a_short_one(searched: list[int], text: str) -> None:
    long = text * (4 * MB // len(text))
    try:
        raise RuntimeError(long)
    except RuntimeError as error:
        failure = failure_of(error)
    CallFailed(long)
    get_logger("holdfast.test_failure").warning("%s", long)
    assert sum(searched) < 50_000
    assert (len(failure.message), len(failure.trace)) <= (2_000, 8_000)


@pytest.mark.parametrize("before", range(1_960, 2_010))
def test_a_cut_splits_no_credential(before: int, caplog: pytest.LogCaptureFixture) -> None:
    text = "x" * before + " http://ann:hunter2@proxy:3128/ " + "y" * 5_000
    caplog.set_level(logging.WARNING)
    get_logger("holdfast.test_failure").warning("%s", text)
    shown = f"{failure_of(ValueError(text))}{caplog.text}"
    assert "xxx" in shown
    assert not any(part in shown for part in ("ann", "hunt", "nter2", "ter2@"))


@pytest.mark.parametrize("after", range(7_960, 8_010))
def test_the_end_of_a_trace_splits_none(after: int) -> None:
    text = "x" * 9_000 + " http://ann:" + "hunter2" * 20 + "@proxy:3128/ " + "y" * after
    trace = failure_of(ValueError(text)).trace
    assert trace.endswith("yyy\n")
    assert "nter2" not in trace


@pytest.mark.parametrize(
    "text",
    [
        "http://ann:" + "hunter2" * 1_000 + "@proxy",
        "http://ann:a@b/" + "hunter2" * 1_000 + "@proxy",
        "http://" + "hunter2" * 1_000 + "@proxy",
        "http%3A%2F%2Fann%3A" + "hunter2" * 1_000 + "%40proxy",
        "https://host/x?password=" + "hunter2" * 1_000,
    ],
)
def test_a_credential_longer_than_all_that_is_looked_at_is_hidden(text: str) -> None:
    assert "unter" not in excerpt(text, 200)
    assert "unter" not in excerpt(f"{text} ", 200, end=True)
    assert "unter" not in excerpt(f"{text} and {text}", 200, end=True)


def test_an_excerpt_keeps_what_is_no_credential() -> None:
    address = "see http://host/" + "path/" * 1_000
    assert excerpt(address, 200) == address[:200]
    assert excerpt("short http://a:b@c", 200) == "short http://***@c"
    assert excerpt("short http://a:b@c", 200, end=True) == "short http://***@c"


def test_the_names_of_an_error_are_those_of_its_bases_also_across_processes() -> None:
    assert error_names(KeyError()) == ("KeyError", "LookupError", "Exception", "BaseException")
    assert error_names(CallTimedOut())[:2] == ("CallTimedOut", "CallError")
    failed = CallFailed(kinds=("shop.errors.Refused", "builtins.OSError", "builtins.Exception"))
    assert error_names(failed) == ("shop.errors.Refused", "OSError", "Exception")
    assert error_names(CallFailed())[0] == "CallFailed"
    for error in (KeyError(), CallTimedOut(), CallFailed()):
        assert error_names(error)[0] == failure_of(error).type
