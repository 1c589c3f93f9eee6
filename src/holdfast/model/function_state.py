"""The state of a run that executes one function: its input and, after its end, its result."""

from __future__ import annotations

from typing import Any

__all__ = ["INPUT", "RESULT", "input_value", "result_value"]

INPUT = "input"
"""The field of the state that holds the input; absent if the function takes none."""
RESULT = "result"
"""The field of the state that holds the result; absent until the function has returned."""


def input_value(state: dict[str, Any], *, wrapped: bool) -> Any:
    """Return the input in a stored state; the state itself if it is not ``wrapped``."""
    return state.get(INPUT) if wrapped else state


def result_value(state: dict[str, Any], *, wrapped: bool) -> Any:
    """Return the result in a stored state; the state itself if it is not ``wrapped``."""
    return state.get(RESULT) if wrapped else state
