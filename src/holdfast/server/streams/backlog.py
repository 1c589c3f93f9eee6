"""`Backlog`: the newest messages of one reader, which its followers share."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from holdfast.server.streams.cursor import Place

__all__ = ["Backlog", "Entry"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """A message in a backlog."""

    content: T
    size: int
    place: Place | None
    """Where it is recorded; None if it is not recorded."""


class Backlog(Generic[T]):
    """Messages in the order of their numbers, which count from 0. The oldest ones leave it."""

    def __init__(self, begin: Place | None, *, count_max: int, bytes_max: int) -> None:
        self.begin = begin
        """All that is recorded after this place is here, or was not read yet."""
        self.last = begin
        """The place of the last recorded message that was added."""
        self.first = 0
        """The number of the oldest message."""
        self._entries: deque[Entry[T]] = deque()
        self._bytes = 0
        self._count_max = count_max
        self._bytes_max = bytes_max

    @property
    def next(self) -> int:
        """The number that the next message will have."""
        return self.first + len(self._entries)

    def get(self, number: int) -> Entry[T] | None:
        """Return the message of a number, which must not have left; None if it is to come."""
        if number < self.first:
            raise IndexError(f"message {number} has left the backlog")
        return self._entries[number - self.first] if number < self.next else None

    def covers(self, place: Place | None) -> bool:
        """Return whether a follower at a place misses nothing if it goes on from here."""
        return self.begin is None or (place is not None and place >= self.begin)

    def has_room(self, size: int) -> bool:
        """Return whether a message of that size fits; a large one fits if it is alone."""
        return not self._entries or (
            len(self._entries) < self._count_max and self._bytes + size <= self._bytes_max
        )

    def append(self, entry: Entry[T]) -> None:
        """Add the newest message."""
        self._entries.append(entry)
        self._bytes += entry.size
        if entry.place is not None:
            self.last = entry.place

    def drop_oldest(self) -> None:
        """Let the oldest message leave."""
        entry = self._entries.popleft()
        self.first += 1
        self._bytes -= entry.size
        if entry.place is not None:
            self.begin = entry.place
