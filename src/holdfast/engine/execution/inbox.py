"""The inbox of a claimed run: the signals that nodes may take, and how much the row counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.engine.execution.claim import Claim
from holdfast.engine.execution.journal_session import JournalSession
from holdfast.engine.execution.run_row import RunRow
from holdfast.engine.execution.waits import Waits
from holdfast.engine.journal.reader import read_inbox
from holdfast.engine.journal.signal_payloads import SignalPayloads
from holdfast.errors import ConditionFailed
from holdfast.model.signals import Signal, is_caller_signal
from holdfast.records import owner_writes
from holdfast.records.head import OPEN, InboxSize

__all__ = ["Inbox"]

_SIZE_UPDATE_ATTEMPTS_MAX = 3


class Inbox:
    """The signals sent to one claimed run, as last read."""

    def __init__(self, claim: Claim, row: RunRow, journal: JournalSession, waits: Waits) -> None:
        self._claim = claim
        self._row = row
        self._journal = journal
        self._waits = waits
        self._signals: list[Signal] = []
        # Signals of callers that were taken since the row's count was last written.
        self._taken_since_update = InboxSize()
        self._payloads = SignalPayloads(claim.kernel, row.head.key)

    @property
    def signals(self) -> list[Signal]:
        """All signals of the last read, those taken since included; each read makes a new list."""
        return self._signals

    def load(self, signals: list[Signal]) -> None:
        """Start with signals that were read together with the journal."""
        self._signals = signals
        # The last owner may have taken signals that the row still counts.
        counted, left = self._row.head, self.size()
        self._taken_since_update = InboxSize(
            max(counted.inbox_items - left.items, 0), max(counted.inbox_bytes - left.bytes, 0)
        )

    async def read(self) -> None:
        """Read the inbox again."""
        self._signals = await self._claim.retry_store_errors(
            lambda: read_inbox(self._claim.kernel, self._row.head, self._journal.execution.taken)
        )
        self._waits.mark_changed()

    async def reload_after_conflict(self, failed: ConditionFailed) -> None:
        """Take over the row that refused a write, and read the inbox.

        Raises:
            ClaimLost: this worker no longer owns the run.
        """
        self._row.apply(failed.item)
        await self.read()

    async def close_if_expired(self) -> bool:
        """Refuse all further signals if the run has expired; return whether it has.

        An inbox that is read after this is complete.
        """
        # An owner with a faster clock may have closed the run: then it has expired.
        while (
            self._row.head.status == "closing"
            or self._claim.kernel.clock.now_ms() >= self._row.head.expires_ms
        ):
            if self._row.head.status not in OPEN:
                return True
            try:
                await self._row.update(owner_writes.close_write, status="closing")
            except ConditionFailed as failed:
                await self.reload_after_conflict(failed)  # a caller may have extended the run
        return False

    # --- taking signals ---------------------------------------------------------------------------

    def untaken(self) -> list[Signal]:
        """Return the signals that no wait has taken or is about to take."""
        return self._waits.untaken(self._signals, self._journal.execution)

    def was_taken(self, name: str) -> bool:
        """Return whether a wait has taken, or is about to take, a signal of that name."""
        return self._waits.was_taken(name, self._journal.execution)

    async def load_payload(self, signal: Signal) -> Any:
        """Return the payload of a signal that is about to be taken.

        Raises:
            JournalDamaged: the payload cannot be read.
        """
        return await self._claim.retry_store_errors(
            lambda: self._payloads.read(signal, self.untaken())
        )

    # --- the size that the row counts -------------------------------------------------------------

    def size(self) -> InboxSize:
        """Return the number and size of callers' signals that are not taken."""
        return _size(self.untaken())

    def count_taken(self, signal: Signal) -> None:
        """Count a signal that was taken."""
        taken = _size((signal,))
        self._taken_since_update = InboxSize(
            self._taken_since_update.items + taken.items,
            self._taken_since_update.bytes + taken.bytes,
        )

    async def update_size(self) -> None:
        """Write the size into the row if half of the inbox was taken since the last pause.

        A run with many branches may not pause for days; without this its inbox would seem full.

        Raises:
            ClaimLost: this worker no longer owns the run.
            JournalConflict: another process wrote into the journal.
        """
        if self._has_stale_size():
            await self._journal.shield_write(self._write_size())

    def _has_stale_size(self) -> bool:
        """Return whether half of the inbox was taken since the row's count was last written."""
        limits, taken = self._claim.kernel.limits, self._taken_since_update
        return (
            2 * taken.items >= limits.inbox_items_max or 2 * taken.bytes >= limits.inbox_bytes_max
        )

    async def _write_size(self) -> None:
        async with self._row.lock:
            for _ in range(_SIZE_UPDATE_ATTEMPTS_MAX):
                if not self._has_stale_size():  # another branch has written it meanwhile
                    return
                known, taken = self._journal.execution.taken, self._taken_since_update
                # After a crash, signals that were not taken durably are untaken again.
                await self._journal.wait_durable()
                signals = self._row.head.signals
                inbox = _size(one for one in self._signals if (one.name, one.id) not in known)
                try:
                    await self._row.update(
                        owner_writes.inbox_count_write, signals=signals, inbox=inbox
                    )
                except ConditionFailed as failed:
                    await self.reload_after_conflict(failed)  # another signal arrived
                else:
                    self._taken_since_update = InboxSize(
                        self._taken_since_update.items - taken.items,
                        self._taken_since_update.bytes - taken.bytes,
                    )
                    self._row.restore_signal_count(signals)
                    return


def _size(signals: Iterable[Signal]) -> InboxSize:
    """Return the number and size of those signals that callers sent."""
    sizes = [signal.size for signal in signals if is_caller_signal(signal.name)]
    return InboxSize(len(sizes), sum(sizes))
