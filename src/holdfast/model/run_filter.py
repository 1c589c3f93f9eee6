"""Filters for lists of runs and for bulk actions."""

from __future__ import annotations

import msgspec

from holdfast.model.run import RunEntry

__all__ = ["RunFilter"]


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs a list shows or a bulk action acts on."""

    statuses: frozenset[str] | None = None
    graph: str | None = None
    labels: dict[str, str] = {}
    since_ms: int = 0
    until_ms: int = 9_999_999_999_999

    def with_statuses(self, statuses: frozenset[str]) -> RunFilter:
        """Return the same filter for these statuses only."""
        return msgspec.structs.replace(self, statuses=statuses)

    def matches(self, entry: RunEntry) -> bool:
        """Return whether a run passes the filter. The list checks the times itself."""
        return (
            (self.statuses is None or entry.status in self.statuses)
            and (self.graph is None or entry.graph == self.graph)
            and self.labels.items() <= entry.labels.items()
        )
