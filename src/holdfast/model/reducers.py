"""Reducers: how a field of the state combines values from several nodes or branches.

A field with a reducer is not replaced. What a node returns for it is an addition, and the journal
stores additions. So a list that grows in a loop costs only what is added, and parallel branches are
combined in the order of the branches. Reducers are names, not functions: a journal must be readable
without the code of its graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, cast

__all__ = ["REDUCERS", "Reducer", "mismatch", "reduced"]

Reducer: TypeAlias = Literal["append", "add", "merge", "union", "max", "min", "last"]
"""How an addition is combined with the value of a field.

``append`` adds the items of a list at the end, ``union`` only those that are not in the list yet.
``add`` adds numbers. ``merge`` sets the keys of a dict. ``max`` and ``min`` keep the greater or the
smaller value. ``last`` keeps the last value.
"""


def reduced(state: Mapping[str, Any], delta: Mapping[str, Any], ops: Mapping[str, str]) -> Any:
    """Return the state after a delta. Fields without a reducer are replaced."""
    if not ops:
        return {**state, **delta}
    after = dict(state)
    for name, value in delta.items():
        op = ops.get(name)
        after[name] = value if op is None or name not in state else _OPS[op](state[name], value)
    return after


def mismatch(op: str, before: Any, value: Any) -> str | None:
    """Return why a reducer cannot combine two values; None if it can."""
    kinds, what = _OPERAND_TYPES[op]
    if kinds and not (isinstance(value, kinds) and isinstance(before, kinds)):
        return f"{op!r} takes {what}"
    if op in ("max", "min"):
        try:
            _OPS[op](before, value)
        except TypeError:
            return f"{op!r} cannot compare {type(before).__name__} with {type(value).__name__}"
    return None


def _union(before: list[Any], value: list[Any]) -> list[Any]:
    after = [*before]
    for item in value:
        if item not in after:
            after.append(item)
    return after


_OPS: dict[str, Callable[[Any, Any], Any]] = {
    "append": lambda before, value: [*before, *value],
    "add": lambda before, value: before + value,
    "merge": lambda before, value: {**before, **value},
    "union": _union,
    "max": lambda before, value: max(before, value),
    "min": lambda before, value: min(before, value),
    "last": lambda before, value: value,
}
_OPERAND_TYPES: dict[str, tuple[Any, str]] = {
    "append": (list, "lists"),
    "add": ((int, float), "numbers"),
    "merge": (dict, "dicts"),
    "union": (list, "lists"),
    "max": ((), ""),
    "min": ((), ""),
    "last": ((), ""),
}
REDUCERS = cast(tuple[Reducer, ...], tuple(_OPS))
