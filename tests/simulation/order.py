"""P5, checked after every write: the runs of a session go on one after the other.

Also that a run which has ended, and has not left its session yet, stays where a worker finds it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from holdfast.records.head import ENDED, Head
from holdfast.records.keys import RunKey, SessionQueueKey
from holdfast.storage.item import Item
from holdfast.storage.layout import Key
from tests.simulation.chronicle import Broken, Chronicle, Chronicles
from tests.simulation.world import TTL_SWEEPER

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Order"]

LAST = "LAST"
REPLACED = "replaced by run "


class Order:
    """Watches the session queues."""

    def __init__(self, world: World, runs: Chronicles, seen: Counter[str]) -> None:
        self._world = world
        self._runs = runs
        self._seen = seen
        self._given: dict[str, dict[int, Chronicle]] = {}
        """Every number that was given out, by the partition of its session queue."""
        self._last: dict[str, int] = {}
        self._acknowledged: dict[str, int] = {}

    # --- every write ------------------------------------------------------------------------------

    def ticket(self, key: Key, old: Item | None, new: Item | None, process: str) -> None:
        """Check what happens to an item of a session queue."""
        if key.sk == LAST:
            if new is None:
                standing = [
                    number for number in self._given.get(key.pk, {}) if self._is_at(key.pk, number)
                ]
                self._last[key.pk] = max(standing, default=0)
                self._acknowledged.pop(key.pk, None)
            return
        number = int(key.sk.removeprefix("T#"))
        if new is None:
            self._left(key, old, number, process)
        elif old is None or old["generation"] != new["generation"]:
            self._given_out(key, new, number, process)

    def _given_out(self, key: Key, ticket: Item, number: int, process: str) -> None:
        chronicle = self._runs.of(
            f"RUN#{key.pk.split('#')[1]}#{ticket['run']}", ticket["generation"]
        )
        what = f"{process} gave {chronicle.key.id} the number {number} of {key.pk}"
        head = self._runs.own_row(chronicle)
        if head is None or head.ticket != number:
            raise Broken(f"P5: {what}, and there is no row that says so")
        if number <= self._last.get(key.pk, 0):
            raise Broken(f"P5: {what}, after {self._last[key.pk]}")
        self._last[key.pk] = number
        self._given.setdefault(key.pk, {})[number] = chronicle

    def _left(self, key: Key, old: Item | None, number: int, process: str) -> None:
        chronicle = self._given.get(key.pk, {}).get(number)
        if old is None or chronicle is None:
            return
        if not self._runs.has_left(chronicle):
            raise Broken(
                f"P5: {process} took {chronicle.key.id} out of {key.pk} before it has ended"
            )
        if process != TTL_SWEEPER:
            self._seen["left its session queue"] += 1

    def row(self, before: Head | None, head: Head) -> None:
        """Check a row that was written: it has a ticket when it is made, and until it has paid."""
        if head.session_queue is None:
            return
        if before is None:
            self._seen["ticket"] += 1
            if not self._is_at(head.session_queue.pk, head.ticket):
                raise Broken(f"P5: {head.key.id} was made, and has no ticket")
        if head.reason == "queued" and (before is None or before.reason != "queued"):
            self._seen["queued"] += 1
        if before is not None and before.reason == "queued" and head.status == "running":
            self._seen["woken in its session queue"] += 1
        if head.cancel is not None and before is not None and before.cancel is None:
            self._check_cancelled(head, head.cancel)
        if head.status not in ENDED or not self.owes(head):
            return
        if not self._runs.is_seen_to(head):
            raise Broken(
                f"{head.key.id} is {head.status} and stands in its session queue, and nobody will "
                f"see to it: its place is {head.index_key}"
            )

    def _check_cancelled(self, head: Head, reason: str) -> None:
        """Check that who is replaced is so by one behind it."""
        if not reason.startswith(REPLACED):
            return
        self._seen["replaced"] += 1
        by = self._runs.row(RunKey(head.key.tenant, reason.removeprefix(REPLACED).strip("'")))
        if (
            by is None
            or by.session_queue != head.session_queue
            or by.ticket <= head.ticket
            or not by.replaces
        ):
            raise Broken(f"P5: {head.key.id} ({head.ticket}) is {reason}, which is {by}")

    def owes(self, head: Head) -> bool:
        """Return whether a run's ticket stands."""
        if head.session_queue is None:
            return False
        ticket = self._world.truth.item(head.session_queue.ticket(head.ticket))
        return ticket is not None and ticket["generation"] == head.generation

    def check_lasts(self, head: Head) -> None:
        """Check that an extended run keeps its place in its session queue as long as it lasts."""
        if head.session_queue is None or head.status in ENDED:
            return
        for key in (head.session_queue.ticket(head.ticket), head.session_queue.last):
            item = self._world.truth.item(key)
            if item is None or item["ttl"] < head.ttl:
                raise Broken(f"P5: {head.key.id} is extended, and {key} does not last")

    # --- what a scenario tells --------------------------------------------------------------------

    def began(self, head: Head, chronicle: Chronicle) -> Broken | None:
        """Hear that a node of a run begins; return what is wrong with that."""
        queue = head.session_queue
        execution = chronicle.execution
        if queue is None or execution is None or execution.ending is not None or chronicle.over:
            return None  # it is over, and its owner will learn of it; or it was retried
        if not chronicle.begun and head.ticket > 1:
            self._seen["began behind others"] += 1
        chronicle.begun = True
        for number, other in self._given.get(queue.pk, {}).items():
            if other is chronicle or self._runs.has_left(other):
                continue
            if number < head.ticket or other.begun:
                return Broken(
                    f"P5: {chronicle.key.id} ({head.ticket}) goes on in {queue.pk}, and "
                    f"{other.key.id} ({number}) has not ended"
                )
        return None

    def started(self, head: Head) -> None:
        """Hear that a start was acknowledged; those of one session are so one after the other."""
        if head.session_queue is None:
            return
        last = self._acknowledged.get(head.session_queue.pk, 0)
        chronicle = self._runs.of_row(head)
        if chronicle.acknowledged_start:
            return
        chronicle.acknowledged_start = True
        if head.ticket <= last:
            raise Broken(
                f"P5: {head.key.id} was started after number {last} of "
                f"{head.session_queue.pk}, and has the number {head.ticket}"
            )
        self._acknowledged[head.session_queue.pk] = head.ticket

    def is_in_front(self, head: Head) -> bool:
        """Return whether no other run stands before a queued one."""
        assert head.session_queue is not None
        given = self._given.get(head.session_queue.pk, {})
        return all(
            number >= head.ticket or not self._is_at(head.session_queue.pk, number)
            for number in given
        )

    def _is_at(self, pk: str, number: int) -> bool:
        _, tenant, user, session = pk.split("#")
        return (
            self._world.truth.item(SessionQueueKey(tenant, user, session).ticket(number))
            is not None
        )
