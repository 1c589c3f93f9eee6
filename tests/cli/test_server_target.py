"""``--server`` and the key for it: which one counts, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import client as client_package
from tests.cli.conftest import Holdfast
from tests.client.test_streams import Script
from tests.model.test_json_form import RUN

SERVER = "http://127.0.0.1:1"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[httpx.Request]:
    """What the command line asks of a server, which answers with a run that waits."""
    shown = {**RUN.as_dict(), "status": "waiting"}
    script = Script(*[lambda request: httpx.Response(200, json=shown)] * 5)
    real = client_package.Client

    def connected(url: str, **given: Any) -> client_package.Client:
        return real(url, transport=script, **given)

    monkeypatch.setattr(client_package, "Client", connected)
    return script.seen


def test_an_option_counts_before_the_environment(
    holdfast: Holdfast, asked: list[httpx.Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = holdfast("run", "show", "doc-42", "--server", SERVER)
    assert (shown.exit_code, len(asked)) == (0, 1), shown.output
    monkeypatch.setenv("HOLDFAST_SERVER", SERVER)
    both = holdfast("run", "show", "doc-42")
    assert both.exit_code == 2
    assert "both HOLDFAST_URL and HOLDFAST_SERVER are set" in both.stderr
    assert "[store_not_found]" in holdfast("run", "show", "a", "--url", "sqlite:///b.db").stderr
    monkeypatch.delenv("HOLDFAST_URL")
    assert holdfast("run", "show", "doc-42").exit_code == 0
    assert len(asked) == 2
    twice = holdfast("run", "show", "a", "--url", "sqlite:///b.db", "--server", SERVER)
    assert (twice.exit_code, "not both" in twice.stderr) == (2, True)
    monkeypatch.delenv("HOLDFAST_SERVER")
    assert "Missing option '--url'" in holdfast("run", "show", "a").stderr


def test_the_key_comes_from_a_file_the_environment_or_standard_input(
    holdfast: Holdfast,
    folder: Path,
    asked: list[httpx.Request],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    show = ["run", "show", "doc-42", "--server", SERVER]
    (folder / "key.txt").write_text("from-file\n")
    holdfast(*show, "--key-file", "key.txt")
    holdfast(*show, "--key", "-", input="from-stdin\n")
    monkeypatch.setenv("HOLDFAST_KEY", "from-environment")
    holdfast(*show)
    holdfast(*show, "--key-file", "key.txt", "--tenant", "shop")
    keys = [request.headers["authorization"].removeprefix("Bearer ") for request in asked]
    assert keys == ["from-file", "from-stdin", "from-environment", "from-file"]
    tenants = [request.headers.get("holdfast-tenant") for request in asked]
    assert tenants == [None, None, None, "shop"]


@pytest.mark.parametrize(
    ("options", "message", "code"),
    [
        (["--key", "hf_secret"], "--key takes only -", 2),
        (["--key-file", "none.txt"], "the key cannot be read", 1),
        (["--key-file", "empty.txt"], "has no API key", 1),
        (["--key-file", "two.txt"], "has no API key", 1),
        (["--key-file", "binary.bin"], "the key cannot be read", 1),
        (["--limits", "flows:number"], "--limits must name PayloadLimits", 1),
        (["--user-key-file", "long.txt"], "--user-key-file is for a store", 2),
    ],
)
def test_what_is_refused_is_not_sent(
    holdfast: Holdfast,
    folder: Path,
    asked: list[httpx.Request],
    options: list[str],
    message: str,
    code: int,
) -> None:
    (folder / "empty.txt").write_text(" \n")
    (folder / "two.txt").write_text("one two\n")
    (folder / "long.txt").write_text("x" * 32)
    (folder / "binary.bin").write_bytes(b"\xff\xfe")
    done = holdfast("run", "show", "doc-42", "--server", SERVER, *options)
    assert (done.exit_code, message in done.stderr) == (code, True), done.stderr
    assert "hf_secret" not in done.output
    assert asked == []


@pytest.mark.parametrize("address", ["runs.db", "sqlite:///runs.db", "http://user:hunter2@host"])
def test_an_address_that_is_no_server_is_refused(holdfast: Holdfast, address: str) -> None:
    done = holdfast("run", "show", "a", "--server", address)
    assert (done.exit_code, "url must" in done.stderr) == (1, True)
    assert "hunter2" not in done.output


def test_without_httpx_it_says_what_to_install(
    holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("holdfast.client")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "httpx", None)
    done = holdfast("run", "show", "a", "--server", SERVER)
    assert (done.exit_code, "holdfast[client]" in done.stderr) == (1, True), done.output
