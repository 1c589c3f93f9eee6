"""The tutorial works as it is written: its files, its commands, a kill, and a DynamoDB table."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.servers import moto_server
from tests.servers.process import free_port, running

ROOT = Path(__file__).parents[1]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
DEADLINE_SECONDS = 60
ANN = '{"employee": "Ann", "usd": 120, "purpose": "train to Basel"}'
REJECTED = {"status": "finished", "outcome": {"text": "rejected by Max", "payment": None}}
BOB = {"employee": "Bob", "usd": 80, "purpose": "books"}


def saved_files() -> dict[str, str]:
    """Return the files that the tutorial tells its reader to save, by name."""
    block = r"Save this as `(\S+)`[^\n]*:\n\n```(?:python|ini)\n(.*?)```"
    return dict(re.findall(block, TUTORIAL, re.DOTALL))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, code in saved_files().items():
        (tmp_path / name).write_text(code)
    return tmp_path


def environment(url: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), "."])
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    return {
        **os.environ, **keys, "HOLDFAST_URL": url, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"
    }  # fmt: skip


def holdfast(folder: Path, url: str, *arguments: str, code: int = 0) -> str:
    """Run a command of the tutorial, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments],
        cwd=folder,
        env=environment(url),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@contextmanager
def working(folder: Path, url: str) -> Iterator[subprocess.Popen[str]]:
    """Run the worker of the tutorial, and kill it with -9 at the end."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "worker", "app:reimburse", "--lease", "5s"],
        cwd=folder,
        env=environment(url),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    # Kills it where the test would read for ever.
    deadline = threading.Timer(DEADLINE_SECONDS, worker.kill)
    deadline.start()
    try:
        yield worker
    finally:
        deadline.cancel()
        worker.kill()
        worker.wait()
        if worker.stdout is not None:
            worker.stdout.close()


def read_until(worker: subprocess.Popen[str], text: str) -> list[str]:
    """Return what the worker prints, up to the line with that text."""
    assert worker.stdout is not None
    lines: list[str] = []
    for line in worker.stdout:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"the worker did not print {text!r}: {lines}")


def test_run_kill_and_approve(folder: Path) -> None:
    url = "sqlite:///expenses.db"
    with working(folder, url) as worker:
        assert holdfast(folder, url, "run", "start", "app:reimburse", ANN, "--id", "ann-1") == (
            "ann-1\n"
        )
        read_until(worker, "MAIL Ann spent 120.00 dollars on train to Basel")
        holdfast(folder, url, "run", "until", "ann-1", "waiting")
        # The same start again: one run, one mail.
        holdfast(folder, url, "run", "start", "app:reimburse", ANN, "--id", "ann-1")
    with working(folder, url) as worker:
        wrong = '{"approved": "perhaps", "by": "Max"}'
        refused = holdfast(folder, url, "run", "signal", "ann-1", "decided", wrong, code=1)
        assert "approved" in refused
        right = '{"approved": true, "by": "Max"}'
        holdfast(folder, url, "run", "signal", "ann-1", "decided", right)
        printed = read_until(worker, "BANK pays 120.00 dollars to Ann")
        assert not any("MAIL" in line for line in printed), "nothing is mailed again"
        holdfast(folder, url, "run", "until", "ann-1", "finished")
        shown = holdfast(folder, url, "run", "show", "ann-1", "--state")
        assert "approved by Max" in shown
        assert "payment for Ann" in shown
        assert "ask_manager" in holdfast(folder, url, "run", "history", "ann-1")


@contextmanager
def served(folder: Path, url: str) -> Iterator[httpx.Client]:
    """Run the web app of the tutorial."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "web:web", "--port", str(port)]
    with (
        running(command, port=port, cwd=folder, env=environment(url)) as server,
        httpx.Client(base_url=server.endpoint, timeout=DEADLINE_SECONDS) as client,
    ):
        yield client


def use_the_web_app(client: httpx.Client) -> None:
    for _ in range(2):  # a browser may repeat it
        answer = client.put("/expenses/bob-1", json=BOB)
        assert answer.status_code == 202, answer.text
        assert answer.json() == {"id": "bob-1", "status": "waiting"}
    assert client.put("/expenses/bob-1", json={**BOB, "usd": 81}).status_code == 409
    assert [run["id"] for run in client.get("/waiting").json()["runs"]] == ["bob-1"]
    assert client.get("/expenses/bob-1").json() == {"status": "waiting"}
    assert client.get("/expenses/nobody").status_code == 404
    decision = {"approved": False, "by": "Max"}
    answers = [client.post("/expenses/bob-1/decision", json=decision) for _ in range(2)]
    assert [answer.json() for answer in answers] == [{"repeated": False}, {"repeated": True}]
    other = client.post("/expenses/bob-1/decision", json={"approved": True, "by": "Eve"})
    assert other.status_code == 409


def test_the_web_app(folder: Path) -> None:
    url = "sqlite:///expenses.db"
    with served(folder, url) as client:
        use_the_web_app(client)
        holdfast(folder, url, "run", "until", "bob-1", "finished")
        assert client.get("/expenses/bob-1").json() == REJECTED
        assert client.get("/waiting").json()["runs"] == []


def test_the_tests_of_the_tutorial_pass(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_app.py"],
        cwd=folder,
        env=environment("unused"),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_the_app_on_dynamodb(folder: Path) -> None:
    with moto_server.serve() as moto:
        url = (
            "dynamodb://expenses?region=eu-west-1&bucket=expense-blobs"
            f"&endpoint={moto.endpoint}&bucket_endpoint={moto.endpoint}"
        )
        holdfast(folder, url, "store", "create", url)
        with served(folder, url) as client:
            use_the_web_app(client)
            holdfast(folder, url, "run", "until", "bob-1", "finished")
            assert client.get("/expenses/bob-1").json() == REJECTED
