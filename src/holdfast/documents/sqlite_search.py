"""`SqliteSegmentSearch`: the search over segments in an SQLite file beside the store, or in memory.

One thread writes and one reads, each with its own connection. Several processes may use one file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from holdfast.clock import Clock, Ids, SystemClock, SystemIds
from holdfast.documents.search_file import MEMORY, SearchFile
from holdfast.documents.search_repair import move_aside
from holdfast.documents.search_words import read_search
from holdfast.errors import InvalidRequest, SearchIndexDamaged
from holdfast.model.segment_search import (
    ENTRIES_MAX,
    SegmentEntry,
    SegmentHit,
    validated_entry,
    validated_hits,
    validated_query,
    validated_scope,
)
from holdfast.storage.thread_pool import ThreadPool

__all__ = ["SqliteSegmentSearch"]


class SqliteSegmentSearch:
    """A `SegmentSearch` in an SQLite file, for processes of one machine.

    The file is created when the first segment is added. It is not part of the store's backups,
    since it can be built again.
    """

    def __init__(self, path: str, *, clock: Clock | None = None, ids: Ids | None = None) -> None:
        """Remember the file; nothing is opened yet. ``:memory:`` is an index in memory."""
        clock = clock or SystemClock()
        self.path = path
        self._ids = ids or SystemIds(clock)
        self._writer = SearchFile(path, clock)
        self._writing = ThreadPool("search index", 1)
        self._reader, self._reading = self._writer, self._writing
        if path != MEMORY:
            self._reader = SearchFile(path, clock, is_reader=True)
            self._reading = ThreadPool("search index", 1)

    async def add(
        self,
        tenant: str,
        project: str,
        document: str,
        workflow: str,
        entries: Iterable[SegmentEntry],
    ) -> None:
        """Add segments, or replace them; see `SegmentSearch.add`.

        What arrives late from an earlier workflow of the document is ignored.

        Raises:
            InvalidRequest: an entry or an id is not valid, or there are more than 1,000 entries.
            SearchUnavailable: the file cannot be written now.
            SearchIndexDamaged: the file must be built again.
        """
        validated_scope(tenant, project=project, document=document, workflow=workflow)
        checked = [validated_entry(each) for each in islice(entries, ENTRIES_MAX + 1)]
        if len(checked) > ENTRIES_MAX:
            raise InvalidRequest(
                f"one call may add at most {ENTRIES_MAX:,} entries: add them in parts",
                field="entries",
            )
        await self._writing.run(
            self._writer.add, tenant, project, document=document, workflow=workflow, entries=checked
        )

    async def remove(self, tenant: str, document: str) -> None:
        """Remove all segments of a document; do nothing where there is none.

        Raises:
            SearchUnavailable: the file cannot be written now.
            SearchIndexDamaged: the file must be built again.
        """
        await self._writing.run(self._writer.remove, tenant, document)

    async def clear(self, tenant: str) -> None:
        """Remove all segments of a tenant; move a damaged file aside, with those of all tenants.

        Raises:
            SearchUnavailable: the file cannot be written now, or another process has it open.
            SearchIndexDamaged: the file belongs to another program.
        """
        if self.path == MEMORY:
            await self._writing.run(self._writer.clear, tenant)
            return
        # What SQLite has in memory would hide what is wrong with the file.
        await self._reading.run(self._reader.close)
        await self._writing.run(self._writer.close)
        try:
            await self._writing.run(self._writer.clear, tenant)
        except SearchIndexDamaged:
            await self._writing.run(move_aside, self.path, self._ids)

    async def search(
        self,
        tenant: str,
        text: str,
        *,
        project: str | None = None,
        document: str | None = None,
        limit: int = 20,
    ) -> list[SegmentHit]:
        """Return the segments that fit a question best; see `SegmentSearch.search`.

        Raises:
            InvalidQuery: the text has more than 1,000 characters, or a limit that is not from 1
                to 100.
            InvalidName: an id is not valid.
            SearchUnavailable: the file cannot be read now, or the search took longer than 10 s.
            SearchIndexDamaged: the file must be built again.
        """
        validated_scope(tenant, project=project, document=document)
        words = read_search(validated_query(text))
        limit = validated_hits(limit)
        if words.is_empty:
            return []
        return await self._reading.run(
            self._reader.search, tenant, words, project=project, document=document, limit=limit
        )

    async def close(self) -> None:
        """Finish what is under way, and close the file."""
        for pool, file in ((self._reading, self._reader), (self._writing, self._writer)):
            await _close(pool, file.close)


async def _close(pool: ThreadPool, close: Callable[[], None]) -> None:
    await pool.close()
    close()
