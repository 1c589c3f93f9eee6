"""What runs cost in groups: pure, from the entries of a list."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.errors import HoldfastError, InvalidName, InvalidQuery
from holdfast.model.fleet import CostGroup, PurposeCost
from holdfast.model.names import validated_labels
from holdfast.model.run import RunEntry
from holdfast.storage.meter import Report, cost_usd

__all__ = ["cost_groups", "grouping", "merged_groups", "purpose_costs"]

_LABEL = "label:"
_GROUPINGS: dict[str, Callable[[RunEntry], str]] = {
    "graph": lambda entry: entry.graph,
    "day": lambda entry: entry.created_at.date().isoformat(),
    "status": lambda entry: entry.status,
}


def grouping(by: object) -> Callable[[RunEntry], str]:
    """Return the function that gives the group of a run.

    Raises:
        InvalidQuery: there is no such grouping.
    """
    if isinstance(by, str):
        if by in _GROUPINGS:
            return _GROUPINGS[by]
        if by.startswith(_LABEL):
            name = by.removeprefix(_LABEL)
            try:
                validated_labels({name: "x"})
            except InvalidName as error:
                raise _wrong_grouping(by, error) from error
            return lambda entry: entry.labels.get(name, "")
    raise _wrong_grouping(by)


def cost_groups(entries: Iterable[RunEntry], key_of: Callable[[RunEntry], str]) -> list[CostGroup]:
    """Return what runs cost, by group, the most expensive group first."""
    return merged_groups(
        CostGroup(key=key_of(entry), runs=1, tokens=entry.tokens, cost_usd=entry.cost_usd)
        for entry in entries
    )


def merged_groups(groups: Iterable[CostGroup]) -> list[CostGroup]:
    """Return groups in which each key occurs once, the most expensive first."""
    merged: dict[str, CostGroup] = {}
    for group in groups:
        known = merged.get(group.key, CostGroup(key=group.key, runs=0, tokens=0, cost_usd=0.0))
        merged[group.key] = CostGroup(
            key=group.key,
            runs=known.runs + group.runs,
            tokens=known.tokens + group.tokens,
            # A sum of floats drifts: nine digits are a nanodollar.
            cost_usd=round(known.cost_usd + group.cost_usd, 9),
        )
    return sorted(merged.values(), key=lambda group: (-group.cost_usd, -group.runs, group.key))


def purpose_costs(report: Report) -> list[PurposeCost]:
    """Return what the store was used for, the most expensive purpose first."""
    calls: dict[str, int] = {}
    for row in report.rows:
        calls[row.purpose] = calls.get(row.purpose, 0) + row.calls
    costs = [
        PurposeCost(
            purpose=purpose,
            calls=calls[purpose],
            read_units=units.reads,
            write_units=units.writes,
            cost_usd=cost_usd(units, report.prices),
        )
        for purpose, units in report.by_purpose().items()
    ]
    return sorted(costs, key=lambda cost: (-cost.cost_usd, cost.purpose))


def _wrong_grouping(by: object, error: HoldfastError | None = None) -> InvalidQuery:
    why = "" if error is None else f": {error}"
    return InvalidQuery(
        f"by must be graph, day, status or label:NAME, got {by!r:.80}{why}",
        field="by",
    )
