"""A server as a child process: started, awaited until it answers, stopped."""

from __future__ import annotations

import http.client
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 10.0
POLL_SECONDS = 0.02


class ServerFailed(RuntimeError):
    """A server ended, or did not answer in time."""


@dataclass(frozen=True)
class Server:
    endpoint: str
    pid: int


def free_port() -> int:
    """Return a port on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running(
    command: Sequence[str],
    *,
    port: int,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Run a server that will listen on the port; yield it once it answers, and stop it at the end.

    Raises:
        ServerFailed: it ended or did not answer in time; the message has what it printed.
    """
    # On Linux it also ends with the thread that started it, so that nothing is left if we are
    # killed. setpriv becomes the server: the pid stays.
    guard = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [*guard, *command],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            _await_answer(process, port=port, output=output)
            yield Server(endpoint=f"http://127.0.0.1:{port}", pid=process.pid)
        finally:
            _stop(process)


def _await_answer(process: subprocess.Popen[bytes], *, port: int, output: IO[str]) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while not _answers(port):
        # Between two questions we wait for the process and not for a time: if it ends, we know.
        try:
            process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if time.monotonic() < deadline:
                continue
        output.seek(0)
        happened = "did not answer in time" if process.poll() is None else "ended"
        raise ServerFailed(f"{process.args!r} {happened}:\n{output.read()[-4000:]}")


def _answers(port: int) -> bool:
    # Any HTTP answer will do, an error too. An open port alone does not tell that it is served.
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_SECONDS_MAX)
    try:
        connection.request("GET", "/")
        connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
