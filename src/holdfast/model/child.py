"""How the end of a child is told to the run that started it."""

from __future__ import annotations

from typing import Any

__all__ = ["CHILD", "child_of", "childs_signal", "is_childs_signal", "is_unfinished_child"]

CHILD = "%child."
"""What the names of such signals begin with; nobody else can send one."""


def childs_signal(id: str) -> str:
    """Return the name of the signal that tells of a child's end."""
    return f"{CHILD}{id}"


def is_childs_signal(name: str | None) -> bool:
    """Return whether a signal of that name tells of a child's end."""
    return name is not None and name.startswith(CHILD)


def child_of(name: str) -> str:
    """Return the child of whose end a signal of that name tells; empty where it is another one."""
    return name.removeprefix(CHILD) if name.startswith(CHILD) else ""


def is_unfinished_child(name: str, payload: Any) -> bool:
    """Return whether a signal tells of a child that ended otherwise than it should have."""
    return is_childs_signal(name) and payload["status"] != "finished"
