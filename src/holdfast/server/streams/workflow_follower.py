"""`WorkflowFollower`: what one connection gets of the processing of a document."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from holdfast.clock import SystemIds
from holdfast.display import get_logger
from holdfast.errors import DocumentWorkflowNotFound, HoldfastError
from holdfast.server.streams.message import EndReason, StreamMessage, end_message
from holdfast.server.streams.workflow_hub import WorkflowCursor, WorkflowHub

__all__ = ["WorkflowFollower", "join_workflow"]

_log = get_logger("holdfast.server")

# What a follower takes at a time, so that it notices soon that it must end.
_BATCH_MAX = 256


class WorkflowFollower:
    """The messages about a workflow for one connection: a snapshot, then each change."""

    def __init__(self, hub: WorkflowHub, *, follow: bool) -> None:
        self.woken = asyncio.Event()
        self._hub = hub
        self._follow = follow
        self._connection = SystemIds().new()
        self._number = 0
        self._sent = ""
        hub.listeners.add(self.woken)

    async def open(self, after: WorkflowCursor | None, data: Mapping[str, Any]) -> StreamMessage:
        """Read the workflow, store the connection, and return the first message: a snapshot.

        Raises:
            DocumentWorkflowNotFound: there is no such workflow.
        """
        await self._hub.refresh()
        if self._follow:
            await self._hub.connect(self._connection, data)
        if self._follow and after is not None and self._hub.knows(after):
            self._number, self._sent = after.number, str(after)
            # Its id is the old one: what has changed since then comes after it.
            whole = self._hub.snapshot(whole=False)
            return StreamMessage(whole.kind, whole.data, self._sent)
        return self._snapshot()

    async def take(self) -> list[StreamMessage]:
        """Return the next messages; none if there are none yet."""
        messages = self._hub.messages
        if not self._follow:
            return []
        if self._number < messages.first:  # so slow that it needs everything again
            return [self._snapshot()]
        found: list[StreamMessage] = []
        while len(found) < _BATCH_MAX and (entry := messages.get(self._number)) is not None:
            found.append(entry.content)
            self._number += 1
            self._sent = entry.content.id or self._sent
        return found

    async def ending(self) -> StreamMessage | None:
        """Return the last message, if nothing more is to come."""
        if not self._follow:
            return self.end("ended" if self._hub.has_ended else "caught_up")
        error = self._hub.error
        if error is None:
            return self.end("ended") if self._hub.has_ended else None
        if isinstance(error, DocumentWorkflowNotFound):
            return self.end("deleted")
        if isinstance(error, HoldfastError):
            return self.end("error", error.code)
        _log.error("a stream of a document workflow failed", exc_info=error)
        return self.end("error", "internal")

    def end(self, reason: EndReason, code: str | None = None) -> StreamMessage:
        """Return the last message of a stream that ends for this reason."""
        view = self._hub.view
        status = view.status if view is not None and reason in ("ended", "caught_up") else None
        return end_message(reason, resume=self._sent, status=status, code=code)

    def close(self) -> None:
        """Leave the hub."""
        self._hub.listeners.discard(self.woken)
        self._hub.disconnect(self._connection)

    def _snapshot(self) -> StreamMessage:
        message = self._hub.snapshot(whole=True)
        self._number, self._sent = self._hub.messages.next, message.id or ""
        return message


async def join_workflow(
    hub: WorkflowHub,
    after: WorkflowCursor | None,
    *,
    follow: bool,
    data: Mapping[str, Any],
) -> tuple[WorkflowFollower, StreamMessage]:
    """Return a new follower of a workflow, and its first message.

    Raises:
        DocumentWorkflowNotFound: there is no such workflow.
    """
    follower = WorkflowFollower(hub, follow=follow)
    try:
        return follower, await follower.open(after, data)
    except BaseException:
        follower.close()
        raise
