"""Events that are not recorded: built from the row of a run, or reported by its driver.

A follower in the process of the driver gets them from memory. A follower in another process derives
them from the row and the records that it reads anyway, so it misses what passes between two reads.
`KINDS` has all of them; docs/guides/events.md has a table of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from holdfast.engine.history.spooled_progress import SpooledProgress
from holdfast.engine.history.views import run_of
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.kernel.live_events import Feed
from holdfast.model.node_progress import NodeProgress
from holdfast.model.run import HistoryEntry, Run
from holdfast.records.head import ENDED, Head
from holdfast.records.keys import RunKey
from holdfast.records.row_events import (
    ended_entry,
    paused_entry,
    snapshot_entry,
    started_entry,
    unrecorded_entry,
)
from holdfast.records.times import utc_datetime

__all__ = [
    "KINDS",
    "EphemeralEvents",
    "LocalDrivers",
    "node_started_entry",
    "progress_entry",
    "resumed_entry",
]

KINDS = ("snapshot", "started", "node_started", "paused", "resumed", "progress", "ended")
"""The kinds of events that are not recorded."""


class LocalDrivers(Protocol):
    """The drivers of runs in this process, whose reports need not be derived from rows."""

    def has_claimed(self, run: RunKey) -> bool:
        """Return whether a run has a driver here."""
        ...

    def has_worker(self, id: str | None) -> bool:
        """Return whether a worker of this process has that name."""
        ...

    def node_of(self, run: RunKey) -> str | None:
        """Return the node at which a run stands here; None if it has no driver."""
        ...


class EphemeralEvents:
    """What one follower gets besides the recorded events: each change once, never an older one."""

    def __init__(self, kernel: Kernel, feed: Feed, drivers: LocalDrivers) -> None:
        self._kernel = kernel
        self._feed = feed
        self._drivers = drivers
        # The epoch grows with every claim and every pause: an older event is not news.
        self._epoch = -1
        self._is_paused = False
        self._next_node: str | None = None
        self._spooled = SpooledProgress(kernel)

    def open(self, head: Head, *, from_start: bool) -> Iterator[HistoryEntry]:
        """Yield what a follower gets first: the row, and the start if it follows from there on."""
        yield self._snapshot(head)
        if from_start:
            yield started_entry(self._run_of(head), node=head.first)

    def take(self, position: int) -> Iterator[HistoryEntry]:
        """Yield what the driver reported before that position of the journal was written."""
        for epoch, entry in self._feed.take(position):
            if entry.kind == "paused":
                if epoch > self._epoch:
                    self._epoch, self._is_paused = epoch, True
                    yield entry
            elif entry.kind == "resumed":
                if epoch > self._epoch:
                    was_paused = self._is_paused
                    self._epoch, self._is_paused = epoch, False
                    if was_paused:
                        yield entry
            else:
                yield entry

    def note_recorded(self, entry: HistoryEntry) -> None:
        """Note a recorded event: a finished node names the next one."""
        if entry.kind == "node" and "branch" not in entry.details:
            forks = entry.details.get("fork") is not None
            self._next_node = None if forks else entry.details["to"]

    async def observe(self, head: Head) -> list[HistoryEntry]:
        """Return what the row tells that the follower does not know yet."""
        found: list[HistoryEntry] = []
        is_elsewhere = head.owner is not None and not self._drivers.has_worker(head.owner)
        if self._feed.dropped and not self._feed.has_unread:
            self._feed.dropped = False
            found.append(self._snapshot(head))
        elif head.epoch > self._epoch and head.status not in ENDED:
            found += self._changes(head, is_elsewhere=is_elsewhere)
        if is_elsewhere:
            if self._next_node is not None:
                now = self._kernel.clock.now_ms()
                found.append(node_started_entry(self._next_node, at_ms=now, attempt=1))
            found += [progress_entry(each) for each in await self._spooled.read(head)]
        self._next_node = None
        return found

    def end(self, head: Head) -> HistoryEntry:
        """Return the last event of a run that has ended."""
        return ended_entry(self._run_of(head))

    def _changes(self, head: Head, *, is_elsewhere: bool) -> Iterator[HistoryEntry]:
        run = self._run_of(head)
        if run.status == "waiting":
            if not self._drivers.has_claimed(head.key):  # otherwise its driver reports it soon
                self._epoch, self._is_paused = head.epoch, True
                yield paused_entry(run)
        elif head.owner is not None:
            was_paused, self._is_paused, self._epoch = self._is_paused, False, head.epoch
            if was_paused:
                yield resumed_entry(head.node, at_ms=head.updated_ms)
                if is_elsewhere:
                    yield node_started_entry(head.node, at_ms=head.updated_ms)

    def _snapshot(self, head: Head) -> HistoryEntry:
        run = self._run_of(head)
        self._epoch = head.epoch
        # A run that was woken keeps the reason of its last pause until a worker claims it.
        self._is_paused = head.owner is None and head.reason is not None
        return snapshot_entry(
            run,
            at_ms=self._kernel.clock.now_ms(),
            node=self._drivers.node_of(head.key) or run.node,
            progress=list(self._kernel.live.progress_of(head.key)),
        )

    def _run_of(self, head: Head) -> Run:
        return run_of(head, user=None, now_ms=self._kernel.clock.now_ms())


def resumed_entry(node: str, *, at_ms: int) -> HistoryEntry:
    """Return the event that a worker took a paused run up again."""
    return unrecorded_entry("resumed", utc_datetime(at_ms), node=node)


def node_started_entry(
    node: str, *, at_ms: int, branch: str = "", attempt: int | None = None
) -> HistoryEntry:
    """Return the event that a node began; a node begins again after a pause."""
    details: dict[str, Any] = {} if attempt is None else {"attempt": attempt}
    if branch:
        details["branch"] = branch
    return unrecorded_entry("node_started", utc_datetime(at_ms), node=node, details=details)


def progress_entry(progress: NodeProgress) -> HistoryEntry:
    """Return the event that a node reported how far it is."""
    details: dict[str, Any] = {"fraction": progress.fraction, "message": progress.message}
    if progress.branch:
        details["branch"] = progress.branch
    at = utc_datetime(progress.at_ms)
    return unrecorded_entry("progress", at, node=progress.node, details=details)
