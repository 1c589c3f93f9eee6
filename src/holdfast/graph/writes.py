"""Which fields of the state a node writes, and how several writers of one get along."""

from __future__ import annotations

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
    """Return the fields that a node may change; None where that is not known.

    Raises:
        InvalidGraph: what was declared are not names of fields.
    """
    if declared is not None:
        if isinstance(declared, str) or not all(isinstance(name, str) for name in declared):
            raise InvalidGraph(f"writes is a list of fields, not {declared!r:.80}")
        return frozenset(declared)
    try:
        returned = typing.get_type_hints(function).get("return", Any)
    except Exception:  # an annotation that cannot be resolved says nothing
        return None
    if returned is type(None):
        return frozenset()
    # A type with fields of its own says which; the state's own type would say: any.
    if returned is state_type or not isinstance(returned, type) or returned is dict:
        return None
    return None if any(faults_of_state(returned)) else StateCodec(returned).fields


def reducer_faults(reducers: Mapping[str, str], fields: frozenset[str] | None) -> Iterator[str]:
    """Yield what is wrong with the reducers of a state."""
    for name, op in reducers.items():
        if fields is not None and name not in fields:
            yield f"there is a reducer for {name!r:.80}, and the state has no such field"
        if op not in REDUCERS:
            yield f"the reducer of {name!r:.80} is one of {', '.join(REDUCERS)}, not {op!r:.80}"
