"""Reads pages in a child process, so that a page can harm neither this process nor its memory."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from types import TracebackType

import msgspec

from holdfast.integrations.crawling.limits import CrawlLimits
from holdfast.integrations.crawling.page_tasks import (
    LENGTH,
    PageAnswer,
    PageContents,
    PageTask,
)

__all__ = ["PageReader", "PageUnreadable"]

_PROGRAM = "holdfast.integrations.crawling.page_process"
# A parser may keep a little memory of each page.
_PAGES_OF_A_PROCESS = 200
_ANSWER_BYTES_SPARE = 1024 * 1024
_LINK_BYTES_MAX = 2_100


class PageUnreadable(Exception):
    """A page cannot be read within the limits."""


class PageReader:
    """Reads one page after another. A process that fails is replaced before the next page."""

    def __init__(self, limits: CrawlLimits) -> None:
        self.limits = limits
        self._process: Process | None = None
        self._pages = 0

    async def read(self, body: bytes, task: PageTask) -> PageContents:
        """Return what a page has.

        Raises:
            PageUnreadable: a parser failed, or needed too much time or memory.
        """
        if self._pages >= _PAGES_OF_A_PROCESS:
            await self.close()
        self._pages += 1
        try:
            async with asyncio.timeout(self.limits.parse_seconds):
                process = self._process = self._process or await self._started()
                answer = await self._answer(process, body, task)
        except TimeoutError:
            await self.close()
            raise PageUnreadable(
                f"its text could not be read within {self.limits.parse_seconds:g} s"
            ) from None
        except (OSError, asyncio.IncompleteReadError, msgspec.DecodeError):
            await self.close()
            raise PageUnreadable("the process that reads pages failed on it") from None
        except asyncio.CancelledError:
            await self.close()
            raise
        if answer.contents is None:
            await self.close()  # after an error a parser may be in any state
            raise PageUnreadable(f"its text cannot be read: {answer.error}")
        return answer.contents

    async def _started(self) -> Process:
        limits = self.limits
        # -I: neither the working folder nor variables decide what is imported. Without the
        # environment, which may have secrets.
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-m", _PROGRAM),
            *map(str, (os.getpid(), limits.parse_memory_bytes, limits.parse_seconds)),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            env={"LANG": "C.UTF-8"},
        )

    async def _answer(self, process: Process, body: bytes, task: PageTask) -> PageAnswer:
        if process.stdin is None or process.stdout is None:
            raise AssertionError("the process has pipes")
        for frame in (msgspec.json.encode(task), body):
            process.stdin.write(LENGTH.pack(len(frame)) + frame)
        await process.stdin.drain()
        (size,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
        # In JSON, a character takes up to six bytes.
        limits = self.limits
        most = 6 * limits.text_chars_max + limits.links_max * _LINK_BYTES_MAX + _ANSWER_BYTES_SPARE
        if size > most:
            raise OSError(f"an answer of {size} bytes")
        return msgspec.json.decode(await process.stdout.readexactly(size), type=PageAnswer)

    async def close(self) -> None:
        """End the process."""
        process, self._process, self._pages = self._process, None, 0
        if process is None:
            return
        if process.returncode is None:
            with suppress(ProcessLookupError):  # it ended meanwhile
                process.kill()
        # It reads the rest of what the process wrote, and closes the pipes.
        await process.communicate()

    async def __aenter__(self) -> PageReader:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
