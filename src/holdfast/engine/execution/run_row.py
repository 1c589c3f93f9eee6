"""The row of a claimed run, and the conditional writes that change it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.engine.execution.claim import Claim
from holdfast.engine.kernel.kernel import ClaimLost
from holdfast.errors import ConditionFailed
from holdfast.model.wait import Wait
from holdfast.records.head import Head, head_of
from holdfast.storage import Update

__all__ = ["RunRow"]


class RunRow:
    """The row of one claimed run, as this worker last read or wrote it."""

    def __init__(self, claim: Claim, head: Head, *, stored: bool) -> None:
        self.lock = asyncio.Lock()
        """Held by nodes that change the row: several branches may want to at once."""
        self._claim = claim
        self._head = head
        self._stored = stored

    @property
    def head(self) -> Head:
        """The row as last read or written."""
        return self._head

    @property
    def stored(self) -> bool:
        """Whether the row is in the store; False while the run is only in memory."""
        return self._stored

    async def update(self, change: Callable[..., Update], **values: Any) -> None:
        """Write a change, on the condition that the row is as we know it.

        Raises:
            ConditionFailed: the row has changed, and was not written.
            ClaimLost: the lease ended before the result of the write was known.
        """
        head, kernel = self._head, self._claim.kernel
        write = change(head, now_ms=kernel.clock.now_ms(), token=kernel.ids.new(), **values)
        item = await kernel.resolve_write(
            kernel.heads,
            write,
            alive=self._claim.alive,
            was_applied=lambda current: _was_applied(write, head, current),
        )
        self._head = msgspec.structs.replace(head_of(item), needs_fence=head.needs_fence)

    async def retry_update(self, change: Callable[..., Update], **values: Any) -> None:
        """Write a change, again if a caller extended or cancelled the run in between.

        Raises:
            ClaimLost: the row refuses the change for another reason.
        """
        while True:
            before = self._head
            try:
                await self.update(change, **values)
                return
            except ConditionFailed as failed:
                # The inbox is not read: the run is being released, perhaps because a blob of the
                # inbox cannot be read.
                self.apply(failed.item)
                if _requests_in(self._head) == _requests_in(before):
                    raise ClaimLost from None  # the same write would fail again

    async def read(self) -> None:
        """Read the row again, if this worker still owns the run.

        Raises:
            ClaimLost: it does not.
        """
        heads, key = self._claim.kernel.heads, self._head.key.head
        self.apply(await self._claim.retry_store_errors(lambda: heads.get(key)))

    async def refresh(self) -> None:
        """Read the row again while a node runs: a caller may have granted more time or budget.

        Raises:
            ClaimLost: this worker no longer owns the run.
        """
        if not self._stored:
            return
        signals = self._head.signals
        await self.read()
        self.restore_signal_count(signals)

    def apply(self, item: Mapping[str, Any] | None) -> None:
        """Take over the stored row, if this worker still owns the run.

        Raises:
            ClaimLost: it does not.
        """
        current = None if item is None else head_of(item)
        if (
            current is None
            or current.generation != self._head.generation
            or current.epoch != self._head.epoch
        ):
            raise ClaimLost
        self._head = msgspec.structs.replace(
            current,
            needs_fence=self._head.needs_fence,
            # These may be newer: the row gets the waits only when the run pauses.
            waits=self._head.waits,
            # The item may be older than what another branch wrote since.
            children=current.children or self._head.children,
            maps=current.maps or self._head.maps,
        )

    def restore_signal_count(self, signals: int) -> None:
        """Set the signal count back to that of the last inbox read.

        The row was read or written without the inbox. Signals that arrived since are still unread;
        with the old count the next pause fails its condition and reads them.
        """
        self._head = msgspec.structs.replace(self._head, signals=signals)

    def mark_fenced(self) -> None:
        """Note that this claim's fence is in the journal: no later read of it needs another."""
        self._head = msgspec.structs.replace(self._head, needs_fence=False)

    def remember_waits(self, waits: tuple[Wait, ...]) -> None:
        """Let the next write of the row say what the run waits for."""
        self._head = msgspec.structs.replace(self._head, waits=waits)

    def mark_stored(self, head: Head) -> None:
        """Note that the row of a run that was only in memory is in the store now."""
        self._head, self._stored = head, True


def _was_applied(write: Update, head: Head, current: dict[str, Any]) -> bool:
    """Return whether our write was carried out, although the row changed after it."""
    epoch = write.set.get("epoch", head.epoch)
    if current.get("generation") != head.generation or current.get("epoch") != epoch:
        return False
    if epoch == head.epoch:
        wanted = {name: value for name, value in write.set.items() if name != "updated_ms"}
        return wanted.items() <= current.items() and not set(write.remove) & current.keys()
    return current.get("torn", False) == head.needs_fence


def _requests_in(head: Head) -> tuple[int, int, str | None]:
    """Return what callers may change in the row of a claimed run."""
    return head.ttl, head.expires_ms, head.cancel
