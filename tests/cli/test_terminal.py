"""What every command shares: tables that fit, JSON, progress, completion, and a quick help."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli import main
from holdfast.cli.commands import COMMANDS
from holdfast.cli.progress_line import ProgressLine
from holdfast.cli.text import aligned, fitted
from tests.cli.conftest import Holdfast

ROWS = [
    ["STARTED", "ID", "LABELS"],
    ["2026-11-17", "run-with-a-long-id", "team=a" * 5],
]
# They run until a signal, and their logs are JSON with --log-format json; or they print a file.
WITHOUT_JSON = {"dev", "serve", "worker", "alerts", "completion", "store definition"}


def commands(group: click.Group = main, path: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


@pytest.mark.parametrize(("name", "command"), list(commands()))
def test_every_command_prints_json_and_has_a_help(name: str, command: click.Command) -> None:
    options = {option for each in command.params for option in each.opts}
    assert ("--json" in options) == (name not in WITHOUT_JSON)
    assert command.help
    assert command.epilog


def test_the_list_of_commands_says_what_each_command_says() -> None:
    for name, lazy in COMMANDS.items():
        command = main.get_command(click.Context(main), name)
        assert command is not None
        assert command.name == name
        assert lazy.summary.endswith(".")
        assert len(lazy.summary) <= 66


def test_help_imports_no_command_and_no_optional_package() -> None:
    code = (
        "import sys\nfrom holdfast.cli import main\n"
        "main(['--help'], standalone_mode=False)\nprint(*sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    slow = {"litestar", "uvicorn", "httpx", "boto3", "prometheus_client", "opentelemetry"}
    assert not loaded & {*slow, *(f"holdfast.cli.{name}" for name in COMMANDS)}
    ours = {name.split(".")[1] for name in loaded if name.startswith("holdfast.")}
    assert not ours & {"app", "client", "engine", "public", "server", "storage"}


def test_a_wide_table_is_left_as_it_is() -> None:
    assert list(fitted(ROWS, 200, (2, 0))) == list(aligned(ROWS))


def test_a_narrow_table_loses_the_least_important_first_and_never_ids() -> None:
    assert list(fitted(ROWS, 45, (2, 0))) == [
        "STARTED     ID                  LABELS",
        "2026-11-17  run-with-a-long-id  team=ateam=a…",
    ]
    assert list(fitted(ROWS, 35, (2, 0))) == [
        "STARTED     ID",
        "2026-11-17  run-with-a-long-id",
    ]
    assert list(fitted(ROWS, 5, (2, 0))) == ["ID", "run-with-a-long-id"]


@given(
    st.lists(st.tuples(st.text("ab", max_size=30), st.text("x", max_size=9)), min_size=1),
    st.integers(0, 60),
)
def test_a_table_fits_if_it_can(rows: list[tuple[str, str]], width: int) -> None:
    lines = list(fitted(rows, width, (0,)))
    needed = max(len(row[1]) for row in rows)
    assert all(len(line) <= max(width, needed) for line in lines)
    assert all(row[1] in line for row, line in zip(rows, lines, strict=True))


def test_a_list_fits_the_terminal_and_is_whole_in_a_pipe(
    holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    label = "team=" + "a" * 60
    started = holdfast("run", "start", "flows:counting", "--id", "c-1", "--label", label, "--json")
    assert json.loads(started.stdout) == {"id": "c-1"}
    assert label in holdfast("run", "list").stdout
    monkeypatch.setattr("holdfast.cli.text.terminal_width", lambda: 70)
    lines = holdfast("run", "list").stdout.splitlines()
    assert all(len(line) <= 70 for line in lines)
    assert "c-1" in lines[1]
    assert "LABELS" not in lines[0]


def test_what_acts_on_a_run_prints_json(holdfast: Holdfast) -> None:
    def typed(*arguments: str) -> object:
        done = holdfast(*arguments, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    typed("run", "start", "flows:counting", "--id", "a")
    typed("run", "start", "flows:counting", "--id", "b")
    expires = typed("run", "extend", "a", "30d")
    assert isinstance(expires, dict)
    assert set(expires) == {"id", "expires_at"}
    assert typed("run", "signal", "a", "note", "1") == {
        "repeated": False,
        "answers_wait": False,
        "waits_for": [],
        "waits_again": False,
    }
    assert typed("run", "cancel", "a") == {"id": "a", "cancelled": True}
    until = typed("run", "until", "a", "cancelled")
    assert isinstance(until, dict)
    assert until["status"] == "cancelled"
    done = holdfast("run", "cancel", "--all", "--graph", "counting", "--yes", "--json")
    progress = [json.loads(line) for line in done.stdout.splitlines()]
    assert progress[-1]["done"] == 1


def test_what_acts_on_a_store_prints_json(holdfast: Holdfast, folder: Path) -> None:
    def typed(*arguments: str) -> dict[str, object]:
        done = holdfast("store", *arguments, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    url = "sqlite:///runs.db"
    assert typed("create", url) == {"url": url, "ready": True}
    assert typed("check", url) == {"url": url, "answers": True}
    assert typed("shards", url, "--grow", "16") == {"shards": 16}
    assert typed("backup", url, "copy.db")["missing"] == 0
    assert typed("restore", "copy.db", url)["aside"]
    assert typed("sweep", url)["blobs"] == 0


def test_progress_is_one_line_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "9")
    with ProgressLine(as_json=False) as line:
        line.show("1 seen", {})
        line.show("1 seen", {})
        line.show("2 seen, 1 done", {})
    assert capsys.readouterr().out == "\r1 seen\x1b[K\r2 seen, \x1b[K\r2 seen, 1 done\x1b[K\n"


def test_progress_is_a_line_for_each_report_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine(as_json=False) as line:
        line.show("1 seen", {})
        line.show("1 seen", {})
        line.show("2 seen", {})
    with ProgressLine(as_json=True) as line:
        line.show("2 seen", {"seen": 2})
    assert capsys.readouterr().out == '1 seen\n2 seen\n{"seen":2}\n'


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(holdfast: Holdfast, shell: str) -> None:
    script = holdfast("completion", shell).stdout
    assert f"_HOLDFAST_COMPLETE={shell}_complete" in script
    assert holdfast("completion", "csh").exit_code == 2


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("holdfast st", "plain,store"),
        ("holdfast run list --st", "plain,--status"),
        ("holdfast run list --status qu", "plain,quarantined"),
        ("holdfast store definition x --format ter", "plain,terraform"),
    ],
)
def test_a_shell_completes_commands_options_and_values(words: str, found: str) -> None:
    env = {
        **os.environ,
        "_HOLDFAST_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    code = "from holdfast.cli import main; main(prog_name='holdfast')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert found in done.stdout.splitlines()
