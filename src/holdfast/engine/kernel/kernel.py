"""The kernel: the store by purpose, the clock, the ids, the settings, and retries of the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from holdfast.clock import Clock, Ids
from holdfast.engine.kernel.chunk_shares import ChunkShares
from holdfast.engine.kernel.compaction import SNAPSHOT_FLOOR_BYTES
from holdfast.engine.kernel.deliveries import DeliveryLimiter
from holdfast.engine.kernel.known_graphs import KnownGraphs
from holdfast.engine.kernel.live_events import LiveEvents
from holdfast.engine.kernel.news import ChangeNotifier
from holdfast.engine.kernel.notice_nudges import NoticeNudges
from holdfast.engine.kernel.offload import ThreadOffload
from holdfast.engine.kernel.signing_key_cache import SigningKeyCache
from holdfast.engine.kernel.spool import Spools
from holdfast.engine.kernel.telemetry import Telemetry
from holdfast.engine.kernel.webhook_cache import WebhookCache
from holdfast.errors import (
    ConditionFailed,
    HoldfastError,
    InvalidRequest,
    ItemDamaged,
    OutcomeUnknown,
    Refused,
    StoreClosed,
    StoreError,
    StoreNotFound,
    StoreUnavailable,
    TransactionCancelled,
)
from holdfast.model.payload_limits import PayloadLimits
from holdfast.records import settings
from holdfast.records.codec import spill_threshold_bytes
from holdfast.records.head import Head
from holdfast.records.keys import SETTINGS
from holdfast.records.reaping import SWEEPS_MAX
from holdfast.records.settings import Settings, UserHash
from holdfast.storage import Blobs, Delete, Put, Store, Table, TransactionWrite, Update
from holdfast.storage.layout import TOKEN

__all__ = ["STORE_RETRY_SECONDS", "ClaimLost", "Kernel", "StoreOutage"]

T = TypeVar("T")

_BACKOFF_FIRST_SECONDS = 0.02
_BACKOFF_MAX_SECONDS = 2.0
# How old the cached settings may be.
_SETTINGS_AGE_SECONDS_MAX = 60.0
STORE_RETRY_SECONDS = 30.0
"""How long a caller without a lease retries a write with an unknown outcome."""


class ClaimLost(BaseException):
    """This process no longer holds the run, and must not touch it again.

    A BaseException, so that no ``except Exception`` in a node can swallow it.
    """


class StoreOutage(ClaimLost):
    """The store failed for so long that this process gives the run up.

    The driver releases the run, so that a process that can use the store continues it.
    """

    def __init__(self, error: StoreError) -> None:
        super().__init__(str(error))
        self.error = error
        """The last error of the store."""


class Kernel:
    """The store, the clock and the settings, as every part of the engine uses them."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: Ids,
        user_key: bytes | None = None,
        *,
        limits: PayloadLimits | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.telemetry = telemetry
        self.store = store
        self.clock = clock
        self.ids = ids
        self.limits = limits or PayloadLimits()
        self.offload = ThreadOffload()
        self.delivery_limiter = DeliveryLimiter()
        self.spill_bytes = spill_threshold_bytes()
        self.snapshot_floor_bytes = SNAPSHOT_FLOOR_BYTES
        self.sweeps_max = SWEEPS_MAX
        self.heads = store.records("head")
        self.journals = store.records("journal")
        self.inboxes = store.records("inbox")
        self.due = store.records("due")
        self.workers = store.records("worker")
        self.reaping = store.records("reaping")
        self.lists = store.records("list")
        self.texts = store.records("text")
        self.notifier = ChangeNotifier()
        self.spools = Spools()
        self.live = LiveEvents()
        self.settings_table = store.records("settings")
        self.session_queues = store.records("session")
        self.accounts = store.records("account")
        self.maps = store.records("map")
        self.graph_items = store.records("graph")
        self.bulk_jobs = store.records("bulk")
        self.known_graphs = KnownGraphs()
        self.signing_keys = SigningKeyCache()
        self.webhooks = WebhookCache()
        self.webhook_items = store.records("webhook")
        self.reviews = store.records("review")
        self.due_notices = store.records("notice")
        self.notice_nudges = NoticeNudges()
        self.chunk_shares = ChunkShares()
        self.public_url: str | None = None
        self.offers: dict[type[Any], Any] = {}
        """What the packages above the engine offer to the nodes of this process, by its class."""
        self._user_key = user_key
        self._settings: Settings | None = None
        self._settings_checked_at = 0.0

    @property
    def blobs(self) -> Blobs | None:
        """The store of large values; None if the store has no bucket."""
        return self.store.blobs.with_purpose("journal") if self.store.has_blobs else None

    @property
    def has_webhooks(self) -> bool:
        """Whether a tenant has had webhooks, as far as this process has read the settings."""
        return self._settings is not None and self._settings.webhooks

    def note_damage(self, item: Mapping[str, Any], error: Exception) -> ItemDamaged:
        """Record that a row or its index entry is damaged; return the error for it."""
        key = (str(item.get("PK", "")), str(item.get("SK", "")))
        damaged = ItemDamaged(f"the item {key[0]!r:.200} / {key[1]!r:.200}: {error}", key=key)
        self.store.damage.record(damaged)
        return damaged

    async def get_settings(self, *, seconds_old_max: float = _SETTINGS_AGE_SECONDS_MAX) -> Settings:
        """Return the settings that all processes of the store share; create them if there are none.

        They may be up to ``seconds_old_max`` old. The number of shards only grows. A process with
        the old number puts runs into the old shards, which every worker polls for ever. A run in a
        new shard waits until a worker knows the new number, so workers ask more often. Besides it,
        only the first webhook and the first review change them.
        """
        known, now = self._settings, self.clock.monotonic()
        if known is None:
            return self.adopt_settings(await self._load_or_create_settings())
        if now - self._settings_checked_at < seconds_old_max:
            return known
        self._settings_checked_at = now  # the first caller asks for all
        with suppress(StoreError):  # the old settings are good enough
            item = await self.settings_table.get(SETTINGS, eventual=True)
            if item is not None:
                return self.adopt_settings(settings.settings_of(item))
        return known

    def adopt_settings(self, loaded: Settings) -> Settings:
        """Use these settings from now on, unless newer ones are known; return the newer ones."""
        known = self._settings
        if known is not None and known.shards > loaded.shards:
            return known
        if known is not None:
            # The read may have been late: no process takes a note back.
            loaded = msgspec.structs.replace(
                loaded,
                webhooks=loaded.webhooks or known.webhooks,
                reviews=loaded.reviews or known.reviews,
                notifiers_ms=max(loaded.notifiers_ms, known.notifiers_ms),
            )
        self._settings, self._settings_checked_at = loaded, self.clock.monotonic()
        return loaded

    async def _load_or_create_settings(self) -> Settings:
        item = await self.settings_table.get(SETTINGS)
        if item is None:
            made = settings.create_settings_write(self.ids.key(), token=self.ids.new())
            with suppress(ConditionFailed):  # another process created them first
                await self.resolve_write(self.settings_table, made)
            item = await self.settings_table.get(SETTINGS)
            if item is None:
                raise StoreNotFound("the store lost the settings that were just written to it")
        return settings.settings_of(item)

    async def hash_user(self, user: str, tenant: str) -> UserHash:
        """Return the hash that is stored for a user of a tenant."""
        return settings.user_hash(user, tenant, key=await self._get_hash_key())

    async def bind_user_hash(self, head: Head) -> str | None:
        """Return the hash of a run's user as callers see it: always bound to the tenant."""
        if head.user is None or settings.is_bound_to_tenant(head.user):
            return head.user
        return settings.bound_to_tenant(head.user, head.key.tenant, key=await self._get_hash_key())

    async def _get_hash_key(self) -> bytes:
        return self._user_key or (await self.get_settings()).user_key

    async def resolve_write(
        self,
        table: Table,
        write: Put | Update | Delete,
        *,
        alive: Callable[[], bool] | None = None,
        was_applied: Callable[[dict[str, Any]], bool] | None = None,
        on_error: Callable[[HoldfastError], None] | None = None,
    ) -> dict[str, Any]:
        """Carry out a write, re-sent byte for byte until its outcome is known; return the new item.

        ``alive`` says whether to keep trying; without it, retries end after a fixed time.
        ``was_applied`` recognises from the current item that this write was carried out, if a later
        write may have replaced its token. ``on_error`` receives each error before a retry.

        Raises:
            ConditionFailed: the write was not carried out, and never will be.
            ItemDamaged: the current item cannot be read.
            ClaimLost: ``alive`` returned False, and the outcome is unknown.
            StoreUnavailable, StoreUnusable, OutcomeUnknown: the time for retries is over.
        """
        backoffs = self._backoffs()
        deadline = self.clock.monotonic() + STORE_RETRY_SECONDS
        token = None if isinstance(write, Delete) else write.token
        sent_before = False
        while True:
            try:
                return await table.write(write, returning="new") or {}
            except ConditionFailed as refused:
                if refused.item is not None and sent_before:
                    ours = refused.item.get(TOKEN) == token
                    if ours or (was_applied is not None and was_applied(dict(refused.item))):
                        return dict(refused.item)
                raise
            except (InvalidRequest, Refused, StoreClosed):
                raise
            except HoldfastError as error:
                sent_before = True
                if on_error is not None:
                    on_error(error)
                if alive is None and not self._may_retry(error, deadline):
                    raise
                await self._back_off(next(backoffs), alive, error)

    async def resolve_transaction(self, table: Table, writes: Sequence[TransactionWrite]) -> None:
        """Carry out a transaction, re-sent byte for byte until its outcome is known.

        Raises:
            TransactionCancelled: the last attempt was not carried out; the conflicting items may
                be those that an earlier attempt wrote.
            StoreUnavailable, StoreUnusable, OutcomeUnknown: the time for retries is over.
        """
        backoffs = self._backoffs()
        deadline = self.clock.monotonic() + STORE_RETRY_SECONDS
        while True:
            try:
                return await table.transact(writes)
            except (InvalidRequest, StoreClosed):
                raise
            except TransactionCancelled as cancelled:
                # If no condition failed, it only collided with another transaction: try again.
                if cancelled.failed or self.clock.monotonic() >= deadline:
                    raise
            except HoldfastError as error:
                if not self._may_retry(error, deadline):
                    raise
            await self.clock.sleep(next(backoffs))

    def _may_retry(self, error: HoldfastError, deadline: float) -> bool:
        is_transient = isinstance(error, StoreUnavailable | OutcomeUnknown)
        return is_transient and self.clock.monotonic() < deadline

    async def retry_store_errors(
        self,
        action: Callable[[], Awaitable[T]],
        alive: Callable[[], bool],
        *,
        seconds_max: float = STORE_RETRY_SECONDS,
    ) -> T:
        """Repeat an idempotent action for a claimed run until the store works.

        This is the one rule for every store error that a run meets: the error is not the run's
        fault, and may pass.

        Raises:
            StoreOutage: the store failed for ``seconds_max``.
            ClaimLost: ``alive`` returned False.
        """
        backoffs = self._backoffs()
        deadline: float | None = None
        while True:
            try:
                return await action()
            except StoreClosed:
                raise
            except StoreError as error:
                now = self.clock.monotonic()
                deadline = now + seconds_max if deadline is None else deadline
                if now >= deadline and alive():
                    raise StoreOutage(error) from error
                # A sleep past the deadline would hold the run for longer.
                await self._back_off(min(next(backoffs), deadline - now), alive, error)

    async def retry_while_unavailable(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat an idempotent action while the store is unavailable, for a fixed time.

        Raises:
            StoreUnavailable: the time for retries is over.
        """
        backoffs = self._backoffs()
        deadline = self.clock.monotonic() + STORE_RETRY_SECONDS
        while True:
            try:
                return await call()
            except StoreUnavailable:
                if self.clock.monotonic() >= deadline:
                    raise
            await self.clock.sleep(next(backoffs))

    async def _back_off(
        self, seconds: float, alive: Callable[[], bool] | None, error: HoldfastError
    ) -> None:
        """Sleep before the next attempt.

        Raises:
            ClaimLost: ``alive`` returned False, before or after the sleep. If this process stalled
                meanwhile, another one may have freed the run, so nothing more may be sent.
        """
        if alive is not None and not alive():
            raise ClaimLost from error
        await self.clock.sleep(seconds)
        if alive is not None and not alive():
            raise ClaimLost from error

    def _backoffs(self) -> Iterator[float]:
        """Yield the seconds before each further attempt: exponential, with jitter."""
        backoff_seconds = _BACKOFF_FIRST_SECONDS
        while True:
            yield backoff_seconds * (0.5 + self.ids.random())
            backoff_seconds = min(backoff_seconds * 2, _BACKOFF_MAX_SECONDS)
