"""What an open store offers besides its runs: figures, API keys, webhooks, the fleet, upkeep."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator

from holdfast.access.api_keys import ApiKeys
from holdfast.access.sessions import Sessions
from holdfast.clock import Clock
from holdfast.documents.documents import Documents
from holdfast.documents.search import SegmentSearch
from holdfast.engine.client import sweep
from holdfast.engine.client.bulk_jobs import BulkJobs
from holdfast.engine.client.quota_levels import QuotaLevels
from holdfast.engine.client.shards import raise_shards
from holdfast.engine.effects.savings import Saved
from holdfast.engine.runs.argument_checks import validated_age_ms
from holdfast.fleet.fleet import Fleet
from holdfast.handle import HandleServices
from holdfast.model.durations import Duration, days
from holdfast.model.progress import SweepProgress
from holdfast.review.options import ReviewOptions
from holdfast.review.reviews import Reviews
from holdfast.storage import Meter
from holdfast.webhooks.callbacks import Callbacks
from holdfast.webhooks.webhooks import Webhooks

__all__ = ["StoreServices"]

_TWO_DAYS = days(2)


class StoreServices:
    """What `Holdfast` offers besides runs."""

    def __init__(
        self,
        services: HandleServices,
        *,
        tenant: str,
        public_url: str | None,
        reviews: ReviewOptions,
        search: SegmentSearch | None,
    ) -> None:
        kernel = services.kernel
        self._services = services
        self._default_tenant = tenant
        self._keys = ApiKeys(kernel)
        self._webhooks = Webhooks(kernel, tenant)
        self._callbacks = Callbacks(kernel, services.workers)
        self._reviews = Reviews(kernel, services.workers, tenant, reviews)
        self._documents = Documents(kernel, services.workers, tenant)
        self._documents.search = search
        kernel.offers[Documents] = self._documents
        if public_url := public_url or os.environ.get("HOLDFAST_PUBLIC_URL"):
            self._callbacks.set_public_url(public_url)
        self._fleet = Fleet(kernel, tenant, lambda: self.saved)
        self.sessions = Sessions(kernel)
        """Browsers that are signed in at the pages of a server."""
        self.bulk_jobs = BulkJobs(kernel)
        """The bulk actions that servers carry out."""
        self.quota_levels = QuotaLevels(kernel, services.resources)
        """How much of the quotas of this instance is used."""

    @property
    def tenant(self) -> str:
        """The tenant of calls that name none."""
        return self._default_tenant

    @property
    def clock(self) -> Clock:
        """The clock by which this instance measures leases, waits and expiries."""
        return self._services.kernel.clock

    @property
    def meter(self) -> Meter:
        """Counts of the store operations so far, and what they cost."""
        return self._services.kernel.store.meter

    @property
    def keys(self) -> ApiKeys:
        """The API keys, with which callers use a server on this store."""
        return self._keys

    @property
    def callbacks(self) -> Callbacks:
        """What other systems post to the addresses of `Context.callback`."""
        return self._callbacks

    @property
    def webhooks(self) -> Webhooks:
        """The webhooks: events of runs that are posted to other systems."""
        return self._webhooks

    @property
    def reviews(self) -> Reviews:
        """The reviews that runs asked for, which people decide."""
        return self._reviews

    @property
    def documents(self) -> Documents:
        """The documents: projects, what was added to them, and the workflows that process it."""
        return self._documents

    @property
    def saved(self) -> Saved:
        """What this process saved by using answers that were known."""
        return self._services.resources.savings.total

    @property
    def fleet(self) -> Fleet:
        """What runs where, what makes no progress, and what it costs."""
        return self._fleet

    def sweep_blobs(
        self, *, older_than: Duration = _TWO_DAYS, dry_run: bool = False
    ) -> AsyncGenerator[SweepProgress, None]:
        """Delete the blobs of all tenants that no run uses; yield the progress after each page.

        A sweep leaves alone what is younger than ``older_than``, at least a day: its run may not be
        stored yet. ``dry_run`` only counts.

        Raises:
            InvalidRequest: ``older_than`` is less than a day.
            StoreUnavailable: the store did not answer; sweep again later.
            StoreUnusable: the store has no place for blobs, or cannot be used.
        """
        age_ms = validated_age_ms(older_than)
        return sweep.sweep_blobs(self._services.kernel, older_than_ms=age_ms, dry_run=dry_run)

    async def create(self) -> None:
        """Create the table and the bucket where they are missing; change none that exists."""
        await self._services.kernel.store.create()

    async def grow_shards(self, shards: int) -> None:
        """Raise the number of shards of each graph's due index, while everything runs.

        Runs stay in the shard in which they were started. Workers read the new shards within a
        quarter of their lease; clients write to them within a minute.

        Raises:
            InvalidRequest: too many shards, or fewer than there are.
        """
        await raise_shards(self._services.kernel, shards)
