"""What happened, line by line: the same lines for the same seed."""

from __future__ import annotations

import hashlib
from typing import TypeAlias

from holdfast.storage.operations import (
    GetItem,
    GetItems,
    Operation,
    QueryItems,
    TransactItems,
    WriteItem,
    WriteItems,
)

__all__ = ["Subject", "Trace", "described"]

Subject: TypeAlias = Operation | str


class Trace:
    """Events with their virtual time; they become text only when somebody asks."""

    def __init__(self) -> None:
        self._events: list[tuple[float, str, str, Subject]] = []

    def __len__(self) -> int:
        return len(self._events)

    def add(self, seconds: float, process: str, what: str, subject: Subject = "") -> None:
        """Note what happened to a process."""
        self._events.append((seconds, process, what, subject))

    def lines(self) -> list[str]:
        """Return everything that happened."""
        return [_line(*event) for event in self._events]

    def tail(self, count: int = 40) -> str:
        """Return the last lines."""
        return "\n".join(_line(*event) for event in self._events[-count:])

    def about(self, text: str, count: int = 40) -> str:
        """Return the last lines in which a text occurs: an item's key, or a process' name."""
        return "\n".join([line for line in self.lines() if text in line][-count:])

    def digest(self) -> str:
        """Return a hash of everything that happened."""
        return hashlib.sha256("\n".join(self.lines()).encode()).hexdigest()


def described(operation: Operation) -> str:
    """Return what is asked of which item."""
    match operation:
        case GetItem(key, eventual):
            return f"get {_key(key)}{' eventually' if eventual else ''}"
        case GetItems(keys, _):
            return f"get_many {', '.join(map(_key, keys))}"
        case QueryItems(pk=pk, range=where, index=index):
            return f"query {index.name if index else 'table'} {pk} {where}"
        case WriteItem(write):
            return f"{type(write).__name__.lower()} {_key(write.key)}"
        case TransactItems(writes) | WriteItems(writes):
            verb = "transact" if isinstance(operation, TransactItems) else "write_many"
            parts = [f"{type(write).__name__.lower()} {_key(write.key)}" for write in writes]
            return f"{verb} {', '.join(parts)}"


def _key(key: tuple[str, str]) -> str:
    return f"{key[0]}/{key[1]}"


def _line(seconds: float, process: str, what: str, subject: Subject) -> str:
    shown = subject if isinstance(subject, str) else described(subject)
    return f"{seconds:13.6f} {process:<10} {what:<22} {shown}"
