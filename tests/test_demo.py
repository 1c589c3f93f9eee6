"""`make demo`: three documents, a link, a retry, and a Ctrl-C in the middle."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[1]
PATIENCE_SECONDS = 240


class Demo:
    """A process of the demo."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.printed = ""

    def read_until(self, text: str) -> str:
        """Return what it printed so far, as soon as it has printed this."""
        assert self.process.stdout is not None
        while text not in self.printed:
            line = self.process.stdout.readline()
            assert line, f"the demo did not print {text!r}:\n{self.printed}"
            self.printed += line
        return self.printed

    def interrupt(self) -> str:
        """Send Ctrl-C, and return all that it printed."""
        self.process.send_signal(signal.SIGINT)
        rest, _ = self.process.communicate(timeout=PATIENCE_SECONDS)
        assert self.process.returncode == 0, self.printed + rest
        return self.printed + rest


@contextmanager
def demo(folder: Path, *, data: str = "data", port: int = 0) -> Generator[Demo]:
    # -u: what it prints is read while it runs.
    command = [sys.executable, "-u", "-m", "warranty.demo", "--data", data, "--port", str(port)]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'examples'}",
        # A screen on which nothing may be opened.
        "DISPLAY": "",
        "WAYLAND_DISPLAY": "",
    }
    process = subprocess.Popen(
        command, cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    patience = threading.Timer(PATIENCE_SECONDS, process.kill)
    patience.start()
    try:
        yield Demo(process)
    finally:
        patience.cancel()
        process.kill()
        process.communicate()


def holdfast(folder: Path, printed: str, words: str) -> str:
    """Run the command that the demo printed, which begins with these words."""
    command = re.search(rf"^ *(\S*holdfast {words}.*)$", printed, re.MULTILINE)
    assert command is not None, printed
    done = subprocess.run(
        ["sh", "-c", command[1]], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def paid(printed: str) -> list[tuple[int, int]]:
    """Return the model calls that were paid, and those paid twice, each time it says so."""
    found = re.findall(r"(\d+) model calls? w\w+ paid.*?; (\d+) w\w+ paid twice", printed)
    return [(int(calls), int(twice)) for calls, twice in found]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def test_the_demo_serves_three_documents_and_their_commands_work(folder: Path) -> None:
    with demo(folder) as started:
        printed = started.read_until("Ctrl-C stops")
        assert re.search(r"kettle\.txt +finished", printed)
        assert re.search(r"compressor\.pdf +waiting", printed)
        assert re.search(r"freezer-locked\.pdf +failed", printed)
        # Kettle: fields, verdict, reminder. Compressor: fields and two verdicts.
        assert paid(printed) == [(6, 0)]

        link = re.search(r"http://localhost:\d+/r/\S+", printed)
        assert link is not None
        page = httpx.get(link[0])
        assert page.status_code == 200
        assert "Approve this warranty?" in page.text

        unlock = re.search(r"^ *(echo \S+ >> \S+)$", printed, re.MULTILINE)
        assert unlock is not None
        subprocess.run(["sh", "-c", unlock[1]], cwd=folder, check=True)
        holdfast(folder, printed, "run retry")
        holdfast(folder, printed, "review approve")
        runs = re.findall(r"run (?:history|retry) (\S+)", printed)
        assert len(runs) == 2
        for run in runs:
            command = [sys.executable, "-m", "holdfast", "run", "until", run, "finished"]
            url = ["--url", "sqlite:///data/warranty.db", "--timeout", "30s"]
            ended = subprocess.run([*command, *url], cwd=folder, capture_output=True, timeout=60)
            assert ended.returncode == 0, ended.stderr
        assert re.search(r"finished", holdfast(folder, printed, "run history"))
        approved = "waiting → finished: high risk, judged by rules-large, approved by "
        assert re.search(rf"compressor\.pdf +{approved}", started.read_until("waiting → "))
        assert re.search(r"freezer-locked\.pdf +failed → ", started.read_until("failed → "))
        stopped = started.interrupt()
    assert paid(stopped)[-1][1] == 0


def test_a_ctrl_c_in_the_middle_pays_nothing_twice(folder: Path) -> None:
    ledger = folder / "data" / "paid.jsonl"
    with demo(folder) as first:
        first.read_until("Everything it writes")
        while not ledger.exists():  # the first answer of a model
            assert first.process.poll() is None
        first.interrupt()
    middle = len(ledger.read_text().splitlines())
    assert 0 < middle < 6
    with demo(folder) as second:
        printed = second.read_until("Ctrl-C stops")
        second.interrupt()
    call = "call was" if middle == 1 else "calls were"
    assert f"The demo goes on: {middle} model {call} paid" in printed
    assert paid(printed) == [(middle, 0), (6, 0)]
    assert f"Since this start {6 - middle} model call" in printed


def test_an_absolute_folder_and_a_port_in_use(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with demo(folder, data=str(folder / "data"), port=port) as started:
            printed = started.read_until("Ctrl-C stops")
            assert f"Port {port} is in use: the demo takes " in printed
            assert f"http://localhost:{port}" not in printed
            elsewhere = folder / "elsewhere"
            elsewhere.mkdir()
            assert "waiting" in holdfast(elsewhere, printed, "run list")
            started.interrupt()
    with demo(folder, data=str(folder / "data")) as again:
        printed = again.read_until("Ctrl-C stops")
        assert "Since this start 0 model calls were made.\n" in printed
        again.interrupt()
