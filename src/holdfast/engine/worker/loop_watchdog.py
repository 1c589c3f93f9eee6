"""Warns about code that blocks the event loop, before the worker loses its lease.

A coroutine that computes, or calls a function that blocks, stops all runs of the worker, and its
heartbeat. The loop cannot report that itself, so a thread watches it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Sequence

from holdfast.clock import Clock
from holdfast.display import IndentedLines, get_logger
from holdfast.engine.execution.claimed_run import ClaimedRun
from holdfast.engine.execution.performer import performing_visit
from holdfast.engine.worker.lease import Lease
from holdfast.model.execution import nodes_summary
from holdfast.model.traces import innermost_place, stack_text
from holdfast.records.keys import RunKey

__all__ = ["LoopWatchdog"]

_log = get_logger("holdfast.worker")

_BLOCKED_PER_LEASE = 4
_BLOCKED_SECONDS_MIN = 0.1
_BLOCKED_SECONDS_MAX = 5.0
# If the whole process stood still, the loop gets the last of these slices to answer.
_SLICES = 4
_ADVICE = (
    "No other run of this worker goes on meanwhile. Await what takes long, or make the node a "
    "plain function (def): it runs in a thread"
)


class LoopWatchdog:
    """Watches the event loop of one worker from a thread, once it is started."""

    def __init__(
        self,
        clock: Clock,
        lease: Lease,
        *,
        lease_seconds: float,
        list_in_nodes: Callable[[], Sequence[ClaimedRun]],
    ) -> None:
        """Ask ``list_in_nodes`` for the runs with nodes in progress if the stack names none."""
        self._clock = clock
        self._lease = lease
        self._list_in_nodes = list_in_nodes
        share = lease_seconds / _BLOCKED_PER_LEASE
        self._blocked_seconds = min(max(share, _BLOCKED_SECONDS_MIN), _BLOCKED_SECONDS_MAX)
        self._stopped = threading.Event()

    def start(self) -> None:
        """Watch the loop that runs now, in which this is called."""
        loop, loop_thread = asyncio.get_running_loop(), threading.get_ident()
        threading.Thread(
            target=self._watch, args=(loop, loop_thread), name="holdfast-watchdog", daemon=True
        ).start()

    def stop(self) -> None:
        """End the thread soon."""
        self._stopped.set()

    def _watch(self, loop: asyncio.AbstractEventLoop, loop_thread: int) -> None:
        while not self._stopped.wait(self._blocked_seconds / 2):
            turned = threading.Event()
            asked_at = self._clock.monotonic()
            try:
                loop.call_soon_threadsafe(turned.set)
            except RuntimeError:  # the loop is closed
                return
            if not self._has_turned(turned) and loop.is_running():
                run, blocker = self._log_blocked(loop_thread, asked_at)
                while not turned.wait(self._blocked_seconds):
                    if self._stopped.is_set() or not loop.is_running():
                        return
                self._log_unblocked(run, blocker, self._clock.monotonic() - asked_at)

    def _has_turned(self, turned: threading.Event) -> bool:
        """Wait for the loop, for as long as it may be busy; return whether it has turned."""
        return any(turned.wait(self._blocked_seconds / _SLICES) for _ in range(_SLICES))

    @staticmethod
    def _log_unblocked(run: RunKey | None, blocker: str, seconds: float) -> None:
        if run is None:
            _log.warning("%s blocked the event loop for %.1f seconds", blocker, seconds)
        else:
            template = "%s: %s blocked the event loop for %.1f seconds"
            _log.warning(template, run.log_name, blocker, seconds)

    def _log_blocked(self, loop_thread: int, asked_at: float) -> tuple[RunKey | None, str]:
        """Log what blocks the loop; return its run, if it is known, and its description."""
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        frame = frames.get(loop_thread)
        stack = "" if frame is None else stack_text(frame)
        visit = performing_visit(frame)
        del frame, frames  # they would keep the locals of the blocked code in memory
        in_nodes = self._list_in_nodes()
        if visit is not None:
            run, blocker = visit.claimed.head.key, f"node {visit.node!r}"
        elif len(in_nodes) == 1:
            # A task that the node started has a stack of its own.
            run = in_nodes[0].head.key
            blocker = f"node {nodes_summary(in_nodes[0].execution)!r}"
        else:
            run, blocker = None, f"code in worker {self._lease.worker_id}"
        place = innermost_place(stack)
        where = f" at {place}" if place else ""
        seconds, left = self._clock.monotonic() - asked_at, self._lease.remaining_seconds()
        told = (where, seconds, left, _ADVICE, IndentedLines(stack))
        template = "%s blocks the event loop%s, for %.1f seconds; the lease ends in %.1f. %s%s"
        if run is None:
            _log.warning(template, blocker, *told)
        else:
            _log.warning(f"%s: {template}", run.log_name, blocker, *told)
        return run, blocker
