"""Finds what a node adds to the fields that have a reducer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from holdfast.errors import InvalidResult
from holdfast.model.reducers import mismatch

__all__ = ["contributions"]


def contributions(
    returned: Any, delta: Mapping[str, Any], before: Mapping[str, Any], ops: Mapping[str, str]
) -> dict[str, Any]:
    """Return a delta in which each field with a reducer holds only what the node added to it.

    A node that returns a dict of some fields returns the additions themselves. A node that returns
    a whole state returns the new values of the fields: the additions are the difference.

    Raises:
        InvalidResult: the reducer cannot combine the addition with the value of the field.
    """
    added = dict(delta)
    for name, op in ops.items():
        if isinstance(returned, Mapping):
            # A value equal to the field's value is not a change, but it is an addition.
            if name not in delta and name in cast(Mapping[Any, Any], returned):
                added[name] = before[name]
        elif name in delta and name in before:
            added[name] = _difference(name, op, before[name], delta[name])
        if name in added and name in before:
            reason = mismatch(op, before[name], added[name])
            if reason is not None:
                raise InvalidResult(f"the field {name!r}: {reason}")
    return added


def _difference(name: str, op: str, before: Any, after: Any) -> Any:
    match op:
        case "append" if after[: len(before)] == before:
            return after[len(before) :]
        case "add":
            return after - before
        case "merge" if before.keys() <= after.keys():
            return {
                key: value
                for key, value in after.items()
                if key not in before or before[key] != value
            }
        case "union" if all(item in after for item in before):
            return [item for item in after if item not in before]
        case "max" | "min" | "last":
            return after
        case _:
            raise InvalidResult(
                f"field {name!r} has the reducer {op!r}: the returned state must not remove "
                "anything from it"
            )
