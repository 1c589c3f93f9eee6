"""A worker's slots: one for each run that it drives at once, and some left for every tenant."""

from __future__ import annotations

from collections import Counter

__all__ = ["Slots", "may_take"]

_FAIR_SHARE = 7


def may_take(held: int, free: int) -> bool:
    """Return whether a tenant that holds so many slots may take one more of those that are free.

    The fewer are free, the less a tenant may hold. So one tenant's flood leaves an eighth of the
    slots to all others, two leave a fifteenth, and whoever holds none always gets what is left. Up
    to seven slots one tenant may have them all.
    """
    return held < _FAIR_SHARE * free


class Slots:
    """Who holds how many of a worker's slots."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._taken = 0
        self._taken_by_tenant: Counter[str] = Counter()
        self.refused = False
        """Whether somebody was refused: worth another look when a slot is given back."""

    @property
    def taken(self) -> int:
        """How many are in use."""
        return self._taken

    @property
    def free(self) -> int:
        """How many are left."""
        return self._count - self._taken

    def check_room(self, tenant: str) -> bool:
        """Return whether the tenant may take one more; if not, remember that."""
        admitted = may_take(self._taken_by_tenant[tenant], self.free)
        self.refused = self.refused or not admitted
        return admitted

    def take(self, tenant: str) -> None:
        """Count one more of the tenant's."""
        self._taken += 1
        self._taken_by_tenant[tenant] += 1

    def release(self, tenant: str) -> None:
        """Count one less of the tenant's."""
        self._taken -= 1
        self._taken_by_tenant[tenant] -= 1
        if not self._taken_by_tenant[tenant]:
            del self._taken_by_tenant[tenant]
