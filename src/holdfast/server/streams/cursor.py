"""`StreamCursor`: the place of a follower in a run's events and in its text, as one text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from holdfast.engine.history.cursors import (
    EventCursor,
    TextCursor,
    parse_event_cursor,
    parse_text_cursor,
)
from holdfast.errors import InvalidQuery

__all__ = ["Place", "StreamCursor", "parse_stream_cursor", "place_of_event", "place_of_text"]

Place: TypeAlias = tuple[Any, ...]
"""A position that can be compared with others of the same run and kind."""

_SEPARATOR = "~"
_CHARS_MAX = 400


@dataclass(frozen=True, slots=True)
class StreamCursor:
    """The last event and the last text that a follower has; None where it has none."""

    events: EventCursor | None = None
    text: TextCursor | None = None

    def __str__(self) -> str:
        return f"{self.events or ''}{_SEPARATOR}{self.text or ''}"

    @property
    def generation(self) -> str | None:
        """The generation of the run that it belongs to; None at the beginning of any run."""
        known = self.events or self.text
        return None if known is None else known.generation


def parse_stream_cursor(text: str | None, *, field: str) -> StreamCursor:
    """Parse the id of a message. None or an empty text is the beginning.

    Raises:
        InvalidQuery: it is not such an id.
    """
    if not text:
        return StreamCursor()
    events, separator, spoken = text[:_CHARS_MAX].partition(_SEPARATOR)
    if not separator or len(text) > _CHARS_MAX:
        raise InvalidQuery(
            f"{field} must be the id of a message of this stream, got {text!r:.120}", field=field
        )
    cursor = StreamCursor(
        parse_event_cursor(events or None, field=field),
        parse_text_cursor(spoken or None, field=field),
    )
    if cursor.text is not None and cursor.text.generation != cursor.generation:
        raise InvalidQuery(f"{field} has cursors of two runs: {text!r:.200}", field=field)
    return cursor


def place_of_event(cursor: EventCursor | None) -> Place | None:
    """Return the place of an event; None for the beginning."""
    return None if cursor is None else (cursor.position, cursor.index)


def place_of_text(cursor: TextCursor | None) -> Place | None:
    """Return the place of a piece of text; None for the beginning."""
    return None if cursor is None else (*cursor.spool, cursor.number, cursor.index)
