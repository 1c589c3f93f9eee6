"""``--url``, ``--limits`` and ``--user-key-file``: what all processes of a store set alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast import PayloadLimits
from holdfast.cli.targets import load_graphs
from holdfast.errors import StoreNotFound
from holdfast.sync import Holdfast as Blocking
from tests.cli.conftest import Holdfast

URL = "sqlite:///runs.db"
SIZES = """
from holdfast import PayloadLimits

TIGHT = PayloadLimits(input_bytes_max=100, signal_bytes_max=100)
READER = PayloadLimits(
    **{f"{name}_bytes_max": 100 for name in ("input", "signal", "state", "answer", "record")}
    | {"state_bytes_max": 50}
)
"""
LARGE = json.dumps({"answer": "a" * 200})


@pytest.fixture(autouse=True)
def sizes(folder: Path) -> None:
    (folder / "sizes.py").write_text(SIZES)


@pytest.mark.parametrize("target", ["sizes:TIGHT", "sizes.py:TIGHT"])
def test_values_beyond_the_limits_are_refused(holdfast: Holdfast, target: str) -> None:
    start = ["run", "start", "flows:asking", LARGE, "--id", "a"]
    refused = holdfast(*start, "--limits", target)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "PayloadLimits.input_bytes_max sets the limit [payload_too_large]" in refused.stderr
    assert holdfast(*start).exit_code == 0
    refused = holdfast("run", "signal", "a", "answer", LARGE, "--limits", target)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "PayloadLimits.signal_bytes_max sets the limit [payload_too_large]" in refused.stderr


def test_records_beyond_the_limits_are_not_read(holdfast: Holdfast) -> None:
    with Blocking(URL) as hf, hf.worker(load_graphs(["flows:asking"])):
        holdfast("run", "start", "flows:asking", "--id", "a")
        holdfast("run", "signal", "a", "answer", json.dumps("a" * 200))
        hf.run("a").result()
    assert holdfast("run", "history", "a").exit_code == 0
    refused = holdfast("run", "history", "a", "--limits", "sizes:READER")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "[record_too_large]" in refused.stderr


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "flows:number",
            "--limits must name PayloadLimits, got flows:number of type 'int' [invalid_request]",
        ),
        ("sizes", "'sizes' must name PayloadLimits: sizes:attribute"),
        ("sizes:WIDE", "sizes has no 'WIDE'"),
    ],
)
def test_limits_that_are_none_are_refused_in_a_line(
    holdfast: Holdfast, folder: Path, target: str, message: str
) -> None:
    done = holdfast("run", "start", "flows:counting", "--limits", target)
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", f"Error: {message}\n")
    assert not (folder / "runs.db").exists()


@pytest.mark.parametrize("by", ["option", "variable"])
def test_users_are_hashed_with_the_key_of_the_file(
    holdfast: Holdfast, folder: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    key = b"\xff sixteen bytes \n"
    (folder / "key").write_bytes(key)
    typed = ["--user-key-file", "key"] if by == "option" else []
    if by == "variable":
        monkeypatch.setenv("HOLDFAST_USER_KEY_FILE", "key")
    start = ["run", "start", "flows:asking", "--user", "ann", "--session", "chat-7"]
    assert holdfast(*start, "--id", "a", *typed).exit_code == 0
    assert " a\n" in holdfast("run", "queue", "chat-7", "--user", "ann", *typed).stdout
    with Blocking(URL, user_key=key) as hf:
        assert [entry.id for entry in hf.session_queue("chat-7", user="ann")] == ["a"]
    with Blocking(URL) as hf:
        assert hf.session_queue("chat-7", user="ann") == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "the user key cannot be read: [Errno 2] No such file or directory: 'key'"),
        (b"k" * 15, "from 16 to 4,096 bytes, and the file 'key' has 15 [invalid_request]"),
        (b"k" * 4097, "from 16 to 4,096 bytes, and the file 'key' has more [invalid_request]"),
    ],
    ids=["missing", "short", "long"],
)
def test_a_key_that_is_none_is_refused_in_a_line(
    holdfast: Holdfast, folder: Path, content: bytes | None, message: str
) -> None:
    if content is not None:
        (folder / "key").write_bytes(content)
    done = holdfast("run", "start", "flows:counting", "--user-key-file", "key")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.endswith(f"{message}\n")
    assert done.stderr.count("\n") == 1
    assert not (folder / "runs.db").exists()


def test_a_worker_is_opened_with_both(
    holdfast: Holdfast, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "key").write_bytes(b"k" * 16)
    given: dict[str, Any] = {}

    def opened(url: str, **means: Any) -> None:
        given.update(means)
        raise StoreNotFound(f"there is no {url}")

    monkeypatch.setattr("holdfast.cli.lifetime.Holdfast", opened)
    done = holdfast("worker", "flows", "--limits", "sizes:TIGHT", "--user-key-file", "key")
    assert "[store_not_found]" in done.stderr
    assert given["limits"] == PayloadLimits(input_bytes_max=100, signal_bytes_max=100)
    assert given["user_key"] == b"k" * 16


@pytest.mark.parametrize("url", ["sqlite://:memory:", "sqlite://:memory:?changes=on"])
@pytest.mark.parametrize("command", [["run", "start"], ["run", "list"], ["worker"]])
def test_a_store_in_memory_is_refused(holdfast: Holdfast, command: list[str], url: str) -> None:
    target = [] if command[-1] == "list" else ["flows:asking"]
    refused = holdfast(*command, *target, "--url", url)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "a store in memory is lost when this command ends" in refused.stderr
