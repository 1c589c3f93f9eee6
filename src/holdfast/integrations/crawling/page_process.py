"""The program that reads pages: one process with limits, that answers one task after another.

It reads frames from standard input and writes frames to standard output: a length of four bytes,
then as many bytes. A task is a frame with a `PageTask`, and a frame with the body. The answer is a
frame with `PageContents`, or with an error's text. It ends with its input.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from typing import IO

import msgspec

from holdfast.integrations.crawling.page_reading import read_page
from holdfast.integrations.crawling.page_tasks import LENGTH, PageAnswer, PageTask

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1
_FILES_MAX = 32


def main(memory_bytes: int, cpu_seconds: int) -> None:
    """Answer tasks until the input ends."""
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # what a library prints is no answer
    os.dup2(nowhere, 2)
    _limit(memory_bytes, cpu_seconds)
    while (head := _frame(source)) is not None:
        body = _frame(source)
        if body is None:
            return
        answer = msgspec.json.encode(_answer(head, body))
        sink.write(LENGTH.pack(len(answer)) + answer)
        sink.flush()


def _answer(head: bytes, body: bytes) -> PageAnswer:
    try:
        return PageAnswer(contents=read_page(body, msgspec.json.decode(head, type=PageTask)))
    except (MemoryError, RecursionError) as error:
        return PageAnswer(error=f"it needs too much memory ({type(error).__name__})")
    except Exception as error:
        return PageAnswer(error=f"{type(error).__name__}: {error}"[:300])


def _frame(source: IO[bytes]) -> bytes | None:
    prefix = source.read(LENGTH.size)
    if len(prefix) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(prefix)
    content = source.read(size)
    return content if len(content) == size else None


def _limit(memory_bytes: int, cpu_seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES_MAX, _FILES_MAX))
    if sys.platform == "linux":
        # A task that never ends must not outlive the process that wants its answer.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
