"""The program that reads pages: one process with limits, that answers one task after another.

It reads frames from standard input and writes frames to standard output: a length of four bytes,
then as many bytes. A task is a frame with a `PageTask`, and a frame with the body. The answer is a
frame with `PageContents`, or with an error's text. It ends with its input.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import resource
import signal
import sys
from pathlib import Path
from typing import IO

import msgspec

from holdfast.integrations.crawling.page_reading import read_page
from holdfast.integrations.crawling.page_tasks import LENGTH, PageAnswer, PageTask

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_FILES_MAX = 32
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def main(memory_bytes: int, seconds: float) -> None:
    """Answer tasks until the input ends."""
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # what a library prints is no answer
    os.dup2(nowhere, 2)
    _confine(memory_bytes)
    while (head := _frame(source)) is not None:
        body = _frame(source)
        if body is None:
            return
        _limit_cpu(seconds)
        answer = msgspec.json.encode(_answer(head, body))
        sink.write(LENGTH.pack(len(answer)) + answer)
        sink.flush()


def _answer(head: bytes, body: bytes) -> PageAnswer:
    try:
        return PageAnswer(contents=read_page(body, msgspec.json.decode(head, type=PageTask)))
    except MemoryError:
        return PageAnswer(error="it needs too much memory")
    except RecursionError:
        return PageAnswer(error="it is nested too deeply")
    except Exception as error:
        return PageAnswer(error=_UNPRINTABLE.sub("", f"{type(error).__name__}: {error}")[:300])


def _frame(source: IO[bytes]) -> bytes | None:
    prefix = source.read(LENGTH.size)
    if len(prefix) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(prefix)
    content = source.read(size)
    return content if len(content) == size else None


def _confine(memory_bytes: int) -> None:
    """Let this process use so much more memory than now, write no file, and open only a few."""
    _limit(resource.RLIMIT_AS, _mapped_bytes() + memory_bytes)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, _FILES_MAX)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        # A task that never ends must not outlive the process that wants its answer.
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _limit_cpu(seconds: float) -> None:
    """Let the system end this process when it has used so much more time of a processor."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = math.ceil(used.ru_utime + used.ru_stime + seconds)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _mapped_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:  # not Linux: what a Python with its libraries maps, and then some
        return 2 * 1024**3
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
