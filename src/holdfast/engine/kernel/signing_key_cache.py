"""The signing keys as this process last read them."""

from __future__ import annotations

import math

from holdfast.records.signing_keys import SigningKey

__all__ = ["SigningKeyCache"]


class SigningKeyCache:
    """The keys, and when they were read on the monotonic clock."""

    def __init__(self) -> None:
        self.keys: tuple[SigningKey, ...] = ()
        self.read_at = -math.inf

    def keep(self, keys: tuple[SigningKey, ...], read_at: float) -> tuple[SigningKey, ...]:
        """Keep the keys that were read at a time; return them."""
        self.keys, self.read_at = keys, read_at
        return keys
