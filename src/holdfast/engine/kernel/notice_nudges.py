"""Tells the loops of this process that send notices which review has one to send."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from holdfast.records.review import ReviewKey

__all__ = ["NoticeNudges"]


class NoticeNudges:
    """The listeners of this process. Without one, a nudge is lost: polls find the notice."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[ReviewKey], None]] = []

    @contextmanager
    def listen(self, listener: Callable[[ReviewKey], None]) -> Generator[None]:
        """Call a listener whenever this process has written a review with a notice."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def nudge(self, review: ReviewKey) -> None:
        """Tell the listeners that a review may have a notice to send."""
        for listener in self._listeners:
            listener(review)
