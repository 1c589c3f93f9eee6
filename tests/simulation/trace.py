"""What happened, line by line: the same lines for the same seed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, TypeAlias

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

_PARTS = 4


class Trace:
    """Events with their virtual time; they become text only when somebody asks."""

    def __init__(self) -> None:
        # One after the other, four to an event: tuples would be the garbage collector's main work.
        self._parts: list[Any] = []
        self.extend: Callable[[tuple[float, str, str, Subject]], None] = self._parts.extend
        """As `add`, for callers that note much: it takes one tuple, and is a builtin."""

    def __len__(self) -> int:
        return len(self._parts) // _PARTS

    def add(self, seconds: float, process: str, what: str, subject: Subject = "") -> None:
        """Note what happened to a process."""
        self.extend((seconds, process, what, subject))

    def lines(self, last: int | None = None) -> list[str]:
        """Return everything that happened, or as many of the last lines."""
        parts = self._parts if last is None else self._parts[-_PARTS * last :]
        return [_line(*parts[at : at + _PARTS]) for at in range(0, len(parts), _PARTS)]

    def tail(self, count: int = 40) -> str:
        """Return the last lines."""
        return "\n".join(self.lines(count))

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
