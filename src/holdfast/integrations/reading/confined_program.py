"""Runs another program in bounds: memory, time, output; it ends when the caller is cancelled."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from typing import IO, BinaryIO, Final, NamedTuple, cast

import msgspec

from holdfast.integrations.reading.reading_child import child_environment

__all__ = ["ProgramBounds", "ProgramResult", "run_program"]

# The bounds are set by a Python that then becomes the program: between fork and exec, code of a
# process with threads can block forever.
_LAUNCHER: Final = """
import ctypes, os, resource, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
for name, value in zip(("AS", "CPU", "FSIZE", "CORE", "NOFILE"), map(int, sys.argv[2:7])):
    kind = getattr(resource, "RLIMIT_" + name)
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))
os.execv(sys.argv[7], sys.argv[7:])
"""
_FILE_BYTES_MAX = 256 * 1024**2
_FILES_MAX = 128
_ERRORS_CHARS_MAX = 4_000


class ProgramBounds(msgspec.Struct, frozen=True, kw_only=True):
    """What a program may use."""

    memory_bytes: int = 1024**3
    seconds: float = 120.0
    """Of a processor."""
    wall_seconds: float = 300.0
    output_bytes_max: int = 32 * 1024**2


class ProgramResult(NamedTuple):
    """How a program ended."""

    code: int
    output: bytes
    errors: str
    timed_out: bool = False


async def run_program(
    command: Sequence[str], stdin: bytes, *, bounds: ProgramBounds
) -> ProgramResult:
    """Run a program, by its absolute path, with this standard input, until it ends."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[bytes] = loop.create_future()
    with TemporaryFile() as source, TemporaryFile() as errors:
        source.write(stdin)
        source.seek(0)
        process = _start(command, bounds, stdin=source, stderr=errors)

        def collect() -> None:
            stream = cast("BinaryIO", process.stdout)
            output = stream.read(bounds.output_bytes_max + 1)
            if len(output) > bounds.output_bytes_max:
                process.kill()
            stream.close()
            process.wait()
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(ended.set_result, output)

        threading.Thread(target=collect, name="holdfast-program", daemon=True).start()
        timed_out = False
        try:
            async with asyncio.timeout(bounds.wall_seconds):
                await asyncio.shield(ended)
        except TimeoutError:
            timed_out = True
        finally:
            process.kill()  # nothing, if it has ended: the thread has reaped it
            output = await asyncio.shield(ended)
        errors.seek(0)
        text = errors.read(_ERRORS_CHARS_MAX).decode("utf-8", "replace")
    timed_out = timed_out or process.returncode in (-signal.SIGXCPU, -signal.SIGKILL)
    return ProgramResult(process.returncode, output, text.strip(), timed_out)


def _start(
    command: Sequence[str], bounds: ProgramBounds, *, stdin: IO[bytes], stderr: IO[bytes]
) -> subprocess.Popen[bytes]:
    numbers = (
        os.getpid(),
        bounds.memory_bytes,
        math.ceil(bounds.seconds),
        _FILE_BYTES_MAX,
        0,
        _FILES_MAX,
    )
    launcher = [sys.executable, "-I", "-S", "-B", "-c", _LAUNCHER, *map(str, numbers)]
    return subprocess.Popen(
        [*launcher, *command],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=child_environment(),
        start_new_session=True,
    )
