"""Writes the arguments of verbs as JSON: inputs, payloads, filters, budgets, times."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from holdfast.engine.runs.argument_checks import validated_budget, validated_filter
from holdfast.errors import InvalidInput
from holdfast.graph.mismatch import Mismatch
from holdfast.graph.values import durable
from holdfast.model.budget import Budget, BudgetLimits
from holdfast.model.durations import Duration, milliseconds_of
from holdfast.model.function_state import input_value
from holdfast.model.moments import Moment, moment_ms, utc_text
from holdfast.model.program import Program
from holdfast.records.run_filter import RunFilter
from holdfast.records.times import utc_datetime

__all__ = [
    "budget_body",
    "filter_body",
    "filter_query",
    "input_of",
    "payload_of",
    "seconds_of_duration",
    "time_text",
]

_TIMES = ("since", "until", "updated_since", "updated_until")


def input_of(graph: Program[Any, Any] | str, input: Any) -> Any:
    """Return the input of a start as JSON has it; a graph checks it and fills its defaults in.

    Raises:
        InvalidInput: the input does not fit the graph, or JSON cannot carry it.
        InvalidGraph: the graph cannot be run.
    """
    if isinstance(graph, str):
        return payload_of(input, "input")
    checked = graph.check()
    state = checked.start(checked.admitted_input(input), "").state
    return payload_of(input_value(state, wrapped=checked.wraps_values), "input")


def payload_of(value: Any, field: str) -> Any:
    """Return a value as JSON has it; bytes become base64 text.

    Raises:
        InvalidInput: JSON cannot carry it.
    """
    try:
        return msgspec.Raw(msgspec.json.encode(durable(value)))
    except Mismatch as mismatch:
        raise InvalidInput(f"{field} cannot be sent: {mismatch}", field=field) from None


def seconds_of_duration(duration: Duration | None, field: str) -> float | None:
    """Return a duration in seconds.

    Raises:
        InvalidRequest: it is not a duration.
    """
    return None if duration is None else milliseconds_of(duration, field) / 1000


def time_text(moment: Moment | None, field: str) -> str | None:
    """Return a time as ISO 8601 text.

    Raises:
        InvalidRequest: it is not a time.
    """
    return None if moment is None else utc_text(utc_datetime(moment_ms(moment, field)))


def budget_body(budget: Budget | BudgetLimits | None) -> dict[str, Any] | None:
    """Return the JSON of a budget, with the limits that it has.

    Raises:
        InvalidRequest: it is not a budget.
    """
    limits = validated_budget(budget)
    if limits is None:
        return None
    shown = limits.as_dict()
    shown["node_time"] = shown.pop("node_time_seconds")
    shown["wall"] = shown.pop("wall_seconds")
    return {name: value for name, value in shown.items() if value is not None}


def filter_body(run_filter: RunFilter | None) -> dict[str, Any]:
    """Return the JSON of a filter, with the conditions that it has.

    Raises:
        InvalidQuery: it is not a RunFilter.
    """
    given = msgspec.structs.asdict(validated_filter(run_filter))
    body = {name: value for name, value in given.items() if value is not None}
    for name in _TIMES:
        if name in body:
            body[name] = time_text(body[name], name)
    if "status" in body:
        body["status"] = sorted(body["status"])
    if not body.get("labels"):
        body.pop("labels", None)
    return body


def filter_query(run_filter: RunFilter | None) -> dict[str, Any]:
    """Return the query parameters of a filter; a label is ``name=value``.

    Raises:
        InvalidQuery: it is not a RunFilter.
    """
    query = filter_body(run_filter)
    labels = cast(dict[str, str], query.pop("labels", {}))
    if labels:
        query["label"] = [f"{name}={value}" for name, value in labels.items()]
    return query
