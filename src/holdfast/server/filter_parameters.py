"""Query parameters that say which runs: the conditions of a `RunFilter`."""

from __future__ import annotations

from typing import Annotated

from litestar.params import QueryParameter

from holdfast.errors import InvalidQuery
from holdfast.model.run import PAUSE_REASONS, Status

__all__ = [
    "CostMax",
    "CostMin",
    "GraphIs",
    "LabelIs",
    "NodeIs",
    "ReasonIs",
    "Since",
    "StatusIs",
    "Until",
    "UpdatedSince",
    "UpdatedUntil",
    "labels_of",
]

_TIME = "2026-11-01T09:30:00Z"
StatusIs = Annotated[
    list[Status] | None,
    QueryParameter(max_items=10, description="Statuses of which a run has one."),
]
GraphIs = Annotated[str | None, QueryParameter(max_length=128, description="The graph's name.")]
LabelIs = Annotated[
    list[str] | None,
    QueryParameter(max_items=10, description="Labels that a run has, each as name=value."),
]
ReasonIs = Annotated[
    str | None,
    QueryParameter(
        max_length=64,
        pattern=f"^({'|'.join(PAUSE_REASONS)})$",
        description="Why the run is paused.",
    ),
]
NodeIs = Annotated[
    str | None, QueryParameter(max_length=1024, description="The node at which the run is.")
]
Since = Annotated[
    str | None, QueryParameter(max_length=64, description=f"Started then or later: {_TIME}.")
]
Until = Annotated[
    str | None, QueryParameter(max_length=64, description=f"Started before: {_TIME}.")
]
UpdatedSince = Annotated[
    str | None, QueryParameter(max_length=64, description=f"Last written then or later: {_TIME}.")
]
UpdatedUntil = Annotated[
    str | None, QueryParameter(max_length=64, description=f"Last written before: {_TIME}.")
]
CostMin = Annotated[
    float | None, QueryParameter(ge=0, description="Its calls cost at least so many dollars.")
]
CostMax = Annotated[
    float | None, QueryParameter(ge=0, description="Its calls cost at most so many dollars.")
]


def labels_of(given: list[str]) -> dict[str, str] | None:
    """Return labels that are written as ``name=value``.

    Raises:
        InvalidQuery: one is not, or two of them have one name.
    """
    labels: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or name in labels:
            raise InvalidQuery(
                f"label must be name=value, with each name once, got {text!r:.80}", field="label"
            )
        labels[name] = value
    return labels or None
