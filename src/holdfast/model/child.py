"""How the end of a child is told to the run that started it."""

from __future__ import annotations

from typing import Any

__all__ = [
    "CHILD_SIGNAL_PREFIX",
    "child_id_of",
    "child_signal",
    "is_child_signal",
    "is_unfinished_child_signal",
]

CHILD_SIGNAL_PREFIX = "%child."
"""What the names of such signals begin with; nobody else can send one."""


def child_signal(id: str) -> str:
    """Return the name of the signal that tells of a child's end."""
    return f"{CHILD_SIGNAL_PREFIX}{id}"


def is_child_signal(name: str | None) -> bool:
    """Return whether a signal of that name tells of a child's end."""
    return name is not None and name.startswith(CHILD_SIGNAL_PREFIX)


def child_id_of(name: str) -> str:
    """Return the child of whose end a signal of that name tells; empty where it is another one."""
    return name.removeprefix(CHILD_SIGNAL_PREFIX) if name.startswith(CHILD_SIGNAL_PREFIX) else ""


def is_unfinished_child_signal(name: str, payload: Any) -> bool:
    """Return whether a signal tells of a child that ended otherwise than it should have."""
    return is_child_signal(name) and payload["status"] != "finished"
