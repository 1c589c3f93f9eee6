"""A child process that parses one file, and a thread that takes what it sends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from holdfast.integrations.reading.frames import (
    FrameDamaged,
    ReadRequest,
    RejectedFrame,
    ResultFrame,
    StartedFrame,
    read_frame,
)
from holdfast.integrations.reading.read_segments import RejectionReason

__all__ = ["CHILD_PROGRAM", "ReadingChild", "child_environment"]

# -I: neither the environment nor the working folder decides what the child imports. It imports
# from where this process does.
CHILD_PROGRAM: Final = (
    sys.executable,
    "-I",
    "-B",
    "-c",
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from holdfast.integrations.reading.child import main; main()",
)
# Frames that may wait for the caller, beside what the pipe holds.
_FRAMES_AHEAD = 2


def child_environment() -> dict[str, str]:
    """Return the environment of a child: nothing of ours, which may contain secrets."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        # Each arena would take 64 MB of the address space that is limited.
        "MALLOC_ARENA_MAX": "2",
        "OMP_THREAD_LIMIT": "1",
    }


class ReadingChild:
    """Parses a file in another process, for one request."""

    def __init__(self, request: ReadRequest, *, program: Sequence[str] = CHILD_PROGRAM) -> None:
        """Start the child and send it the request."""
        self._limits = request.limits
        self._loop = asyncio.get_running_loop()
        self._frames: asyncio.Queue[ResultFrame | None] = asyncio.Queue()
        self._ended = self._loop.create_future()
        self._room = threading.Semaphore(_FRAMES_AHEAD)
        self._timed_out = False
        self._damage: str | None = None
        self._folder = TemporaryDirectory(prefix="holdfast-reading-")
        paths = [os.path.abspath(path) for path in sys.path]
        try:
            self._process = subprocess.Popen(
                [*program, json.dumps(paths)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=self._folder.name,
                env=child_environment(),
                pass_fds=(request.descriptor,),
                # Ctrl-C is for this process, which then ends the child.
                start_new_session=True,
            )
        except BaseException:
            self._folder.cleanup()
            raise
        threading.Thread(
            target=self._pump,
            args=(msgspec.json.encode(request) + b"\n",),
            name="holdfast-reading",
            daemon=True,
        ).start()

    def _pump(self, request: bytes) -> None:
        """Send the request, and hand frames to the event loop, as many as it takes."""
        sent, answers = self._process.stdin, self._process.stdout
        assert sent is not None
        assert answers is not None
        try:
            with suppress(OSError):  # it has ended already
                sent.write(request)
                sent.flush()
            while (frame := read_frame(answers, self._limits)) is not None:
                self._room.acquire()
                self._loop.call_soon_threadsafe(self._frames.put_nowait, frame)
        except FrameDamaged as error:
            self._damage = str(error)
        except RuntimeError:  # the event loop is closed: so is everything that waits
            pass
        finally:
            self._process.kill()
            self._process.wait()
            with suppress(OSError):
                sent.close()
            answers.close()
            self._folder.cleanup()
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        self._frames.put_nowait(None)
        self._ended.set_result(None)

    async def next_frame(self) -> ResultFrame | None:
        """Return the next message; None when the child has ended."""
        while True:
            try:
                async with asyncio.timeout(self._limits.wall_seconds):
                    frame = await self._frames.get()
            except TimeoutError:
                self._timed_out = True
                self.kill()
                frame = await self._frames.get()
            self._room.release()
            if not isinstance(frame, StartedFrame):
                return frame

    def failure(self, index: int | None = None) -> RejectedFrame:
        """Say why the child ended before it was done."""
        code = self._process.returncode
        reason: RejectionReason = "crash"
        if self._timed_out:
            reason, detail = "time", f"it took longer than {self._limits.wall_seconds:g} s"
        elif self._damage is not None:
            detail = f"its parser sent {self._damage}"
        elif code == -signal.SIGXCPU:
            reason = "time"
            detail = f"it needs more than {self._limits.seconds:g} s of a processor"
        elif code == -signal.SIGKILL:
            reason, detail = "memory", "its parser was killed: the system has too little memory"
        elif code is not None and code < 0:
            detail = f"its parser crashed ({signal.Signals(-code).name})"
        else:
            detail = f"its parser ended early (exit status {code})"
        return RejectedFrame(reason, detail, index)

    def kill(self) -> None:
        """End the child. What it sent before can still be taken."""
        # Reaped by the other thread: until then, its id belongs to no other process.
        self._process.kill()

    async def close(self) -> None:
        """End the child and wait until it is gone."""
        self.kill()
        for _ in range(2):  # a frame that has been read, and the end
            self._room.release()
        await asyncio.shield(self._ended)
