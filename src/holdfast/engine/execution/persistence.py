"""Stores a run that was started in memory: see ``durability="on_pause"``."""

from __future__ import annotations

from functools import partial

import msgspec

from holdfast.engine.execution.claim import Claim
from holdfast.engine.execution.journal_session import JournalSession
from holdfast.engine.execution.run_row import RunRow
from holdfast.engine.journal.in_memory import InMemoryRun, RunExists
from holdfast.engine.kernel.kernel import ClaimLost
from holdfast.engine.runs.starting import create_run, write_input
from holdfast.engine.runs.webhook_watch import watch_run
from holdfast.errors import InvalidInput, InvalidResult
from holdfast.records.head import Head

__all__ = ["Persistence"]


class Persistence:
    """Stores one claimed run before anything outside its worker can depend on it."""

    def __init__(
        self,
        claim: Claim,
        row: RunRow,
        journal: JournalSession,
        started: InMemoryRun | None,
    ) -> None:
        """Take a run; ``started`` is None where the run is stored already."""
        self._claim = claim
        self._row = row
        self._journal = journal
        self._started = started

    @property
    def in_memory(self) -> InMemoryRun | None:
        """The start that waits for an acknowledgement, while nothing of the run is stored."""
        return None if self._row.stored else self._started

    async def store_from_node(self) -> None:
        """Store the run, if it is not yet, because a node is about to show it to others."""
        self._claim.check_alive()
        await self._journal.shield_write(self._store_locked())

    async def _store_locked(self) -> None:
        # The lock is taken in here: a cancelled node must not free it while the write goes on.
        async with self._row.lock:
            await self.store()

    async def store(self) -> None:
        """Store the run, if it is not yet: its journal first, then its row.

        Raises:
            ClaimLost: the run cannot be stored; its starter is told why.
        """
        in_memory, writer = self.in_memory, self._journal.writer
        if in_memory is None or writer is None:
            return
        try:
            head = await self._claim.retry_store_errors(
                lambda: self._write_input(in_memory.packed_input)
            )
            await writer.persist(head, self._journal.execution)
            extent = msgspec.structs.replace(
                writer.extent,
                size=writer.extent.size + head.extent.size,
                blobs=writer.extent.blobs or head.extent.blobs,
            )
            head = msgspec.structs.replace(head, extent=extent)
            await self._claim.retry_store_errors(partial(watch_run, self._claim.kernel, head))
            # Retried until its result is known: a second attempt would be another generation.
            stored = await create_run(self._claim.kernel, head, alive=self._claim.alive)
        except (RunExists, InvalidInput, InvalidResult) as error:
            in_memory.mark_refused(error)
            raise ClaimLost from None
        self._row.mark_stored(stored)

    async def _write_input(self, packed: bytes) -> Head:
        # The generation is made before its blobs: the sweep spares blobs of young generations.
        head = msgspec.structs.replace(self._row.head, generation=self._claim.kernel.ids.new())
        return await write_input(self._claim.kernel, head, packed)

    def notify_starter(self) -> None:
        """Tell the caller that started the run in memory what became of it, if nothing did yet."""
        if self._started is None:
            return
        if self._row.stored:
            self._started.mark_written()
        else:
            self._started.mark_lost()
