"""Claims runs for a worker: reserves a slot, writes the claim, and starts the driver.

A worker gets a run in one of three ways. The poller finds it in the due index and calls `claim`.
Another part of this process makes it due and calls `offer`, which claims it at once. Or a part of
this process that is about to start or wake the run calls `reserve`, and writes the run's row under
this worker's name.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

from holdfast.engine.journal.reader import LoadedRun
from holdfast.engine.kernel.kernel import ClaimLost, Kernel
from holdfast.engine.worker.drivers import Drivers
from holdfast.engine.worker.programs import Programs
from holdfast.engine.worker.requeuing import requeue_run
from holdfast.engine.worker.run_owner import RunOwner
from holdfast.engine.worker.slots import Slots
from holdfast.errors import (
    ConditionFailed,
    HoldfastError,
    InvalidRequest,
    ItemDamaged,
    JournalDamaged,
)
from holdfast.records.head import Head, head_of, is_from_newer_release
from holdfast.records.index_keys import IndexKey
from holdfast.records.keys import RunKey
from holdfast.records.run_writes import claim_write

__all__ = ["Claims", "SlotReservation"]

# When to try a run again whose row cannot be read: a worker of another release may read it.
_UNREADABLE_BACKOFF_MS = 60_000


class SlotReservation:
    """A slot that a worker keeps for a run: the caller starts the run, or releases the slot."""

    def __init__(self, claims: Claims, run: RunKey, owner: str) -> None:
        self._claims = claims
        self._run = run
        self.owner = owner
        """The name of the worker, which the caller writes into the run's row."""

    def start_run(self, head: Head, loaded: LoadedRun | None = None) -> None:
        """Drive the run, whose row names the worker; ``loaded`` is what is known of the run."""
        self._claims.finish_reservation(self._run, head, loaded)

    def release(self, *, maybe_claimed: bool = False) -> None:
        """Give the slot back; ``maybe_claimed`` if the run's row may name the worker."""
        self._claims.release_reservation(self._run, maybe_claimed=maybe_claimed)


class Claims:
    """Claims runs of the worker's programs and pools, as long as there are slots for them."""

    def __init__(
        self,
        kernel: Kernel,
        owner: RunOwner,
        *,
        programs: Programs,
        pools: Iterable[str | None],
        slots: Slots,
        drivers: Drivers,
    ) -> None:
        self._kernel = kernel
        self._owner = owner
        self._programs = programs
        self._pools = frozenset(pools)
        self._slots = slots
        self._drivers = drivers
        # Runs for which a slot is reserved.
        self._incoming: Counter[RunKey] = Counter()
        # Rows that are of a newer release or cannot be read. Not every poll tries them again.
        self._unreadable: set[IndexKey] = set()
        self._offers: set[asyncio.Task[None]] = set()

    @property
    def tasks(self) -> Iterable[asyncio.Task[None]]:
        """The tasks that claim offered runs."""
        return self._offers

    def is_ours(self, run: RunKey) -> bool:
        """Return whether the worker drives the run, or is about to."""
        return run in self._incoming or self._drivers.is_expecting(run)

    def forget_unreadable(self) -> None:
        """Let the next poll try the rows again that could not be read."""
        self._unreadable.clear()

    # --- a run that this process starts or wakes --------------------------------------------------

    def reserve(self, run: RunKey, graph: str, pool: str | None) -> SlotReservation | None:
        """Reserve a slot for a run that the caller is about to start or wake, if one is free."""
        if not self._owner.may_claim() or not self._serves(graph, pool):
            return None
        if graph in self._owner.unserved:  # another worker may have what this one lacks
            return None
        # One claim at a time: of two, neither could tell which of them was carried out.
        if run in self._incoming or self._drivers.is_driving(run):
            return None
        if not self._slots.admits(run.tenant):
            self._slots.mark_refused()
            return None
        self._reserve_slot(run)
        return SlotReservation(self, run, self._owner.id)

    def finish_reservation(self, run: RunKey, head: Head, loaded: LoadedRun | None) -> None:
        """Drive a run for which a slot was reserved; see `SlotReservation`."""
        self._drivers.start(head, loaded)
        self._release_slot(run)

    def release_reservation(self, run: RunKey, *, maybe_claimed: bool) -> None:
        """Give a reserved slot back; see `SlotReservation`."""
        self._owner.may_own_strays = self._owner.may_own_strays or maybe_claimed
        self._release_slot(run)

    # --- a run that is due ------------------------------------------------------------------------

    def offer(self, place: IndexKey) -> None:
        """Claim a run that became due just now, in a task of its own, if there is a slot for it."""
        graph, pool, _ = place.due_queue()
        if self._owner.draining or not self._serves(graph, pool):
            return
        if self._owner.unserved.defers(place):
            return  # the poll finds it when no other worker has claimed it
        if not self._slots.admits(place.due_parts()[1].tenant):
            self._slots.mark_refused()
            return
        claim = asyncio.create_task(self._claim_offered(place))
        self._offers.add(claim)
        claim.add_done_callback(self._offers.discard)

    async def _claim_offered(self, place: IndexKey) -> None:
        try:
            if await self.claim(place) or not self._slots.refused:
                return
        except HoldfastError:
            pass
        # The poll finds this run, or one that was refused while this one was being claimed.
        self._owner.wake.set()

    async def claim(self, place: IndexKey) -> bool:
        """Claim the run at a place of the due index and drive it; return whether that worked.

        Raises:
            HoldfastError: the store did not answer; the row may name the worker.
        """
        due_ms, run, epoch = place.due_parts()
        if place in self._unreadable or not self._owner.may_claim():
            return False
        if self.is_ours(run) or not self._slots.admits(run.tenant):
            # If it is ours, it may have been woken before its last driver has ended.
            self._slots.mark_refused()
            return False
        self._reserve_slot(run)
        try:
            head = await self._write_claim(place, run, epoch)
            if head is None or head.owner != self._owner.id:
                return False
            self._owner.counts["claimed"] += 1
            lag_ms = max(0, self._kernel.clock.now_ms() - due_ms)
            self._owner.figures.claim_lag.add(lag_ms / 1000)
            self._drivers.start(head)
            return True
        except ClaimLost:
            return False
        except HoldfastError:
            raise
        except Exception as error:
            # A row that breaks this worker must not keep it from the other runs of the shard.
            self._skip_unreadable(place, run, error)
            return False
        finally:
            self._release_slot(run)

    async def _write_claim(self, place: IndexKey, run: RunKey, epoch: int) -> Head | None:
        """Write the worker's name into the run's row; return None if the run is not to be had."""
        worker, now = self._owner.id, self._kernel.clock.now_ms()
        write = claim_write(place, run, worker=worker, now_ms=now, token=self._kernel.ids.new())
        try:
            item = await self._kernel.resolve_write(
                self._kernel.heads,
                write,
                alive=lambda: self._owner.id == worker and self._owner.alive(),
                was_applied=lambda item: (
                    item.get("owner") == worker and item.get("epoch") == epoch + 1
                ),
            )
        except ConditionFailed as failed:
            if failed.item is not None and is_from_newer_release(failed.item):
                self._unreadable.add(place)
            return None
        except (ItemDamaged, InvalidRequest) as error:
            self._skip_unreadable(place, run, error)
            return None
        except (ClaimLost, HoldfastError):
            self._owner.may_own_strays = True
            raise
        try:
            return head_of(item)
        except JournalDamaged as error:
            self._skip_unreadable(place, run, error)
            claimed = IndexKey.owned(worker, place.due_queue(), run, epoch + 1)
            await requeue_run(self._kernel, claimed, lost=False, in_ms=_UNREADABLE_BACKOFF_MS)
            return None

    def _skip_unreadable(self, place: IndexKey, run: RunKey, error: Exception) -> None:
        """Record that a run's row cannot be read, and leave the run alone for a while."""
        self._unreadable.add(place)
        self._kernel.note_damage({"PK": run.head.pk, "SK": run.head.sk}, error)

    # --- slots ------------------------------------------------------------------------------------

    def _serves(self, graph: str, pool: str | None) -> bool:
        return graph in self._programs and pool in self._pools

    def _reserve_slot(self, run: RunKey) -> None:
        self._slots.take(run.tenant)
        self._incoming[run] += 1

    def _release_slot(self, run: RunKey) -> None:
        self._slots.release(run.tenant)
        self._incoming[run] -= 1
        if self._incoming[run] <= 0:
            del self._incoming[run]
        if self._slots.needs_poll(freed=not self._drivers.has_driver(run)):
            self._owner.wake.set()
