"""`RunFilter`: which runs a list shows or a bulk action acts on."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import cast, get_args

import msgspec

from holdfast.errors import InvalidQuery
from holdfast.model.execution import is_in_summary
from holdfast.model.moments import MOMENT_MS_MAX, Moment, moment_ms
from holdfast.model.names import validated_labels
from holdfast.model.run import PAUSE_REASONS, RunEntry, Status

__all__ = ["RunFilter"]


# What the index says of open runs, and what callers see of them.
_INDEXED_OPEN = frozenset({"running", "waiting"})
_SHOWN_OPEN = frozenset({"ready", "running", "waiting"})


class _StatusFilter(msgspec.Struct, frozen=True):
    """The condition that may be given without its name: ``RunFilter("failed")``."""

    status: Status | Collection[Status] | None = None
    """One status, or several of which a run has one."""


class RunFilter(_StatusFilter, frozen=True, kw_only=True):
    """Which runs a list shows or a bulk action acts on: those that meet all conditions given.

    ``RunFilter()`` has no condition, and so means all runs.

    Raises:
        InvalidQuery: an unknown status or reason, a graph or node that is not a name, an amount
            that is none, or a lower bound above the upper one.
        InvalidName: a label that no run can have.
        InvalidRequest: a time without a time zone, or that is none.
    """

    graph: str | None = None
    """The name of the runs' graph."""
    labels: Mapping[str, str] | None = None
    """Labels that a run has, each with this value."""
    since: Moment | None = None
    """The run was started at this time or later."""
    until: Moment | None = None
    """The run was started before this time."""
    reason: str | None = None
    """Why the run is paused, one of the reasons of `Run`."""
    node: str | None = None
    """The run, or a branch of it, was at this node when its row was last written."""
    updated_since: Moment | None = None
    """The run's row was last written at this time or later."""
    updated_until: Moment | None = None
    """The run's row was last written before this time."""
    cost_usd_min: float | Decimal | None = None
    """The run's calls cost at least so many dollars, when its row was last written."""
    cost_usd_max: float | Decimal | None = None
    """The run's calls cost at most so many dollars, when its row was last written."""

    def __post_init__(self) -> None:
        if self.status is not None:
            msgspec.structs.force_setattr(self, "status", _validated_statuses(self.status))
        for field in ("graph", "node"):
            name: object = getattr(self, field)
            if name is not None and not isinstance(name, str):
                raise InvalidQuery(
                    f"{field} must be the name of a {field}, got {name!r:.80}", field=field
                )
        if self.reason is not None and self.reason not in PAUSE_REASONS:
            raise InvalidQuery(
                f"reason must be one of {', '.join(PAUSE_REASONS)}, got {self.reason!r:.80}",
                field="reason",
            )
        msgspec.structs.force_setattr(self, "labels", validated_labels(self.labels))
        moments = {
            field: moment_ms(moment, field)
            for field in ("since", "until", "updated_since", "updated_until")
            if (moment := getattr(self, field)) is not None
        }
        _check_order(moments, "updated_since", "updated_until")
        amounts: dict[str, float] = {}
        for field in ("cost_usd_min", "cost_usd_max"):
            amount: object = getattr(self, field)
            if amount is not None:
                amounts[field] = _validated_amount(amount, field)
                msgspec.structs.force_setattr(self, field, amounts[field])
        _check_order(amounts, "cost_usd_min", "cost_usd_max")

    @property
    def is_empty(self) -> bool:
        """Whether it has no condition."""
        return self == RunFilter()

    @property
    def statuses(self) -> frozenset[str] | None:
        """The statuses that a run may have; None where it may have any."""
        return None if self.status is None else frozenset(self.status)

    @property
    def since_ms(self) -> int:
        """The first millisecond at which a run may have been started."""
        return 0 if self.since is None else moment_ms(self.since, "since")

    @property
    def until_ms(self) -> int:
        """The millisecond before which a run must have been started."""
        return MOMENT_MS_MAX if self.until is None else moment_ms(self.until, "until")

    @property
    def updated_since_ms(self) -> int:
        """The first millisecond at which a run may have changed last."""
        return 0 if self.updated_since is None else moment_ms(self.updated_since, "updated_since")

    @property
    def updated_until_ms(self) -> int:
        """The millisecond before which a run must have changed last."""
        if self.updated_until is None:
            return MOMENT_MS_MAX
        return moment_ms(self.updated_until, "updated_until")

    @property
    def needs_rows(self) -> bool:
        """Whether it has a condition that the index of runs does not answer."""
        conditions = (
            self.reason,
            self.node,
            self.updated_since,
            self.updated_until,
            self.cost_usd_min,
            self.cost_usd_max,
        )
        return any(condition is not None for condition in conditions) or not (
            self.statuses is None or self.statuses.isdisjoint(_SHOWN_OPEN)
        )

    def with_statuses(self, statuses: frozenset[str]) -> RunFilter:
        """Return this filter for runs of these statuses only."""
        return msgspec.structs.replace(self, status=statuses)

    def may_match(self, entry: RunEntry) -> bool:
        """Return whether a run may meet the conditions, as far as its index entry tells.

        The entry of an open run does not tell whether a worker owns it: its row does.
        """
        is_open = entry.status in _INDEXED_OPEN
        possible = _SHOWN_OPEN if is_open else {entry.status}
        return (
            (self.statuses is None or not self.statuses.isdisjoint(possible))
            and (self.reason is None or is_open)
            and self._fits(entry)
        )

    def matches(self, entry: RunEntry) -> bool:
        """Return whether a run that was started in time meets the other conditions."""
        return (
            (self.status is None or entry.status in self.status)
            and (self.reason is None or entry.reason == self.reason)
            and (self.node is None or is_in_summary(self.node, entry.node))
            and self._was_updated_in_time(entry)
            and (self.cost_usd_min is None or entry.cost_usd >= self.cost_usd_min)
            and (self.cost_usd_max is None or entry.cost_usd <= self.cost_usd_max)
            and self._fits(entry)
        )

    def _was_updated_in_time(self, entry: RunEntry) -> bool:
        if self.updated_since is None and self.updated_until is None:
            return True
        updated_ms = round(entry.updated_at.timestamp() * 1000)
        return self.updated_since_ms <= updated_ms < self.updated_until_ms

    def _fits(self, entry: RunEntry) -> bool:
        return (self.graph is None or entry.graph == self.graph) and (
            not self.labels or self.labels.items() <= entry.labels.items()
        )


def _validated_statuses(status: object) -> frozenset[str]:
    known = get_args(Status)
    if isinstance(status, str):
        statuses: Collection[object] = (status,)
    elif isinstance(status, Collection):
        statuses = cast(Collection[object], status)
    else:
        statuses = ()
    if not statuses or not all(isinstance(each, str) and each in known for each in statuses):
        raise InvalidQuery(
            f"status must be one or several of {', '.join(known)}, got {status!r:.80}",
            field="status",
        )
    return frozenset(str(each) for each in statuses)


def _validated_amount(amount: object, field: str) -> float:
    # Not isinstance: a bool is an int. A Decimal becomes a float, because the cost of a run is one.
    try:
        known = float(cast(float, amount)) if type(amount) in (int, float, Decimal) else -1.0
    except (OverflowError, ValueError):  # a huge int, a signalling NaN
        known = -1.0
    if not 0 <= known < math.inf:
        raise InvalidQuery(
            f"{field} must be an amount of dollars from 0, such as 0.5, got {amount!r:.80}",
            field=field,
        )
    return known


def _check_order(bounds: Mapping[str, float], lower: str, upper: str) -> None:
    if len(bounds.keys() & {lower, upper}) == 2 and bounds[lower] > bounds[upper]:
        raise InvalidQuery(f"{lower} must not be greater than {upper}", field=lower)
