"""`RunFilter`: which runs a list shows or a bulk action acts on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import cast, get_args

import msgspec

from holdfast.errors import InvalidQuery
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
        InvalidQuery: an unknown status or reason, or a graph that is not a name.
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

    def __post_init__(self) -> None:
        if self.status is not None:
            msgspec.structs.force_setattr(self, "status", _validated_statuses(self.status))
        if self.graph is not None and not isinstance(self.graph, str):
            raise InvalidQuery(
                f"graph must be the name of a graph, got {self.graph!r:.80}", field="graph"
            )
        if self.reason is not None and self.reason not in PAUSE_REASONS:
            raise InvalidQuery(
                f"reason must be one of {', '.join(PAUSE_REASONS)}, got {self.reason!r:.80}",
                field="reason",
            )
        msgspec.structs.force_setattr(self, "labels", validated_labels(self.labels))
        for field in ("since", "until"):
            moment: Moment | None = getattr(self, field)
            if moment is not None:
                moment_ms(moment, field)

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
            and self._fits(entry)
        )

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
