"""Reports what a run does to its followers in this process, and keeps the progress of its nodes.

Nothing is built for a run without followers.
"""

from __future__ import annotations

from holdfast.engine.execution.claimed_run import ClaimedRun
from holdfast.engine.execution.visit import Visit
from holdfast.engine.history.ephemeral import (
    node_started_entry,
    progress_entry,
    resumed_entry,
)
from holdfast.engine.history.text_stream import ProgressWriter
from holdfast.engine.history.views import run_of
from holdfast.model.node_progress import NodeProgress, validated_progress
from holdfast.model.run import HistoryEntry
from holdfast.records.row_events import paused_entry

__all__ = ["VisitProgress", "report_node_started", "report_released", "report_resumed"]


def report_node_started(visit: Visit) -> None:
    """Report that an attempt of a node began."""
    claimed = visit.claimed
    entry = node_started_entry(
        visit.node,
        at_ms=claimed.now_ms(),
        branch=visit.branch,
        attempt=visit.strand.failed_attempts + 1,
    )
    _publish(claimed, entry)


def report_resumed(claimed: ClaimedRun) -> None:
    """Report that this worker goes on with a run; followers drop it unless the run was paused."""
    _publish(claimed, resumed_entry(claimed.head.node, at_ms=claimed.head.updated_ms))


def report_released(claimed: ClaimedRun) -> None:
    """Report what a run waits for, if it waits; call it when its driver has ended."""
    run = run_of(claimed.head, user=None, now_ms=claimed.now_ms())
    if run.status == "waiting":
        _publish(claimed, paused_entry(run))


class VisitProgress:
    """The progress of one visit. Reports cost nothing, except those for other processes."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._writer: ProgressWriter | None = None
        self._has_reported = False

    def report(self, fraction: float | None, message: str, *, stream: bool) -> None:
        """Report how far the node is; with ``stream``, to followers in other processes, too.

        Raises:
            InvalidRequest: the fraction or the message is invalid.
            VisitClosed: the node has ended.
        """
        fraction, message = validated_progress(fraction, message)
        visit = self._visit
        visit.check_open()
        claimed, live = visit.claimed, visit.claimed.kernel.live
        progress = NodeProgress(claimed.now_ms(), visit.node, visit.branch, fraction, message)
        if not self._has_reported:
            self._has_reported = True
            visit.call_on_close(self._close)
        live.set_progress(claimed.head.key, progress)
        if live.is_followed(claimed.head.key):
            _publish(claimed, progress_entry(progress), replaces=f"progress {visit.branch}")
        if stream:
            if self._writer is None:
                self._writer = visit.external.progress_writer(visit.path, visit.node)
            self._writer.report(progress)

    def _close(self) -> None:
        visit = self._visit
        visit.claimed.kernel.live.drop_progress(visit.claimed.head.key, visit.branch)
        if self._writer is not None:
            self._writer.close()


def _publish(claimed: ClaimedRun, entry: HistoryEntry, *, replaces: str = "") -> None:
    claimed.kernel.live.publish(
        claimed.head.key,
        entry,
        position=claimed.journal.extent.position,
        epoch=claimed.head.epoch,
        replaces=replaces,
    )
