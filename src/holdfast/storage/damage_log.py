"""`DamageLog`: the items that a process could not read, each logged once."""

from __future__ import annotations

from holdfast.display import get_logger
from holdfast.errors import ItemDamaged

__all__ = ["DamageLog"]

_log = get_logger("holdfast.storage")

# A file full of damaged items must fill neither the log nor the memory.
_ITEMS_MAX = 1_000


class DamageLog:
    """The items of a store that this process could not read."""

    def __init__(self) -> None:
        self._errors: dict[tuple[str, str], str] = {}

    def record(self, error: ItemDamaged) -> None:
        """Record an item that cannot be read, and log it the first time."""
        if error.key not in self._errors and len(self._errors) < _ITEMS_MAX:
            self._errors[error.key] = str(error)
            _log.error("left out a damaged item: %s", error)

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        """The partition key and sort key of each item, in the order in which they were found."""
        return tuple(self._errors)

    @property
    def count(self) -> int:
        """How many items there are, up to a thousand."""
        return len(self._errors)
