"""The guide to the command line names every command, and what it shows works."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from holdfast.cli import main

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "guides" / "command-line.md").read_text()
EXIT = re.compile(r"\s+# exit (\d+):.*$")
BACKGROUND = "&"


def command_names(group: click.Group = main, path: str = "holdfast") -> list[str]:
    context, found = click.Context(group), list[str]()
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        inner = f"{path} {name}"
        is_group = isinstance(command, click.Group)
        found += command_names(command, inner) if is_group else [inner]
    return found


def shown_commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", GUIDE, re.S)
    lines = "".join(blocks).splitlines()
    assert all(line.startswith("$ holdfast ") for line in lines)
    return [line.removeprefix("$ ") for line in lines]


def test_the_guide_shows_every_command() -> None:
    shown = shown_commands()
    missing = [
        name
        for name in command_names()
        if not any(f"{line} ".startswith(f"{name} ") for line in shown)
    ]
    assert missing == []


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder; what is imported from it is forgotten again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_URL", "sqlite:///runs.db")
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("app", None)


def test_what_the_guide_shows_works(folder: Path) -> None:
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for line in shown_commands():
            words = shlex.split(os.path.expandvars(EXIT.sub("", line)))[1:]
            if words[-1] == BACKGROUND:
                processes.append(in_background(words[:-1], folder))
            else:
                expected = int(found[1]) if (found := EXIT.search(line)) else 0
                words = words[: words.index(">")] if ">" in words else words
                done = CliRunner().invoke(main, words)
                assert done.exit_code == expected, f"{line}\n{done.output}"
    finally:
        codes = [ended(process) for process in processes]
    assert codes == [0] * len(processes)


def in_background(words: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start a command that runs until a signal; return when it has said its first line."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "holdfast", *words]
    process = subprocess.Popen(command, cwd=folder, env=env, stderr=subprocess.PIPE)
    assert process.stderr is not None
    assert process.stderr.readline()
    return process


def ended(process: subprocess.Popen[bytes]) -> int:
    """Ask a process to stop, and return its exit code."""
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    return process.returncode
