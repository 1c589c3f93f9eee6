"""Runs a command as a child process, and starts it again when the project's files change."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from holdfast.cli.source_changes import changed_files, source_files
from holdfast.cli.text import say

__all__ = ["run_reloading"]

_POLL_SECONDS = 0.3
# How long a child may take to stop; then it is killed, and its runs continue after their lease.
_STOP_SECONDS = 8.0


def run_reloading(
    command: Sequence[str],
    *,
    folders: Sequence[Path],
    pass_fds: Sequence[int],
    while_ended: Callable[[int], AbstractContextManager[None]],
) -> None:
    """Run a command until a signal; start it again after changes of Python files.

    A child that ends by itself has shown why: it is started again after the next change. Until
    then, the context that ``while_ended`` makes of its exit code is entered.
    """
    with _stop_on_signal() as stop_requested:
        while not stop_requested.is_set():
            files = source_files(folders)
            child = _start(command, pass_fds)
            try:
                with ExitStack() as stack:

                    def end(code: int, stack: ExitStack = stack) -> None:
                        say("the server has ended; waits for a change of a Python file", err=True)
                        stack.enter_context(while_ended(code))

                    changed = _wait_for_change(child, files, folders, stop_requested, on_end=end)
            finally:
                _stop(child)
            if changed:
                names = ", ".join(path.name for path in changed[:3])
                say(f"changed: {names}{', …' if changed[3:] else ''}; starts again", err=True)


def _start(command: Sequence[str], pass_fds: Sequence[int]) -> subprocess.Popen[bytes]:
    # Ctrl-C reaches this process only: a child that got it twice would not drain. Its standard
    # input ends when this process does, so that no child is left behind.
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, pass_fds=pass_fds, start_new_session=True
    )


def _wait_for_change(
    child: subprocess.Popen[bytes],
    files: dict[Path, tuple[int, int]],
    folders: Sequence[Path],
    stop_requested: threading.Event,
    *,
    on_end: Callable[[int], None],
) -> list[Path]:
    """Return the files that changed; none if the process was asked to stop."""
    told = False
    while not stop_requested.wait(_POLL_SECONDS):
        if (code := child.poll()) is not None and not told:
            told = True
            on_end(code)
        changed = changed_files(files, source_files(folders))
        if changed:
            return changed
    return []


def _stop(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
    try:
        child.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdin is not None:
        child.stdin.close()


@contextmanager
def _stop_on_signal() -> Generator[threading.Event]:
    stop_requested = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        stop_requested.set()

    signals = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, handle) for number in signals}
    try:
        yield stop_requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
