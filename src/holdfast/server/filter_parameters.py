"""The query parameters that say which runs a route means, and the filter that they make."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

from litestar.params import QueryParameter

from holdfast.errors import InvalidQuery
from holdfast.model.run import PAUSE_REASONS, Status
from holdfast.records.run_filter import RunFilter

__all__ = ["takes_filter"]

_TIME = "2026-11-01T09:30:00Z"
_NAME = "run_filter"


def _text(length: int, description: str, *, pattern: str | None = None) -> Any:
    return Annotated[
        str | None,
        QueryParameter(max_length=length, pattern=pattern, description=description),
    ]


def _dollars(description: str) -> Any:
    return Annotated[float | None, QueryParameter(ge=0, description=description)]


_PARAMETERS: dict[str, Any] = {
    "status": Annotated[
        list[Status] | None,
        QueryParameter(max_items=10, description="Statuses of which a run has one."),
    ],
    "graph": _text(128, "The graph's name."),
    "label": Annotated[
        list[str] | None,
        QueryParameter(max_items=10, description="Labels that a run has, each as name=value."),
    ],
    "since": _text(64, f"Started then or later: {_TIME}."),
    "until": _text(64, f"Started before: {_TIME}."),
    "reason": _text(64, "Why the run is paused.", pattern=f"^({'|'.join(PAUSE_REASONS)})$"),
    "node": _text(1024, "The node at which the run is."),
    "updated_since": _text(64, f"Last written then or later: {_TIME}."),
    "updated_until": _text(64, f"Last written before: {_TIME}."),
    "cost_usd_min": _dollars("Its calls cost at least so many dollars."),
    "cost_usd_max": _dollars("Its calls cost at most so many dollars."),
}


def takes_filter(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a handler the argument ``run_filter``, from query parameters with its conditions."""
    signature = inspect.signature(function)
    hints = get_type_hints(function, include_extras=True)

    @functools.wraps(function)
    async def filtered(**given: Any) -> Any:
        conditions = {name: given.pop(name, None) for name in _PARAMETERS}
        labels = _labels_of(conditions.pop("label") or [])
        return await function(run_filter=RunFilter(labels=labels, **conditions), **given)

    by_name = inspect.Parameter.KEYWORD_ONLY
    taken = [
        each.replace(kind=by_name, annotation=hints[name])
        for name, each in signature.parameters.items()
        if name != _NAME
    ]
    taken += [
        inspect.Parameter(name, by_name, default=None, annotation=hint)
        for name, hint in _PARAMETERS.items()
    ]
    filtered.__signature__ = signature.replace(parameters=taken)  # pyright: ignore[reportAttributeAccessIssue]
    filtered.__annotations__ = {each.name: each.annotation for each in taken}
    filtered.__annotations__["return"] = hints.get("return")
    del filtered.__wrapped__  # its signature is another one
    return filtered


def _labels_of(given: list[str]) -> dict[str, str] | None:
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
