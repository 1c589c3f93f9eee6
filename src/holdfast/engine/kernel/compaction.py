"""When a journal is worth a snapshot: what a resume reads stays bounded, and so does its price."""

from __future__ import annotations

import msgspec

__all__ = [
    "RECORD_OVERHEAD_BYTES",
    "SNAPSHOT_CEILING_BYTES",
    "SNAPSHOT_FLOOR_BYTES",
    "JournalTail",
    "needs_snapshot",
]

# Below this a resume is one page of a Query anyway, and snapshots would cost more than they save:
# with 4 KB of state that nothing makes smaller, half of this adds 12 % to the price of a run.
SNAPSHOT_FLOOR_BYTES = 64 * 1024
# What a record weighs besides its content: keys, ttl, epoch, token. Readers pay for it, too.
RECORD_OVERHEAD_BYTES = 150
# Nobody has to read more than this besides the snapshot, however large the state is.
SNAPSHOT_CEILING_BYTES = 512 * 1024


class JournalTail(msgspec.Struct, frozen=True):
    """What a resume reads of a journal."""

    snapshot_bytes: int = 0
    """What the last snapshot weighs; before the first one, the input."""
    since_snapshot_bytes: int = 0
    """What was written since."""

    def grown(self, content_bytes: int) -> JournalTail:
        """Return the tail after one more record."""
        return JournalTail(
            self.snapshot_bytes, self.since_snapshot_bytes + content_bytes + RECORD_OVERHEAD_BYTES
        )


def needs_snapshot(tail: JournalTail, floor_bytes: int = SNAPSHOT_FLOOR_BYTES) -> bool:
    """Return whether what was written since the last snapshot outweighs it."""
    return tail.since_snapshot_bytes > min(
        max(tail.snapshot_bytes, floor_bytes), SNAPSHOT_CEILING_BYTES
    )
