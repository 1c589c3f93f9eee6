"""The one loop of a process that sends notices, for all that want it to run."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from holdfast.review.loading import ReviewStore
from holdfast.review.notice_sending import NoticeSender
from holdfast.review.notifying import NoticeLoop
from holdfast.review.options import ReviewOptions

__all__ = ["SharedNoticeLoop"]


class SharedNoticeLoop:
    """Runs the loop from the first block that wants it to the end of the last one."""

    def __init__(self, store: ReviewStore, options: ReviewOptions) -> None:
        self._store = store
        self._options = options
        self._blocks = 0
        self._running = AsyncExitStack()

    @asynccontextmanager
    async def run(self) -> AsyncGenerator[None]:
        """Send notices until the block ends, and any other block."""
        self._blocks += 1
        try:
            if self._blocks == 1:
                sender = NoticeSender(self._store.kernel, self._options)
                loop = NoticeLoop(self._store, sender)
                await self._running.enter_async_context(loop)
            yield
        finally:
            self._blocks -= 1
            if self._blocks == 0:
                # Another block may begin, and start another loop, before this one has stopped.
                ending, self._running = self._running, AsyncExitStack()
                await ending.aclose()
