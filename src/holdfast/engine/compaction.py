"""When a journal is worth a snapshot: what a resume reads stays bounded, and so does its price."""

from __future__ import annotations

import msgspec

__all__ = ["CEILING_BYTES", "FLOOR_BYTES", "Tail", "due"]

# Below this a resume is one page of a Query anyway, and snapshots would cost more than they save:
# with 4 KB of state one for each 64 KB adds some six units to a hundred.
FLOOR_BYTES = 64 * 1024
# Nobody has to read more than this besides the snapshot, however large the state is.
CEILING_BYTES = 512 * 1024


class Tail(msgspec.Struct, frozen=True):
    """What a resume reads of a journal."""

    snapshot_bytes: int = 0
    """What the last snapshot weighs; before the first one, the input."""
    since_bytes: int = 0
    """What was written since."""

    def grown(self, size: int) -> Tail:
        """Return the tail after a record of that size."""
        return Tail(self.snapshot_bytes, self.since_bytes + size)


def due(tail: Tail, floor_bytes: int = FLOOR_BYTES) -> bool:
    """Return whether what was written since the last snapshot outweighs it."""
    return tail.since_bytes > min(max(tail.snapshot_bytes, floor_bytes), CEILING_BYTES)
