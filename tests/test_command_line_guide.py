"""The guide to the command line names every command, and what it shows works."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click

from holdfast.cli import main

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "guides" / "command-line.md").read_text()
EXIT = re.compile(r"\s+# exit (\d+):.*$")
BACKGROUND = " &"


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


def test_what_the_guide_shows_works(tmp_path: Path) -> None:
    bin = tmp_path / "bin"
    bin.mkdir()
    command = bin / "holdfast"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
    command.chmod(0o755)
    folder = tmp_path / "shop"
    folder.mkdir()
    env = {
        **os.environ,
        "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "HOLDFAST_URL": "sqlite:///runs.db",
    }
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for line in shown_commands():
            if line.endswith(BACKGROUND):
                script = f"exec {line.removesuffix(BACKGROUND)}"
                processes.append(subprocess.Popen(script, shell=True, cwd=folder, env=env))
                continue
            expected = int(found[1]) if (found := EXIT.search(line)) else 0
            done = subprocess.run(
                EXIT.sub("", line),
                shell=True,
                cwd=folder,
                env=env,
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert done.returncode == expected, f"{line}\n{done.stdout}{done.stderr}"
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(60) for process in processes]
    assert codes == [0] * len(processes)
