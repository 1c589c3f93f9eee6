"""`WorkflowHub`: one reader of a document's processing for all of its followers on this server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from holdfast.clock import Clock, SystemIds
from holdfast.display import get_logger
from holdfast.errors import HoldfastError, InvalidQuery
from holdfast.model.document import (
    DocumentSegmentPage,
    DocumentStep,
    DocumentWorkflow,
    StepName,
)
from holdfast.server.streams.backlog import Backlog, Entry
from holdfast.server.streams.index_ranges import IndexRange
from holdfast.server.streams.message import MessageKind, StreamMessage
from holdfast.server.streams.segment_board import SegmentBoard, SegmentChange
from holdfast.server.streams.shared_reader import ReaderLimits
from holdfast.server.streams.view_poller import ViewPoller
from holdfast.server.streams.workflow_progress import ENDED_STATUSES, WorkflowProgress, view_of

__all__ = ["WorkflowCursor", "WorkflowHub", "WorkflowSource", "parse_workflow_cursor"]

_log = get_logger("holdfast.server")

_CURSOR_PATTERN = re.compile(r"([0-9a-f]{12})\.([0-9]{1,12})")
# Connections are stored again before their items expire.
_CONNECTION_SECONDS = 3600.0


class WorkflowSource(Protocol):
    """What a hub reads, and where it stores who follows: `Documents`, for one workflow."""

    async def workflow(self) -> DocumentWorkflow:
        """Return the workflow."""
        ...

    async def steps(self) -> Mapping[StepName, DocumentStep]:
        """Return the steps."""
        ...

    async def segments(
        self, ranges: Sequence[IndexRange], *, limit: int, eventual: bool
    ) -> DocumentSegmentPage:
        """Return the segments of ranges, as `SegmentReads` says."""
        ...

    async def connect(self, connection: str, data: Mapping[str, Any]) -> None:
        """Store a connection, again if it is stored."""
        ...

    async def disconnect(self, connection: str) -> None:
        """Delete a connection."""
        ...


@dataclass(frozen=True, slots=True)
class WorkflowCursor:
    """How many messages of a hub a follower has."""

    hub: str
    number: int

    def __str__(self) -> str:
        return f"{self.hub}.{self.number}"


def parse_workflow_cursor(text: str | None, *, field: str) -> WorkflowCursor | None:
    """Parse the id of a message; None if none was given.

    Raises:
        InvalidQuery: it is not such an id.
    """
    if not text:
        return None
    found = _CURSOR_PATTERN.fullmatch(text)
    if found is None:
        raise InvalidQuery(
            f"{field} must be the id of a message of this stream, got {text!r:.80}", field=field
        )
    return WorkflowCursor(found[1], int(found[2]))


class WorkflowHub(ViewPoller[WorkflowProgress]):
    """What the followers of one workflow share: its view, and the newest messages about it."""

    def __init__(
        self, source: WorkflowSource, *, clock: Clock, limits: ReaderLimits, poll_seconds: float
    ) -> None:
        super().__init__(poll_seconds=poll_seconds)
        self.messages = Backlog[StreamMessage](
            None, count_max=limits.messages_max, bytes_max=limits.bytes_max
        )
        """The newest messages, encoded once for all followers."""
        self._source = source
        self._clock = clock
        self._name = SystemIds(clock).new().replace("-", "")[-12:]
        self._board = SegmentBoard(source.segments)
        self._snapshot: StreamMessage | None = None
        self._connections: dict[str, Mapping[str, Any]] = {}
        self._stored_at = clock.monotonic()
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def has_ended(self) -> bool:
        """Whether the document is processed no more."""
        return self.view is not None and self.is_last(self.view)

    def is_last(self, view: WorkflowProgress) -> bool:
        """Return whether the document is processed no more."""
        return view.status in ENDED_STATUSES

    async def read_view(self, before: WorkflowProgress | None) -> WorkflowProgress:
        """Read the workflow, its steps, and the segments that are new."""
        workflow = await self._source.workflow()  # first: what it says is stored before it
        steps = await self._source.steps()
        if before is not None and before.workflow["attempt"] != workflow.attempt:
            self._board = SegmentBoard(self._source.segments)  # all may be processed again
            whole = True
        else:
            whole = before is None or workflow.status in ENDED_STATUSES
        changed = await self._board.look(workflow.total_segments or 0, whole=whole)
        view = view_of(
            workflow,
            steps,
            self._board,
            histories={} if before is None else before.histories,
            now_ms=self._clock.now_ms(),
        )
        await self._renew_connections()
        return view if before is None else self._told(before, view, changed)

    def snapshot(self, *, whole: bool) -> StreamMessage:
        """Return the message that tells everything, with or without the states of segments."""
        id = str(self.cursor)
        if not whole:
            return StreamMessage("snapshot", self._snapshot_data(segments=None), id)
        if self._snapshot is None or self._snapshot.id != id:
            segments = {
                "completed": self._board.ranges("completed"),
                "failed": self._board.ranges("failed"),
                "skipped": self._board.ranges("skipped"),
                "errors": [
                    {"index": index, "error": error}
                    for index, error in sorted(self._board.errors.items())
                ],
            }
            self._snapshot = StreamMessage("snapshot", self._snapshot_data(segments=segments), id)
        return self._snapshot

    @property
    def cursor(self) -> WorkflowCursor:
        """The id of the last message."""
        return WorkflowCursor(self._name, self.messages.next)

    def knows(self, cursor: WorkflowCursor) -> bool:
        """Return whether all messages after a cursor are still here."""
        in_backlog = self.messages.first <= cursor.number <= self.messages.next
        return cursor.hub == self._name and in_backlog

    async def connect(self, connection: str, data: Mapping[str, Any]) -> None:
        """Store that a connection follows the workflow."""
        await self._source.connect(connection, data)
        self._connections[connection] = data

    def disconnect(self, connection: str) -> None:
        """Delete a connection from the store, in the background."""
        if self._connections.pop(connection, None) is not None:
            task = asyncio.create_task(self._disconnect(connection))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """Stop reading."""
        await super().close()
        if self._leaving:
            await asyncio.wait(self._leaving)

    def _told(
        self, before: WorkflowProgress, now: WorkflowProgress, changed: Sequence[SegmentChange]
    ) -> WorkflowProgress:
        """Add the messages for a follower that has an earlier view, and return what they tell."""
        view = now.changed_from(before)
        for segment in changed:
            self._add("segment", segment)
        for name, step in view.steps.items():
            if step is not before.steps.get(name):
                self._add("step", step)
        if view.workflow is not before.workflow:
            self._add("workflow", view.workflow)
        return view

    def _add(self, kind: MessageKind, content: Any) -> None:
        data = msgspec.json.encode(content)
        id = str(WorkflowCursor(self._name, self.messages.next + 1))
        while not self.messages.has_room(len(data)):
            self.messages.drop_oldest()
        self.messages.append(Entry(StreamMessage(kind, data, id), len(data), None))

    def _snapshot_data(self, *, segments: Mapping[str, Any] | None) -> bytes:
        assert self.view is not None
        content = {
            "workflow": self.view.workflow,
            "steps": list(self.view.steps.values()),
            "segments": segments,
        }
        return msgspec.json.encode(content)

    async def _renew_connections(self) -> None:
        if self._clock.monotonic() < self._stored_at + _CONNECTION_SECONDS:
            return
        self._stored_at = self._clock.monotonic()
        for connection, data in list(self._connections.items()):
            await self._source.connect(connection, data)

    async def _disconnect(self, connection: str) -> None:
        try:
            await self._source.disconnect(connection)
        except HoldfastError as error:  # its item expires
            _log.info("the connection %s was not deleted: %s", connection, error)
