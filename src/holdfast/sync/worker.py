# Generated from src/holdfast/engine/worker/worker.py by checks/blocking.py; do not edit.
# To write it anew: python -m checks.blocking --write
"""The blocking `Worker`; the async one is `holdfast.engine.worker.worker.Worker`."""

from __future__ import annotations

from collections import Counter
from types import TracebackType

from holdfast.engine.worker.worker import Worker as AsyncWorker
from holdfast.model.durations import Duration
from holdfast.portal import Portal

__all__ = ["Worker"]


class Worker:
    """Runs graphs until it is stopped: ``with hf.worker([graph]): …``"""

    def __init__(self, portal: Portal, worker: AsyncWorker) -> None:
        self._portal = portal
        self._worker = worker

    @property
    def id(self) -> str:
        """The name under which it is registered; empty before it has started."""
        return self._worker.id

    @property
    def counts(self) -> Counter[str]:
        """How many runs it claimed, ended (by status), lost, and took over from dead workers."""
        return self._worker.counts.copy()

    @property
    def running(self) -> int:
        """How many runs it drives, or is about to."""
        return self._worker.running

    def start(self) -> None:
        """Register, and begin to claim runs.

        If the store cannot be used for now (it does not answer, it is full, credentials have
        expired), the worker has no name when this returns, and registers as soon as it can.

        Raises:
            StoreUnusable: the store cannot be used as it is: there is no such table or file, it is
                damaged or of another release, it may not be written, or access is denied.
            InvalidRequest: it was started before.
        """
        self._portal.call(self._worker.start)

    def stop(self, *, drain: Duration | None = None) -> None:
        """Let nodes finish for a while, release every run, and delete the lease.

        Ctrl-C during this call stops the workers at once.

        The worker stops a few seconds after ``drain``, even if nodes go on; None means as long as
        its options say. Other workers take over the runs that it could not release when its lease
        has ended.

        Raises:
            InvalidRequest: ``drain`` is not a duration.
        """
        if not self._portal.is_closed:
            self._portal.call(self._worker.stop, drain=drain)

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
