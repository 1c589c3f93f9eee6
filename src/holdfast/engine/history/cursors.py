"""Cursors, by which a reader of a run's events or text continues in any process.

A cursor names the generation of a run, so that it is not valid for a later run with the same id,
and a position in an append-only order. So a reader that continues after it misses nothing, and sees
nothing twice.
"""

from __future__ import annotations

import re

import msgspec

from holdfast.errors import InvalidQuery
from holdfast.records.keys import SpoolKey

__all__ = ["EventCursor", "TextCursor", "parse_event_cursor", "parse_text_cursor"]

_ID_GROUP = r"([0-9a-f-]{36})"
_NUMBER_GROUP = r"([0-9]{1,8})"
_EVENT_PATTERN = re.compile(rf"{_ID_GROUP}\.{_NUMBER_GROUP}\.{_NUMBER_GROUP}")
_TEXT_PATTERN = re.compile(
    rf"{_ID_GROUP}\.{_NUMBER_GROUP}\.{_ID_GROUP}\.{_NUMBER_GROUP}\.{_NUMBER_GROUP}"
)


class EventCursor(msgspec.Struct, frozen=True):
    """An event of a run: the position of its record, and its index in the record."""

    generation: str
    position: int
    index: int

    def __str__(self) -> str:
        return f"{self.generation}.{self.position}.{self.index}"


class TextCursor(msgspec.Struct, frozen=True):
    """A position in a run's text: the spool, the item's number, and how many entries were read."""

    generation: str
    spool: SpoolKey
    number: int
    index: int

    def __str__(self) -> str:
        epoch, id = self.spool
        return f"{self.generation}.{epoch}.{id}.{self.number}.{self.index}"


def parse_event_cursor(text: object, *, field: str) -> EventCursor | None:
    """Parse the cursor of a run's events; None if none was given.

    Raises:
        InvalidQuery: it is not a cursor.
    """
    found = _match_cursor(text, _EVENT_PATTERN, kind="events", shown_chars=80, field=field)
    return None if found is None else EventCursor(found[1], int(found[2]), int(found[3]))


def parse_text_cursor(text: object, *, field: str) -> TextCursor | None:
    """Parse the cursor of a run's text; None if none was given.

    Raises:
        InvalidQuery: it is not a cursor.
    """
    found = _match_cursor(text, _TEXT_PATTERN, kind="text", shown_chars=120, field=field)
    if found is None:
        return None
    spool = SpoolKey(int(found[2]), found[3])
    return TextCursor(found[1], spool, int(found[4]), int(found[5]))


def _match_cursor(
    text: object, pattern: re.Pattern[str], *, kind: str, shown_chars: int, field: str
) -> re.Match[str] | None:
    if text is None:
        return None
    found = pattern.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidQuery(f"not a cursor of a run's {kind}: {text!r:.{shown_chars}}", field=field)
    return found
