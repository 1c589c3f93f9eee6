"""What a caller that waits for a run waits for."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from holdfast.model.run import Run, Status

__all__ = ["AwaitedStatus"]


class AwaitedStatus(NamedTuple):
    """What a caller waits for: that a run has one of the statuses."""

    statuses: Collection[Status]
    reason: str | None = None
    """Why the run is paused, if it is waiting; None for any reason."""

    def is_met_by(self, row: Run) -> bool:
        """Return whether a run with this row is what the caller waits for."""
        is_other_pause = row.status == "waiting" and self.reason not in (None, row.reason)
        return row.status in self.statuses and not is_other_pause

    def __str__(self) -> str:
        paused = "" if self.reason is None else f" for {self.reason}"
        return " or ".join(
            f"{status!r}{paused if status == 'waiting' else ''}" for status in self.statuses
        )
