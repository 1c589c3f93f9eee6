"""A worker's slots: one for each run that it drives at once, and a fair share for every tenant."""

from __future__ import annotations

from collections import Counter

__all__ = ["Slots", "may_take"]

_FAIR_SHARE = 7


def may_take(held: int, free: int) -> bool:
    """Return whether a tenant that holds so many slots may take one of the free slots.

    The fewer slots are free, the fewer a tenant may hold. One tenant's flood leaves an eighth of
    the slots to the others, two floods leave a fifteenth, and a tenant that holds no slot gets any
    that is left. One tenant may hold all slots if there are at most seven.
    """
    return held < _FAIR_SHARE * free


class Slots:
    """Counts how many of a worker's slots each tenant holds."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._taken = 0
        self._taken_by_tenant: Counter[str] = Counter()
        self._refused = False

    @property
    def taken(self) -> int:
        """How many slots are in use."""
        return self._taken

    @property
    def free(self) -> int:
        """How many slots are free."""
        return self._count - self._taken

    @property
    def refused(self) -> bool:
        """Whether the worker left a due run alone since its last poll began.

        The worker polls again as soon as it frees a slot.
        """
        return self._refused

    def admits(self, tenant: str) -> bool:
        """Return whether the tenant may take one more slot."""
        return may_take(self._taken_by_tenant[tenant], self.free)

    def mark_refused(self) -> None:
        """Record that the worker left a due run alone."""
        self._refused = True

    def clear_refused(self) -> None:
        """Forget which runs were left alone: a poll begins, and finds them again."""
        self._refused = False

    def needs_poll(self, *, freed: bool) -> bool:
        """Return whether the worker should poll now that a run gave its slot back.

        ``freed`` says whether the slot is free: a run that is claimed passes its reserved slot on
        to its driver.
        """
        return (freed and self._refused) or self.free == 1

    def take(self, tenant: str) -> None:
        """Give the tenant one more slot."""
        self._taken += 1
        self._taken_by_tenant[tenant] += 1

    def release(self, tenant: str) -> None:
        """Take one slot back from the tenant."""
        self._taken -= 1
        self._taken_by_tenant[tenant] -= 1
        if not self._taken_by_tenant[tenant]:
            del self._taken_by_tenant[tenant]
