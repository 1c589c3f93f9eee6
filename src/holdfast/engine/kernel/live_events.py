"""Hands events that are not recorded to the followers of a run in the process that drives it.

Without followers nothing is built and nothing is kept, except the latest progress of each branch,
so that a new follower can show it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Generator
from contextlib import contextmanager

from holdfast.model.node_progress import NodeProgress
from holdfast.model.run import HistoryEntry
from holdfast.records.keys import RunKey

__all__ = ["Feed", "LiveEvents"]

BUFFERED_MAX = 256
"""How many events a slow follower may leave unread; then the oldest ones are dropped."""


class Feed(asyncio.Event):
    """The unread events of one follower. It is set when there are some, or the run has changed.

    A `ChangeNotifier` sets it when the run has changed: then the follower reads the store.
    """

    def __init__(self) -> None:
        super().__init__()
        self.run_changed = False
        """Whether the store has something new since this was last reset."""
        self.dropped = False
        """Whether events were dropped since this was last reset."""
        self._unread: dict[object, tuple[int, int, HistoryEntry]] = {}
        self._added = 0

    @property
    def has_unread(self) -> bool:
        """Whether there are events that the follower has not taken."""
        return bool(self._unread)

    def set(self) -> None:
        """Note that the run has changed, and wake the follower."""
        self.run_changed = True
        super().set()

    def add(self, entry: HistoryEntry, *, position: int, epoch: int, replaces: str = "") -> None:
        """Add an event that happened before the record at ``position`` of the journal.

        It takes the place of an unread event with the same ``replaces``.
        """
        self._added += 1
        key = replaces or self._added
        self._unread.pop(key, None)
        if len(self._unread) >= BUFFERED_MAX:
            del self._unread[next(iter(self._unread))]
            self.dropped = True
        self._unread[key] = (position, epoch, entry)
        super().set()

    def take(self, position: int) -> list[tuple[int, HistoryEntry]]:
        """Return the events before that position of the journal, each with the run's epoch."""
        taken: list[tuple[int, HistoryEntry]] = []
        while self._unread:
            key = next(iter(self._unread))
            before, epoch, entry = self._unread[key]
            if before > position:
                break
            del self._unread[key]
            taken.append((epoch, entry))
        return taken


class LiveEvents:
    """The followers of runs in this process, and the latest progress of the runs that it drives."""

    def __init__(self) -> None:
        self._feeds: dict[RunKey, set[Feed]] = {}
        self._progress: dict[RunKey, dict[str, NodeProgress]] = {}

    def is_followed(self, run: RunKey) -> bool:
        """Return whether a follower wants the events of a run."""
        return run in self._feeds

    def publish(
        self, run: RunKey, entry: HistoryEntry, *, position: int, epoch: int, replaces: str = ""
    ) -> None:
        """Hand an event to the followers of a run; see `Feed.add`."""
        for feed in self._feeds.get(run, ()):
            feed.add(entry, position=position, epoch=epoch, replaces=replaces)

    def set_progress(self, run: RunKey, progress: NodeProgress) -> None:
        """Keep the latest progress of a branch."""
        self._progress.setdefault(run, {})[progress.branch] = progress

    def drop_progress(self, run: RunKey, branch: str) -> None:
        """Forget the progress of a branch: its node has ended."""
        known = self._progress.get(run)
        if known is not None:
            known.pop(branch, None)
            if not known:
                del self._progress[run]

    def progress_of(self, run: RunKey) -> Collection[NodeProgress]:
        """Return the latest progress of each branch of a run that this process drives."""
        return tuple(self._progress.get(run, {}).values())

    @contextmanager
    def follow(self, run: RunKey, feed: Feed) -> Generator[None]:
        """Hand the events of a run to a feed inside of the block."""
        feeds = self._feeds.setdefault(run, set())
        feeds.add(feed)
        try:
            yield
        finally:
            feeds.discard(feed)
            if not feeds and self._feeds.get(run) is feeds:
                del self._feeds[run]
