"""What a paused node waits for."""

from __future__ import annotations

import msgspec

__all__ = ["Wait"]


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """What a paused node waits for; this is what stands in the run's row."""

    visit: int
    key: str
    """Which of the visit's waits this is."""
    branch: str = ""
    """The branch in which the node stands; none where the run has no branches."""
    signal: str | None = None
    """None where it only sleeps."""
    since_ms: int
    until_ms: int | None = None
    """When the sleep is over, or when it gives the wait up."""
    stale_ms: int | None = None
    """When the answer would come too late for the state as it is."""
    about: str = ""
    """What it is about, for people to read."""

    @property
    def asks_again(self) -> bool:
        """Whether its node has to ask again what it waits for, and nobody can answer it."""
        return self.signal is None and self.key.startswith("%")
