"""Puts the prompts of a conversation together: each record holds only what is new in it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias, cast

import msgspec

from holdfast.model.arguments import Arguments
from holdfast.model.event import CallFinished, Event, NodeFinished, RecordedCall
from holdfast.model.invocation import Answer

__all__ = ["CallPlace", "Prompts", "missing_base", "place_of", "visit_begins_after"]

CallPlace: TypeAlias = tuple[str, int, str]
"""The branch, the visit and the id of a call."""

Messages: TypeAlias = list[Any]


def place_of(event: CallFinished) -> CallPlace:
    """Return where a call was made."""
    return event.branch, event.visit, event.call


def missing_base(event: Event) -> CallPlace | None:
    """Return the earlier call that a prompt continues; None if it begins a conversation."""
    if isinstance(event, RecordedCall) and isinstance(event.arguments, Arguments):
        after = event.arguments.after
        return (event.branch, event.visit, after) if after else None
    return None


def visit_begins_after(event: Event, place: CallPlace) -> bool:
    """Return whether a call was made after an event that ended an earlier visit of its branch."""
    return isinstance(event, NodeFinished) and event.branch == place[0] and event.visit < place[1]


class Prompts:
    """The messages of the calls that were read, so that later prompts can continue them."""

    def __init__(self) -> None:
        self._known: dict[CallPlace, Messages] = {}

    def knows(self, place: CallPlace) -> bool:
        """Return whether the messages of a call were read."""
        return place in self._known

    def add(self, events: Iterable[Event]) -> None:
        """Add events that were read, in their order."""
        for event in events:
            if isinstance(event, NodeFinished):
                # Nothing continues the conversations of a finished visit.
                ended = [place for place in self._known if place[0] == event.branch]
                for place in ended:
                    del self._known[place]
            elif isinstance(event, RecordedCall) and isinstance(event.arguments, Arguments):
                self._add_call(event, event.arguments)

    def _add_call(self, event: RecordedCall, arguments: Arguments) -> None:
        messages = self.messages_of(event, arguments)
        if messages is None or event.failure is not None:
            return
        try:
            answer = msgspec.convert(event.result, Answer).message()
        except msgspec.ValidationError:
            return
        self._known[place_of(event)] = [*messages, answer]

    def messages_of(self, event: RecordedCall, arguments: Arguments) -> Messages | None:
        """Return all messages of a prompt that was read; None if some of them are unknown."""
        values = arguments.values
        new: Any = None
        if isinstance(values, dict):
            new = cast("dict[str, Any]", values).get("messages")
        if not isinstance(new, list):
            return None  # redaction made something else of it
        if not arguments.after:
            return cast(Messages, new)
        before = self._known.get((event.branch, event.visit, arguments.after))
        return None if before is None else [*before, *cast(Messages, new)]
