"""What a process met that cannot be read: each item is told once, and counted."""

from __future__ import annotations

from holdfast.display import get_logger
from holdfast.errors import ItemDamaged

__all__ = ["DamageLog"]

_log = get_logger("holdfast.storage")

# So that a file full of them fills neither the log nor the memory.
_ITEMS_MAX = 1_000


class DamageLog:
    """The items of a store that this process could not read."""

    def __init__(self) -> None:
        self._errors: dict[tuple[str, str], str] = {}

    def record(self, error: ItemDamaged) -> None:
        """Take in that an item cannot be read; log it the first time."""
        if error.key not in self._errors and len(self._errors) < _ITEMS_MAX:
            self._errors[error.key] = str(error)
            _log.error("damaged item, left out: %s", error)

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        """Partition key and sort key of each, in the order in which they were met."""
        return tuple(self._errors)

    @property
    def count(self) -> int:
        """How many there are, up to a thousand."""
        return len(self._errors)
