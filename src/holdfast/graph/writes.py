"""Finds the fields that a node writes, and checks the reducers of a state."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from holdfast.errors import InvalidGraph
from holdfast.graph.state_codec import StateCodec
from holdfast.graph.state_codec import state_faults as faults_of_state
from holdfast.model.reducers import REDUCERS

__all__ = ["reducer_faults", "written_by"]


def written_by(
    function: Callable[..., Any], declared: Collection[str] | None, state_type: Any
) -> frozenset[str] | None:
    """Return the fields that a node may change; None if they are not known.

    Raises:
        InvalidGraph: ``declared`` is not a list of strings.
    """
    if declared is not None:
        if isinstance(declared, str) or not all(isinstance(name, str) for name in declared):
            raise InvalidGraph(f"writes must be a list of field names, got {declared!r:.80}")
        return frozenset(declared)
    try:
        returned = typing.get_type_hints(function).get("return", Any)
    except Exception:  # an annotation that cannot be resolved tells nothing
        return None
    if returned is type(None):
        return frozenset()
    returned = _without_none(returned)
    # A type with fields names them. The type of the whole state would mean: any field.
    if returned is state_type or not isinstance(returned, type) or returned is dict:
        return None
    return None if any(faults_of_state(returned)) else StateCodec(returned).fields


def _without_none(returned: Any) -> Any:
    """Return the type in ``Changes | None``; any other type as it is."""
    if typing.get_origin(returned) not in (typing.Union, types.UnionType):
        return returned
    rest = [kind for kind in typing.get_args(returned) if kind is not type(None)]
    return rest[0] if len(rest) == 1 else returned


def reducer_faults(reducers: Mapping[str, str], fields: frozenset[str] | None) -> Iterator[str]:
    """Yield what is wrong with the reducers of a state."""
    for name, op in reducers.items():
        if fields is not None and name not in fields:
            yield f"reducers names {name!r:.80}, but the state has no such field"
        if op not in REDUCERS:
            yield (
                f"the reducer of {name!r:.80} must be one of {', '.join(REDUCERS)}, got {op!r:.80}"
            )
