"""When a journal is worth a snapshot: what a resume reads stays bounded, and so does its price."""

from __future__ import annotations

import msgspec

__all__ = ["CEILING_BYTES", "FLOOR_BYTES", "RECORD_BYTES", "Tail", "due"]

# Below this a resume is one page of a Query anyway, and snapshots would cost more than they save:
# with 4 KB of state that nothing makes smaller, half of this adds 12 % to the price of a run.
FLOOR_BYTES = 64 * 1024
# What a record weighs besides its content: keys, ttl, epoch, token. Readers pay for it, too.
RECORD_BYTES = 150
# Nobody has to read more than this besides the snapshot, however large the state is.
CEILING_BYTES = 512 * 1024


class Tail(msgspec.Struct, frozen=True):
    """What a resume reads of a journal."""

    snapshot_bytes: int = 0
    """What the last snapshot weighs; before the first one, the input."""
    since_bytes: int = 0
    """What was written since."""

    def grown(self, content_bytes: int) -> Tail:
        """Return the tail after one more record."""
        return Tail(self.snapshot_bytes, self.since_bytes + content_bytes + RECORD_BYTES)


def due(tail: Tail, floor_bytes: int = FLOOR_BYTES) -> bool:
    """Return whether what was written since the last snapshot outweighs it."""
    return tail.since_bytes > min(max(tail.snapshot_bytes, floor_bytes), CEILING_BYTES)
