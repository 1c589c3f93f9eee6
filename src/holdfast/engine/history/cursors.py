"""Where somebody who reads what a run did, or said, goes on: in whatever process.

A cursor names the generation of a run, so that it is none of another run that has its id later,
and a place in an order in which nothing is ever put before what is there. So whoever goes on after
it misses nothing and sees nothing twice.
"""

from __future__ import annotations

import re

import msgspec

from holdfast.errors import InvalidQuery
from holdfast.records.keys import SpoolKey

__all__ = ["EventCursor", "TextCursor", "event_cursor_of", "text_cursor_of"]

_ID = r"([0-9a-f-]{36})"
_NUMBER = r"([0-9]{1,8})"
_EVENT = re.compile(rf"{_ID}\.{_NUMBER}\.{_NUMBER}")
_TEXT = re.compile(rf"{_ID}\.{_NUMBER}\.{_ID}\.{_NUMBER}\.{_NUMBER}")


class EventCursor(msgspec.Struct, frozen=True):
    """Names an event of a run: the position of its record, its index in the record."""

    generation: str
    position: int
    index: int

    def __str__(self) -> str:
        return f"{self.generation}.{self.position}.{self.index}"


class TextCursor(msgspec.Struct, frozen=True):
    """Names a place in a run's text: the spool, the item's number, how many entries were read."""

    generation: str
    spool: SpoolKey
    number: int
    index: int

    def __str__(self) -> str:
        epoch, id = self.spool
        return f"{self.generation}.{epoch}.{id}.{self.number}.{self.index}"


def event_cursor_of(text: object, *, field: str) -> EventCursor | None:
    """Return the cursor of a run's events that a text is; None where none was given.

    Raises:
        InvalidQuery: it is not a cursor.
    """
    found = _matched(text, _EVENT, of="events", shown=80, field=field)
    return None if found is None else EventCursor(found[1], int(found[2]), int(found[3]))


def text_cursor_of(text: object, *, field: str) -> TextCursor | None:
    """Return the cursor of a run's text that a text is; None where none was given.

    Raises:
        InvalidQuery: it is not a cursor.
    """
    found = _matched(text, _TEXT, of="text", shown=120, field=field)
    if found is None:
        return None
    spool = SpoolKey(int(found[2]), found[3])
    return TextCursor(found[1], spool, int(found[4]), int(found[5]))


def _matched(
    text: object, form: re.Pattern[str], *, of: str, shown: int, field: str
) -> re.Match[str] | None:
    if text is None:
        return None
    found = form.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidQuery(f"not a cursor of a run's {of}: {text!r:.{shown}}", field=field)
    return found
