"""What a paused node waits for."""

from __future__ import annotations

import hashlib

import msgspec

__all__ = ["Wait", "recheck_key", "truncated_about"]

# A row has room for eight waits, and never more than 8 KB; a call's key may have 256 letters.
_KEY_BYTES_MAX = 100
_ABOUT_BYTES_MAX = 200


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
    def needs_recheck(self) -> bool:
        """Whether its node has to ask again what it waits for, and nobody can answer it."""
        return self.signal is None and self.key.startswith("%")


def recheck_key(kind: str, what: str) -> str:
    """Return the key of a wait whose node has to ask again what it waits for."""
    key = f"%{kind}.{what}"
    if len(key.encode()) <= _KEY_BYTES_MAX:
        return key
    return f"%{kind}.{hashlib.blake2b(what.encode(), digest_size=16).hexdigest()}"


def truncated_about(text: str) -> str:
    """Return what a wait is about, as much of it as a row has room for."""
    return text.encode()[:_ABOUT_BYTES_MAX].decode(errors="ignore")
