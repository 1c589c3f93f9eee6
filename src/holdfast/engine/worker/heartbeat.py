"""Keeps a worker registered: renews its lease, and registers again when the lease is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from holdfast.display import get_logger
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.worker.claims import Claims
from holdfast.engine.worker.drivers import Drivers
from holdfast.engine.worker.health import REGISTER, store_backoffs
from holdfast.engine.worker.lease import HEARTBEATS_PER_LEASE
from holdfast.engine.worker.requeuing import requeue_runs
from holdfast.engine.worker.run_owner import RunOwner
from holdfast.engine.worker.tasks import cancel_tasks
from holdfast.errors import HoldfastError, StoreClosed, StoreError

__all__ = ["Heartbeat"]

_log = get_logger("holdfast.worker")


class Heartbeat:
    """The heartbeat of one worker: four beats a lease, and an audit of its claims every fourth."""

    def __init__(
        self,
        kernel: Kernel,
        owner: RunOwner,
        *,
        claims: Claims,
        drivers: Drivers,
        on_name_lost: Callable[[str], None],
    ) -> None:
        """Call ``on_name_lost`` with each name that the worker no longer uses."""
        self._kernel = kernel
        self._owner = owner
        self._lease = owner.lease
        self._claims = claims
        self._drivers = drivers
        self._on_name_lost = on_name_lost
        self._beats = 0

    async def register(self) -> None:
        """Register the worker if the store can be used; if it cannot for now, `beat` does it later.

        Raises:
            StoreUnusable: the store cannot be used as it is.
        """
        try:
            await self._kernel.get_settings()
            await self._lease.register()
        except StoreError as error:
            if not error.is_transient:
                raise
            self._owner.outages.record_failure("", REGISTER, error)

    async def beat(self) -> None:
        """Wait until the lease is to be renewed, and renew it; register again if it is lost."""
        if self._owner.id == "":
            await self._reregister()
        remaining_seconds = max(self._lease.remaining_seconds(), 0)
        await self._kernel.clock.sleep(min(self._lease.heartbeat_seconds, remaining_seconds))
        if not await self._renew_lease():
            _log.warning(
                "worker %s lost its lease and registers again: %s",
                self._owner.id,
                self._lease.loss_reason,
            )
            await self._reregister()
            return
        self._owner.claim_lag_ms = 0
        self._beats += 1
        if self._beats % HEARTBEATS_PER_LEASE == 0:
            self._claims.forget_unreadable()
            await self._requeue_strays()

    async def _renew_lease(self) -> bool:
        """Renew the lease; return False when the lease ends, even if the store never answers."""
        try:
            async with asyncio.timeout(max(self._lease.remaining_seconds(), 0)):
                return await self._lease.renew()
        except TimeoutError:
            return False

    async def _reregister(self) -> None:
        """Drop every run of the worker, and register it under a new name."""
        self._on_name_lost(self._owner.id)
        self._lease.forget_name()
        self._owner.may_own_strays = False
        dropped = list(self._drivers.tasks)
        await cancel_tasks(*dropped)
        backoffs = store_backoffs()
        while self._owner.id == "":
            try:
                await self._lease.register()
            except StoreClosed:
                raise
            except HoldfastError as error:
                self._owner.outages.record_failure("", REGISTER, error)
                await self._kernel.clock.sleep(next(backoffs))
        self._owner.outages.record_success(self._owner.id, REGISTER)
        self._owner.wake.set()

    async def _requeue_strays(self) -> None:
        """Make runs due again that name this worker and that it does not drive.

        Such a run is left by a claim that the store carried out without an answer.
        """
        with contextlib.suppress(StoreError):  # the next audit finds them
            await requeue_runs(
                self._kernel,
                self._owner.id,
                lost=False,
                on_requeued=self._claims.offer,
                skip=self._claims.is_ours,
            )
