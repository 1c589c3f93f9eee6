"""A child process with little memory and time: ``python -m tests.confinement MODULE:FUNCTION …``.

The function is called with the rest of the arguments. It warms up first (what it imports, opens and
starts takes address space that says nothing about hostile input), and then calls `confine`. From
there on the process has only so much more address space than it had: an absolute bound would have
to leave room for whatever the libraries of some machine map, and would not be noticed.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import inspect
import logging
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).parents[1]
MB = 1024**2
SECONDS_MAX = 540
_STACK_BYTES = 512 * 1024
_PAGE_BYTES = resource.getpagesize()


def run_confined(function: str, *arguments: str) -> str:
    """Call a function in a process of its own, and return what it printed; it must not fail."""
    # With more arenas each thread would map 64 MB, and what is left would depend on chance.
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.confinement", function, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stderr[-6000:]}"
    return done.stdout


def confine(*, more_bytes: int, cpu_seconds: int) -> None:
    """Let this process have so much more memory and time than it had so far, and no more."""
    gc.collect()
    bytes_max = mapped_bytes() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (bytes_max, bytes_max))
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds_max = int(used.ru_utime + used.ru_stime) + cpu_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (seconds_max, seconds_max))


def mapped_bytes() -> int:
    """Return how much address space this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE_BYTES


def peak_bytes() -> int:
    """Return how much address space this process had at the most."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmPeak:")[2].split()[0]) * 1024


def main(named: str, *arguments: str) -> None:
    # Threads come and go with the work: 8 MB for the stack of each would be most of the room.
    threading.stack_size(_STACK_BYTES)
    logging.disable()
    module, _, name = named.partition(":")
    called = getattr(importlib.import_module(module), name)(*arguments)
    if inspect.iscoroutine(called):
        asyncio.run(called)


if __name__ == "__main__":
    main(*sys.argv[1:])
