"""Reads the progress that nodes in other processes report with ``stream=True``."""

from __future__ import annotations

from holdfast.engine.kernel.kernel import Kernel
from holdfast.model.node_progress import NodeProgress
from holdfast.records.head import Head
from holdfast.records.keys import SpoolKey, parsed_text_key, text_range
from holdfast.records.streamed_text import text_of

__all__ = ["SpooledProgress"]


class SpooledProgress:
    """Reads each report of a run once, from the text of the run's current owner."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._spool = SpoolKey(0, "")
        self._number = 0

    async def read(self, head: Head) -> list[NodeProgress]:
        """Return the last new report of each branch, in the order of the reports.

        Raises:
            JournalDamaged: an item cannot be read.
        """
        if self._spool.epoch < head.epoch:  # former owners report nothing more
            self._spool, self._number = SpoolKey(head.epoch, ""), 0
        found: dict[str, NodeProgress] = {}
        where = text_range(head.generation, self._spool, self._number)
        async for item in self._kernel.texts.query_all(head.key.pk, where):
            self._spool, number = parsed_text_key(item["SK"])
            self._number = number + 1
            for entry in text_of(item, self._kernel.limits.record_bytes_max).entries:
                if entry.progress is not None:
                    found.pop(entry.progress.branch, None)
                    found[entry.progress.branch] = entry.progress
        return list(found.values())
