"""Bounds that a child process sets for itself before it looks at a file."""

from __future__ import annotations

import ctypes
import math
import os
import resource
import signal
import sys
import threading
from pathlib import Path

__all__ = ["confine", "die_with_parent", "limit_cpu"]

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_FILES_MAX = 64


def die_with_parent(parent: int, *, watches_input: bool = True) -> None:
    """End this process when its parent ends, or closes the other end of standard input.

    A process that reads its input itself passes ``watches_input=False``, and ends with its input.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    if not watches_input:
        return

    def wait_for_end() -> None:
        while os.read(0, 1024):
            pass
        os._exit(1)

    threading.Thread(target=wait_for_end, daemon=True).start()


def confine(memory_bytes: int) -> None:
    """Let this process use so much more memory than now, write no file, and open only a few."""
    _limit(resource.RLIMIT_AS, _mapped_bytes() + memory_bytes)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, _FILES_MAX)


def limit_cpu(seconds: float) -> None:
    """Let the system end this process when it has used so much more time of a processor."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = math.ceil(used.ru_utime + used.ru_stime + seconds)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
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
