"""Logs failed attempts of nodes, and runs that failed: once each, after it is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.display import IndentedLines, get_logger
from holdfast.engine.execution.claimed_run import ClaimedRun
from holdfast.engine.runs.chunk_program import item_index
from holdfast.graph.function_program import FunctionProgram
from holdfast.model.event import AttemptFailed, BranchFailed, Event, Failed
from holdfast.model.hooks import AttemptFailure
from holdfast.model.program import Program
from holdfast.model.traces import innermost_place
from holdfast.records.times import utc_datetime

__all__ = ["FailureReport", "failure_report"]

_log = get_logger("holdfast.worker")

_REPORTED = (AttemptFailed, BranchFailed, Failed)


class FailureReport(NamedTuple):
    """A failure that is about to be recorded."""

    claimed: ClaimedRun
    event: AttemptFailed | BranchFailed | Failed
    branch: str
    item: str
    """``item 17 of map '0.1' of run 'job-1'``, if the run is a chunk of a map; otherwise empty."""
    attempt: str
    """Which attempt of the node failed: `` in attempt 2 of 3``; empty if there is only one."""
    number: int
    """The number of the attempt, from 1."""

    def announce(self) -> None:
        """Log the failure and tell the worker; call it after the event is recorded."""
        self._log()
        retry_ms = self.event.retry_at_ms if isinstance(self.event, AttemptFailed) else None
        failed = AttemptFailure(
            node=self.event.node or "",
            branch=self.branch,
            attempt=self.number,
            failure=self.event.failure,
            retried=retry_ms is not None,
            retry_at=None if retry_ms is None else utc_datetime(retry_ms),
        )
        self.claimed.owner.on_attempt_failed(self.claimed.head, failed)

    def _log(self) -> None:
        failure = self.event.failure
        place = innermost_place(failure.trace)
        # A failed call was logged with its own trace.
        shows_trace = place and failure.type != "CallFailed"
        write = _log.error if isinstance(self.event, Failed) else _log.warning
        write(
            "%s: %s: %s: %s%s",
            self.claimed.head.key.log_name,
            self._description(f" at {place}" if place else ""),
            failure.type,
            failure.message,
            IndentedLines(failure.trace if shows_trace else ""),
        )

    def _description(self, at: str) -> str:
        event, graph = self.event, self.claimed.head.graph
        branch = f" in branch {self.branch}" if self.branch else ""
        where = f" for {self.item}" if self.item else branch
        failed = f"node {event.node!r} of graph {graph!r} failed{where}{self.attempt}{at}"
        match event:
            case AttemptFailed():
                seconds = max(event.retry_at_ms - event.at_ms, 0) / 1000
                return f"{failed} and is attempted again in {seconds:,.1f} seconds"
            case BranchFailed():
                # The run of an item that failed goes on with its other items.
                return failed if self.item else f"branch {event.branch} has failed: {failed}"
            case Failed():
                return f"the run has failed: {failed}"


def failure_report(
    claimed: ClaimedRun, program: Program, *, branch: str, events: Sequence[Event]
) -> FailureReport | None:
    """Return the report of the failure in a decision about a branch; None if it has none."""
    event = events[-1] if events else None
    if not isinstance(event, _REPORTED):
        return None
    strand = claimed.execution.strand(branch)
    number = 1 if strand is None else strand.failed_attempts + 1
    attempt = f" in attempt {number}"
    if isinstance(program, FunctionProgram) and (node := program.nodes.get(event.node or "")):
        most = node.retry.attempts
        attempt = f"{attempt} of {most}" if most > 1 else ""
    return FailureReport(claimed, event, branch, _item(claimed, branch), attempt, number)


def _item(claimed: ClaimedRun, branch: str) -> str:
    """Return which item of which map a branch runs; empty if it runs none."""
    chunk, parent = claimed.head.chunk, claimed.head.parent
    if chunk is None or parent is None or not branch:
        return ""
    index = item_index(claimed.execution, branch)
    return f"item {index} of map {chunk.map!r} of run {parent.id!r}"
