"""The signal that tells a run that one of its children has ended."""

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
"""The prefix of these signals. Callers cannot send a signal with this prefix."""


def child_signal(id: str) -> str:
    """Return the name of the signal for the end of a child."""
    return f"{CHILD_SIGNAL_PREFIX}{id}"


def is_child_signal(name: str | None) -> bool:
    """Return whether a signal is for the end of a child."""
    return name is not None and name.startswith(CHILD_SIGNAL_PREFIX)


def child_id_of(name: str) -> str:
    """Return the id of the child that a signal is about; empty for other signals."""
    return name.removeprefix(CHILD_SIGNAL_PREFIX) if name.startswith(CHILD_SIGNAL_PREFIX) else ""


def is_unfinished_child_signal(name: str, payload: Any) -> bool:
    """Return whether a signal says that a child ended without finishing."""
    return is_child_signal(name) and payload["status"] != "finished"
