"""The signals that tell a run that its child, or a map of it, has ended."""

from __future__ import annotations

from typing import Any

from holdfast.model.wait import ChildWait, MapWait, signal_kind

__all__ = [
    "child_id_of",
    "child_signal",
    "is_child_signal",
    "is_unfinished_child_signal",
]


def child_signal(id: str) -> str:
    """Return the name of the signal that tells of a child's end."""
    return ChildWait(id).signal


def is_child_signal(name: str) -> bool:
    """Return whether a signal of that name tells of the end of a child, or of a map."""
    return isinstance(signal_kind(name), ChildWait | MapWait)


def child_id_of(name: str) -> str:
    """Return the id of the child that a signal of that name reports; empty for other signals."""
    kind = signal_kind(name)
    return kind.subject if isinstance(kind, ChildWait) else ""


def is_unfinished_child_signal(name: str, payload: Any) -> bool:
    """Return whether a signal tells of a child, or of a map, that ended without a result."""
    return is_child_signal(name) and payload["status"] != "finished"
