"""A run that a worker has claimed: its row, its journal, its inbox and its waits.

Nothing here decides what happens to the run: the driver does.
"""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.engine.execution.claim import Claim
from holdfast.engine.execution.inbox import Inbox
from holdfast.engine.execution.journal_session import JournalSession
from holdfast.engine.execution.owner import Owner
from holdfast.engine.execution.persistence import Persistence
from holdfast.engine.execution.run_row import RunRow
from holdfast.engine.execution.waits import Waits
from holdfast.engine.journal.reader import LoadedRun
from holdfast.engine.kernel.kernel import Kernel
from holdfast.model.execution import Execution
from holdfast.model.wait import Wait
from holdfast.records import owner_writes
from holdfast.records.head import OPEN, Head

__all__ = ["ClaimedRun"]


class ClaimedRun:
    """One claimed run, and the parts that each keep one side of it.

    No part refers to the claimed run: a cycle would keep the state of the run in memory until the
    garbage collector runs.
    """

    def __init__(self, kernel: Kernel, owner: Owner, head: Head, loaded: LoadedRun | None) -> None:
        """Take a run that was claimed; ``loaded`` is given where the run was just started."""
        in_memory = None if loaded is None else loaded.in_memory
        self.kernel = kernel
        self.owner = owner
        self.claim = Claim(kernel, owner)
        self.waits = Waits()
        self.row = RunRow(self.claim, head, stored=in_memory is None)
        self.journal = JournalSession(self.claim, self.row, self.waits)
        self.inbox = Inbox(self.claim, self.row, self.journal, self.waits)
        self.persistence = Persistence(self.claim, self.row, self.journal, in_memory)
        self.chunk_inputs: asyncio.Future[Any] | None = None
        """What the items of a chunk are given, once it is being read."""
        if loaded is not None:
            self.apply_loaded(loaded)

    @property
    def head(self) -> Head:
        """The row as last read or written."""
        return self.row.head

    @property
    def execution(self) -> Execution:
        """The fold of all events that were read or written."""
        return self.journal.execution

    def now_ms(self) -> int:
        """Return the time. For a run that was closed it is not before the expiry.

        The clock of the owner that closed the run may have been ahead. A wait that saw the time
        before the expiry again would pause, and the run would expire instead of going on.
        """
        now = self.kernel.clock.now_ms()
        return max(now, self.head.expires_ms) if self.head.status == "closing" else now

    async def sleep(self, seconds: float) -> None:
        """Wait while the worker keeps the run."""
        await self.kernel.clock.sleep(seconds)

    def apply_loaded(self, loaded: LoadedRun) -> None:
        """Continue from the journal and the inbox as they were read."""
        self.journal.load(loaded)
        self.waits.reset(self.execution, self.stored_waits(), expires_ms=self.head.expires_ms)
        self.inbox.load(loaded.inbox)
        self.pop_answered()

    def stop(self) -> None:
        """Note that the driver has returned, and free what it needed."""
        self.claim.mark_stopped()
        self.journal.close()

    async def mark_as_parent(self, *, maps: bool = False) -> Head:
        """Make the row say that the run has children, and perhaps maps; return the row."""
        async with self.row.lock:
            self.claim.check_alive()
            if not self.head.children or (maps and not self.head.maps):
                await self.persistence.store()
                signals = self.head.signals
                await self.row.retry_update(
                    owner_writes.mark_parent_write,
                    maps=maps,
                    has_blobs=self.kernel.store.has_blobs,
                )
                self.row.restore_signal_count(signals)
            return self.head

    async def close_if_expired(self) -> bool:
        """Refuse all further signals if the run has expired, while a node of it runs.

        Return whether it has. Then the inbox was read after it was complete.
        """
        return await self.journal.shield_write(self._close_if_expired())

    async def _close_if_expired(self) -> bool:
        # The lock is taken in here: a cancelled node must not free it while the write goes on.
        async with self.row.lock:
            if self.head.status not in OPEN:
                return True
            self.claim.check_alive()
            await self.persistence.store()
            closed = await self.inbox.close_if_expired()
            if closed:
                await self.inbox.read()
            return closed

    # --- waits ------------------------------------------------------------------------------------

    def set_waiting(self, branch: str, waits: tuple[Wait, ...]) -> None:
        """Record that a branch waits."""
        self.waits.set_waiting(branch, waits, expires_ms=self.head.expires_ms)

    def pop_answered(self) -> list[str]:
        """Return the branches with an answered wait; they no longer count as waiting."""
        return self.waits.pop_answered(
            self.inbox.signals, self.execution, self.now_ms(), expires_ms=self.head.expires_ms
        )

    def known_waits(self, branch: str) -> list[Wait]:
        """Return the waits of a branch as they began, in this process or in an earlier one."""
        known = [*self.waits.last_waits(branch), *self.head.waits, *self.journaled_waits(branch)]
        return [wait for wait in known if wait.branch == branch]

    def journaled_waits(self, branch: str) -> tuple[Wait, ...]:
        """Return the waits of a branch that are in the journal."""
        strand = self.execution.strand(branch)
        return () if strand is None else strand.waits

    def stored_waits(self) -> list[Wait]:
        """Return the waits of the run: those in its row, then those that its journal holds."""
        journaled = [
            wait for _, strand in self.execution.runnable_strands() for wait in strand.waits
        ]
        return [*self.head.waits, *journaled]
