"""Decides when a journal needs a snapshot, so that the cost of a resume stays bounded."""

from __future__ import annotations

import msgspec

__all__ = [
    "RECORD_OVERHEAD_BYTES",
    "SNAPSHOT_CEILING_BYTES",
    "SNAPSHOT_FLOOR_BYTES",
    "JournalTail",
    "needs_snapshot",
]

# Below this size a resume is one page of a Query anyway, and snapshots cost more than they save:
# with 4 KB of incompressible state, half of this adds 12 % to the price of a run.
SNAPSHOT_FLOOR_BYTES = 64 * 1024
# The size of a record without its content: keys, ttl, epoch, token. Readers pay for it, too.
RECORD_OVERHEAD_BYTES = 150
# A resume never reads more than this after the snapshot, however large the state is.
SNAPSHOT_CEILING_BYTES = 512 * 1024


class JournalTail(msgspec.Struct, frozen=True):
    """The part of a journal that a resume reads."""

    snapshot_bytes: int = 0
    """The size of the last snapshot; before the first one, of the input."""
    since_snapshot_bytes: int = 0
    """The size of all records since."""

    def grown(self, content_bytes: int) -> JournalTail:
        """Return the tail after one more record."""
        return JournalTail(
            self.snapshot_bytes, self.since_snapshot_bytes + content_bytes + RECORD_OVERHEAD_BYTES
        )


def needs_snapshot(tail: JournalTail, floor_bytes: int = SNAPSHOT_FLOOR_BYTES) -> bool:
    """Return whether the records since the last snapshot outweigh it."""
    return tail.since_snapshot_bytes > min(
        max(tail.snapshot_bytes, floor_bytes), SNAPSHOT_CEILING_BYTES
    )
